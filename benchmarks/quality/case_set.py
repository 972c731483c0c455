"""All cases that the default policy is judged by, together.

========  ==============================================================================================================
group     its cases
========  ==============================================================================================================
series    real retraining series from three defaults; the same where the job says truthfully how often it recurs
mlperf    MLPerf's reference convergence points as series that do not change, from three defaults
pairs     the measured pairs of workload and GPU, with and without audits
drifts    jobs whose data change (``drifts``)
regimes   what else may befall a job (``regime_set``), and a target that two sizes alone still reach, now and then
========  ==============================================================================================================

Replays draw N seeds, from ``first_seed`` on; what is drawn to make a case (``regime_set``) is drawn from its name and
the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from benchmarks.quality.drifts import SHIFT, SILENT, Drift, changed, drifts, with_room
from benchmarks.quality.regime_set import BY_NAME, right
from benchmarks.quality.slice_tables import Series, defaults_of, read_series, series_of, tables_in
from benchmarks.replays import OURS
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, Traces

MLPERF_EPOCHS = 200
AUDIT = 0.02  # of a job by default
AFTER = 40  # recurrences that a job is watched for after two sizes alone reach its target


class Cases(NamedTuple):
    """Where the cases come from, and how many of them."""

    traces: Path
    series: Path | None = None
    max_epochs: tuple[tuple[str, int], ...] = ()
    mlperf: Path | None = None
    held: Path | None = None  # traces of GPUs on which nothing was tuned
    seeds: int = 4
    series_seeds: int = 40
    every: int = 1  # every N-th drift, and every N-th pair of a regime, alone
    first_seed: int = 0

    def drawn(self, seeds: int) -> range:
        """So many seeds, from the first one on."""
        return range(self.first_seed, self.first_seed + seeds)

    def pairs(self) -> list[Pair]:
        """The measured pairs."""
        return Traces(self.traces).pairs()

    def tables(self) -> dict[str, Series]:
        """The retraining series, the weather example's first."""
        return series_of(self.series, dict(self.max_epochs))

    def mlperf_tables(self) -> dict[str, Series]:
        """MLPerf's."""
        return {path.stem: read_series(path, MLPERF_EPOCHS) for path in tables_in(self.mlperf)} if self.mlperf else {}


def told(table: Series) -> Series:
    """The same, whose job says truthfully how often it recurs."""
    return table._replace(expected_runs=len(table.weeks))


def shifting(cases: Cases) -> dict[str, Drift]:
    """The jobs whose data change, by name; those in which nothing that runs tells it are left out."""
    found = {name: drift for name, drift in drifts(cases.pairs()).items() if drift.shifts and not name.endswith(SILENT)}
    return dict(islice(found.items(), 0, None, cases.every))


def two_sizes_alone(cases: Cases) -> Drift | None:
    """ResNet-50 whose target is raised: two sizes below its default reach it in 40 % of their runs, no other does."""
    pair = next((p for p in cases.pairs() if (p.workload, p.gpu) == ("resnet50", "a40")), None)
    if pair is None:
        return None
    able = pair.batch_sizes[: pair.batch_sizes.index(pair.default_batch_size)][-2:]
    some = {b: tuple(e if i % 5 < 2 else math.inf for i, e in enumerate(sorted(pair.epochs[b]))) for b in able}
    table = dict.fromkeys(pair.batch_sizes, (math.inf,)) | some
    before, after = with_room(Scenario(pair), changed(Scenario(pair), epochs=table))
    return Drift(before, SHIFT + AFTER, {SHIFT: after})


class Recurring(NamedTuple):
    """A job, and what holds in its recurrences."""

    job: ZeusJob
    first: Scenario
    recurrences: int
    shifts: Mapping[int, Scenario]


@cache
def recurring(cases: Cases) -> dict[str, list[Recurring]]:
    """The jobs of all groups, to be replayed under one policy after another."""
    found: dict[str, list[Recurring]] = {}
    for table in cases.tables().values():
        for kind, job in _from_defaults(table):
            found.setdefault(kind, []).append(job)
        found.setdefault("expected runs", []).extend(job for _, job in _from_defaults(told(table)))
    for table in cases.mlperf_tables().values():
        found.setdefault("mlperf", []).extend(job for _, job in _from_defaults(table))
    whole = [Scenario(pair) for pair in cases.pairs()]
    found["pairs"] = [Recurring(s.job(), s, s.pair.recurrences, {}) for s in whole]
    found["audit"] = [Recurring(s.job(audit=AUDIT), s, s.pair.recurrences, {}) for s in whole[:: cases.every]]
    found["drifts"] = [_of_drift(drift) for drift in shifting(cases).values()]
    befall = [regime for regime in BY_NAME.values() if regime.misread is right]
    befallen = (regime.job(s, 0) for regime in befall for s in whole[:: cases.every])
    found["regimes"] = [_of_drift(drift) for drift in befallen if drift is not None]
    return found


def _from_defaults(table: Series) -> Iterator[tuple[str, Recurring]]:
    for kind, b in defaults_of(table).items():
        truths = table.truths(b)
        yield kind, Recurring(table.job(b, OURS), truths[0], len(truths), dict(enumerate(truths)))


def _of_drift(drift: Drift) -> Recurring:
    job = drift.before.job(expected_runs=drift.expected_runs)
    return Recurring(job, drift.before, drift.recurrences, drift.shifts)
