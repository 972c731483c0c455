"""The baseline's cache: used while the example is the same, never half-written."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import zeus_weather

from demo import baseline as module
from demo.baseline import Baseline, fingerprint, read, train
from tests.unit.demo.rows import baseline


def write(folder: Path, result: Baseline) -> None:
    (folder / f"{result.slice_key}.json").write_text(json.dumps(asdict(result)))


def test_results_of_other_code_and_cut_off_files_are_left_out(tmp_path: Path) -> None:
    good = replace(baseline(1.0, "2013-W13"), code=fingerprint())
    write(tmp_path, good)
    write(tmp_path, baseline(1.0, "2013-W14"))
    (tmp_path / "2013-W15.json").write_text('{"slice_key": "2013-W15", "co')
    (tmp_path / "2013-W16.json").write_text('{"slice_key": "2013-W16"}')
    assert read(tmp_path) == {"2013-W13": good}
    assert read(tmp_path / "nowhere") == {}


def test_a_changed_example_has_another_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather").mkdir()
    for name in ("zeus_weather.py", "weather/model.py"):
        (tmp_path / name).write_text("a = 1\n")
    monkeypatch.setattr(module, "DAGS", tmp_path)
    before = fingerprint()
    assert fingerprint() == before
    (tmp_path / "weather" / "model.py").write_text("a = 2\n")
    assert fingerprint() != before


@pytest.mark.slow
def test_it_is_trained_at_the_default_and_full_power_on_a_gpu_of_its_own(tmp_path: Path) -> None:
    first = train(zeus_weather.JOB, "2013-W17", tmp_path)
    again = train(zeus_weather.JOB, "2013-W17", tmp_path)
    assert (first.batch_size, first.state, first.slice_key) == (32, "converged", "2013-W17")
    assert first.cost_j == pytest.approx(0.5 * first.energy_j + 0.5 * 250 * first.time_s)
    assert again.epochs == first.epochs, "the same seed, the same training"
    assert again.energy_j == pytest.approx(first.energy_j, rel=0.01)
    state = next(tmp_path.glob("simulated-*.gpu"))
    from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu

    assert SimulatedGpu("v100", load="shufflenet", state_file=state).limit_w() == 250.0, "never set"


def test_what_is_there_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []

    def fake(job: object, key: str, folder: Path) -> Baseline:
        trained.append(key)
        return replace(baseline(1.0, key), code=fingerprint())

    monkeypatch.setattr(module, "BASELINE", tmp_path)
    monkeypatch.setattr(module, "train", fake)
    monkeypatch.setattr(module, "read", lambda: read(tmp_path))
    module.main(["2013-W13"])
    module.main(["2013-W13", "2013-W14"])
    assert trained == ["2013-W13", "2013-W14"]
    assert set(read(tmp_path)) == set(trained)
    assert list(tmp_path.glob("*.tmp")) == []
