"""All cases that the default policy is judged by, together.

========  ==============================================================================================================
group     its cases
========  ==============================================================================================================
series    real retraining series from three defaults; the same where the job says truthfully how often it recurs
mlperf    MLPerf's reference convergence points as series that do not change, from three defaults
pairs     the measured pairs of workload and GPU
drifts    jobs whose data change (``drifts``)
regimes   what else may befall a job (``regime_set``), and a target that two sizes alone still reach, now and then
made      jobs of a generator, each with one trouble (``made_jobs``)
========  ==============================================================================================================

All jobs have the default audit. Replays draw N seeds, from ``first_seed`` on; what is drawn to make
a case (``regime_set``, ``made_jobs``) is drawn from its name and the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from benchmarks.quality.drifts import SHIFT, SILENT, Drift, changed, drifts, with_room
from benchmarks.quality.made_jobs import AUDIT, FAMILIES, TROUBLES, made_job
from benchmarks.quality.regime_set import BY_NAME, right
from benchmarks.quality.slice_tables import Series, defaults_of, read_series, series_of, tables_in
from benchmarks.replays import OURS
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, Traces

MLPERF_EPOCHS = 200
AFTER = 40  # recurrences that a job is watched for after two sizes alone reach its target


class Cases(NamedTuple):
    """Where the cases come from, and how many of them."""

    traces: Path
    series: Path | None = None
    max_epochs: tuple[tuple[str, int], ...] = ()
    mlperf: Path | None = None
    held: Path | None = None  # traces of GPUs on which nothing was tuned
    seeds: int = 8
    every: int = 1  # every N-th drift, and every N-th pair of a regime, alone
    first_seed: int = 0

    @property
    def drawn(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def pairs(self) -> list[Pair]:
        """The measured pairs."""
        return Traces(self.traces).pairs()

    def tables(self) -> dict[str, Series]:
        """The retraining series, the weather example's first."""
        return _audited(series_of(self.series, dict(self.max_epochs)))

    def mlperf_tables(self) -> dict[str, Series]:
        """MLPerf's."""
        paths = tables_in(self.mlperf) if self.mlperf else []
        return _audited({path.stem: read_series(path, MLPERF_EPOCHS) for path in paths})


def _audited(tables: Mapping[str, Series]) -> dict[str, Series]:
    return {name: each._replace(audit=AUDIT) for name, each in tables.items()}


def told(table: Series) -> Series:
    """The same, whose job says truthfully how often it recurs."""
    return table._replace(expected_runs=len(table.weeks))


def shifting(cases: Cases) -> dict[str, Drift]:
    """The jobs whose data change, by name;
    those in which nothing that runs tells it are left out.
    """
    found = {
        name: replace(drift, audit=AUDIT)
        for name, drift in drifts(cases.pairs()).items()
        if drift.shifts and not name.endswith(SILENT)
    }
    return dict(islice(found.items(), 0, None, cases.every))


def two_sizes_alone(cases: Cases) -> Drift | None:
    """ResNet-50 whose target is raised:
    two sizes below its default reach it in 40 % of their runs, no other does.
    """
    pair = next((p for p in cases.pairs() if (p.workload, p.gpu) == ("resnet50", "a40")), None)
    if pair is None:
        return None
    able = pair.batch_sizes[: pair.batch_sizes.index(pair.default_batch_size)][-2:]
    some = {
        b: tuple(e if i % 5 < 2 else math.inf for i, e in enumerate(sorted(pair.epochs[b])))
        for b in able
    }
    table = dict.fromkeys(pair.batch_sizes, (math.inf,)) | some
    before, after = with_room(Scenario(pair), changed(Scenario(pair), epochs=table))
    return Drift(before, SHIFT + AFTER, {SHIFT: after}, audit=AUDIT)


class Recurring(NamedTuple):
    """A job, what holds in its recurrences, and the seeds with which it is replayed."""

    job: ZeusJob
    first: Scenario
    recurrences: int
    shifts: Mapping[int, Scenario]
    seeds: Sequence[int]


@cache
def recurring(cases: Cases, groups: tuple[str, ...]) -> dict[str, list[Recurring]]:
    """The jobs of these groups, to be replayed under one policy after another."""
    found: dict[str, list[Recurring]] = {}
    for group in groups:
        for name, job in RECURRING[group](cases):
            found.setdefault(name, []).append(job)
    return found


Named = Iterator[tuple[str, Recurring]]  # (name of its column, job)


def _series(cases: Cases) -> Named:
    for table in cases.tables().values():
        yield from _from_defaults(table, cases)
        for _, job in _from_defaults(told(table), cases):
            yield "expected runs", job


def _mlperf(cases: Cases) -> Named:
    for table in cases.mlperf_tables().values():
        for _, job in _from_defaults(table, cases):
            yield "mlperf", job


def _pairs(cases: Cases) -> Named:
    for pair in cases.pairs():
        truth = Scenario(pair)
        job = truth.job(audit=AUDIT)
        yield "pairs", Recurring(job, truth, pair.recurrences, {}, cases.drawn)


def _drifts(cases: Cases) -> Named:
    for drift in shifting(cases).values():
        yield "drifts", _of_drift(drift, cases)


def _regimes(cases: Cases) -> Named:
    whole = [Scenario(pair) for pair in cases.pairs()[:: cases.every]]
    befall = [regime for regime in BY_NAME.values() if regime.misread is right]
    for drift in (regime.job(s, 0) for regime in befall for s in whole):
        if drift is not None:
            yield "regimes", _of_drift(replace(drift, audit=AUDIT), cases)


def _made(cases: Cases) -> Named:
    kinds = [(name, kind) for name, trouble in TROUBLES.items() for kind in trouble.defaults]
    for name, kind in kinds[:: cases.every]:
        for seed in cases.drawn:
            found = made_job(name, kind, seed)
            yield FAMILIES.get(name, name), _of_series(found.series, found.default, [seed])


RECURRING: Mapping[str, Callable[[Cases], Named]] = {
    "made": _made,
    "series": _series,
    "mlperf": _mlperf,
    "pairs": _pairs,
    "drifts": _drifts,
    "regimes": _regimes,
}


def _from_defaults(table: Series, cases: Cases) -> Named:
    for kind, b in defaults_of(table).items():
        yield kind, _of_series(table, b, cases.drawn)


def _of_series(table: Series, default: int, seeds: Sequence[int]) -> Recurring:
    truths = table.truths(default)
    job = table.job(default, OURS)
    return Recurring(job, truths[0], len(truths), dict(enumerate(truths)), seeds)


def _of_drift(drift: Drift, cases: Cases) -> Recurring:
    job = drift.before.job(expected_runs=drift.expected_runs, audit=drift.audit)
    return Recurring(job, drift.before, drift.recurrences, drift.shifts, cases.drawn)
