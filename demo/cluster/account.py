"""Checks that every trial is accounted for, and the totals of each job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.units import counted, energy_text
from demo.cluster.scenario import Played, Where, kept

ENDED = (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED, State.FAILED, State.ABANDONED)
HEAD = (
    "job",
    "runs",
    "models",
    "attempts",
    *(state.value for state in ENDED),
    "energy",
    "GPU time",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """One job: its recurrences, how many of them kept a model, trials,
    and their energy and time (simulated).
    """

    job: str
    recurrences: int
    models: int
    states: Mapping[State, int]  # of attempts
    energy_j: float
    time_s: float


def row(job: str, trials: Sequence[Trial], recurrences: int) -> JobTotals:
    """Return the totals of a job.

    A cost lost with its worker counts as far as its heartbeats reported it.
    """
    return JobTotals(
        job=job,
        recurrences=recurrences,
        models=len(kept({job: trials})),
        states=Counter(t.state for t in trials),
        energy_j=sum(t.observation.energy_j or 0.0 for t in trials),
        time_s=sum(t.observation.time_s or 0.0 for t in trials),
    )


def problems(
    log: Mapping[str, Sequence[Trial]], played: Played, drawn_j: float, saved: set[Where]
) -> list[str]:
    """Return the problems of the log, one line each; there should be none.

    :param drawn_j: energy that the workers' GPUs drew in all [J]; the log may hold no more of it.
    :param saved: recurrences whose model is on disk.
    """
    found = [
        f"{job} {run} ended as {state}"
        for (job, run), state in played.states.items()
        if state != "success"
    ]
    expected = set(played.recurrences())
    models = kept(log)
    for where in sorted(expected):
        if len(models.get(where, [])) != 1:
            found.append(f"{where} kept {len(models.get(where, []))} models")
        if where not in saved:
            found.append(f"{where} has no model on disk")
    for job, trials in log.items():
        found += _of_job(job, trials, expected)
    logged_j = sum(t.observation.energy_j or 0.0 for trials in log.values() for t in trials)
    if logged_j > drawn_j * 1.001:
        found.append(
            f"the log holds {logged_j:.0f} J, but the GPUs drew only {drawn_j:.0f} J: something"
            " counts twice"
        )
    if not played.cut_short:
        found.append("no worker was killed in the middle of a training")
    return found


def _of_job(job: str, trials: Sequence[Trial], expected: set[Where]) -> list[str]:
    found = []
    numbers = [t.number for t in trials]
    if sorted(numbers) != list(range(1, len(numbers) + 1)):
        found.append(f"{job}: numbers of attempts are not 1 to {len(numbers)}, each once")
    twice = [
        key
        for key, count in Counter((t.key.ti_id, t.key.attempt) for t in trials).items()
        if count > 1
    ]
    starts = [t.observation.start_id for t in trials if t.observation.start_id]
    if twice:
        found.append(f"{job}: {counted(len(twice), 'attempt')} twice in the log")
    if any(count > 2 for count in Counter(starts).values()):  # a start has at most two attempts
        found.append(f"{job}: one start of a training is more than two observations")
    for t in trials:
        if t.state is State.RUNNING:
            found.append(f"{job}: attempt {t.number} is still open")
        if (job, t.origin.run_id, t.origin.map_index) not in expected:
            found.append(f"{job}: attempt {t.number} belongs to no run")
    return found


def table(rows: Sequence[JobTotals]) -> list[str]:
    """Return the table's lines, one per job."""
    lines = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    padded = [
        [cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return [
        "  ".join([line[0].ljust(widths[0]), *cells[1:]])
        for line, cells in zip(lines, padded, strict=True)
    ]


def _cells(row: JobTotals) -> tuple[str, ...]:
    counts = [
        row.recurrences,
        row.models,
        sum(row.states.values()),
        *(row.states.get(s, 0) for s in ENDED),
    ]
    return (row.job, *map(str, counts), energy_text(row.energy_j), f"{row.time_s:.0f} s")
