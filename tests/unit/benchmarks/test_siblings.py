"""Tables of siblings: what the network of the starts needs at each batch size, in the form that a replay reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.quality.dated_series import Dated, members
from benchmarks.quality.slice_tables import read_series
from benchmarks.siblings import cells, write


def test_a_table_can_be_replayed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 2))
    found = [cell for seed in (0, 1) for cell in cells(Dated(x, x[:, 0], 40, 10), 3, (8, 16), seed)]
    write(tmp_path / "t.csv", found)
    series = read_series(tmp_path / "t.csv")
    assert (len(series.weeks), series.batch_sizes) == (2, [8, 16])
    assert all(len(epochs) == 2 and min(epochs) >= 1 for week in series.weeks for epochs in week.epochs.values())
    assert min(series.epoch_s.values()) > 0


def test_each_airport_is_a_series_of_its_own() -> None:
    found = members("weather", 4)
    assert list(found) == ["EWR", "JFK", "LGA"]
    assert len({len(data.y) for data in found.values()}) == 3
    assert all(not np.ptp(data.x[:, -2:], axis=0).any() for data in found.values()), "one airport's rows alone"
