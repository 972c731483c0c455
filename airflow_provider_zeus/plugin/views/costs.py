"""From the trial log to the rows, totals and details of the pages. Pure.

Every cost is computed with the job's present eta, so that runs compare. A run's cost is the sum of its attempts and
tries; where one of them is missing the sum is a lower bound. Figures of different sources are never added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from airflow_provider_zeus.model.cost import Weights, observed_cost, weights_of
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, State, Trial, TrialKey
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import AttemptState, Detail, Figure, RunRow, Total
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.units import devices

NOT_STORED = "not yet stored"
ToFigure = Callable[[float], Figure]


def rows_of(trials: Iterable[Trial], job: ZeusJob, pending: Collection[TrialKey] = ()) -> list[RunRow]:
    """One row per run (and map index), newest first. ``pending``: trials whose cost is not yet stored."""
    return [_row(run, job, pending) for run in reversed(runs_of(trials))]


def _row(run: Sequence[Trial], job: ZeusJob, pending: Collection[TrialKey]) -> RunRow:
    first, last = run[0], run[-1]
    measured = [t for t in run if t.observation.time_s is not None]
    weights = [weights_of(job, t.observation) for t in measured]
    units = {w.unit for w in weights}
    sources = {t.observation.energy_source for t in measured}
    mixed = None  # why its attempts cannot be added
    if len(sources) > 1 or len(units) > 1:
        names = " and ".join(sorted(words.source(s) for s in sources))
        mixed = f"Its attempts were measured in different ways ({names}); such figures are not added."
    unit = "s" if units == {"s"} else "J"
    costs = {t.key: observed_cost(t.observation, w) for t, w in zip(measured, weights, strict=True)}
    energy_j = math.fsum(t.observation.energy_j or 0.0 for t in run)
    return RunRow(
        run_id=first.origin.run_id,
        task_id=first.origin.task_id,
        map_index=first.origin.map_index if first.origin.map_index >= 0 else None,
        run_type=first.origin.run_type,
        data_slice=last.origin.data_slice,
        slice_text=words.data_slice(last.origin.data_slice),
        began_at=first.opened_at,
        attempts=[
            AttemptState(
                batch_size=t.batch_size,
                state=t.state.value,
                state_text=words.state(t.state) + words.start(t),
                start=t.observation.start if words.start(t) else None,
            )
            for t in run
        ],
        limit=_one(last, "power_limit_w", words.watts),
        epochs=_sum(run, [t.observation.epochs for t in run], "epochs", words.epochs, None),
        energy=_sum(run, [t.observation.energy_j for t in run], "energy_j", words.energy, mixed),
        time=_sum(run, [t.observation.time_s for t in run], "time_s", words.duration, mixed),
        cost=_sum(run, [costs.get(t.key) for t in run], "energy_j", lambda c: words.cost(c, unit, energy_j), mixed),
        unit=unit,
        phase=words.phase(first.planned.phase),
        explored=first.planned.tried,
        why=first.planned.why,
        state=last.state.value,
        state_text=_state_text(last, pending),
        state_why=words.ended(last) + words.why_cold(last),
        source=words.badge([t.observation.energy_source for t in measured]),
    )


def _state_text(trial: Trial, pending: Collection[TrialKey]) -> str:
    waits = trial.state.awaits_result and trial.key in pending
    if waits:
        return NOT_STORED
    return words.state(trial.state) + words.start(trial)


def _one(trial: Trial, name: str, to_figure: ToFigure) -> Figure:
    value = getattr(trial.observation, name)
    return words.missing(_why_missing(trial, name)) if value is None else to_figure(value)


def _why_missing(trial: Trial, name: str) -> str:
    reasons = trial.observation.reasons
    if name in reasons:
        return reasons[name]
    return "not measured yet" if trial.state is State.RUNNING else trial.reason or "not measured"


def _sum(
    run: Sequence[Trial], values: Sequence[float | None], name: str, to_figure: ToFigure, mixed: str | None
) -> Figure:
    """Sum over a run's attempts; an incomplete sum has a text and no value, so that no total includes it."""
    if mixed:
        return words.missing(mixed)
    known = [v for v in values if v is not None]
    gaps = [t for t, v in zip(run, values, strict=True) if v is None]
    if not known:
        return words.missing(_why_missing(gaps[-1], name))
    total = to_figure(sum(known))
    if any(t.state is State.RUNNING for t in run):
        return Figure(text=f"{total.text} so far", exact=total.exact)
    if gaps:
        why = "; ".join(f"{words.sized(t)}: {_why_missing(t, name)}" for t in gaps)
        return Figure(text=f"≥ {total.text}", exact=f"{total.exact}, and more that is not known ({why})")
    return total


def totals_of(rows: Iterable[RunRow]) -> list[Total]:
    """Sums over the rows whose cost is known, one for each source."""
    groups: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        if row.cost.value is not None:
            groups.setdefault((row.source.text, row.unit), []).append(row)
    return [
        Total(
            source=group[0].source,
            runs=len(group),
            energy=_added([r.energy for r in group], words.energy),
            time=_added([r.time for r in group], words.duration),
        )
        for group in groups.values()
    ]


def _added(figures: Sequence[Figure], to_figure: ToFigure) -> Figure:
    values = [f.value for f in figures if f.value is not None]
    return to_figure(sum(values)) if len(values) == len(figures) else Figure(exact="one of them is not known")


def detail_of(trial: Trial, job: ZeusJob, pending: Collection[TrialKey] = ()) -> Detail:
    """An attempt of a run. ``pending``: trials whose cost is not yet stored."""
    seen, origin = trial.observation, trial.origin
    weights = weights_of(job, seen)
    mapped = f" [{origin.map_index}]" if origin.map_index >= 0 else ""
    return Detail(
        where=f"{origin.task_id}{mapped}, try {origin.try_number}",
        batch_size=trial.batch_size,
        state=trial.state.value,
        state_text=_state_text(trial, pending),
        phase=words.phase(trial.planned.phase),
        why=trial.planned.why,
        ended=words.ended(trial) + words.why_cold(trial) + words.host(trial),
        limit=_one(trial, "power_limit_w", words.watts),
        epochs=_one(trial, "epochs", words.epochs),
        energy=_one(trial, "energy_j", words.energy),
        time=_one(trial, "time_s", words.duration),
        excess=_excess(seen, weights),
        busy=None if seen.gpu_busy is None and "gpu_busy" not in seen.reasons else _one(trial, "gpu_busy", words.share),
        device=devices(seen.device_model or "", seen.device_count),
        source=words.badge([seen.energy_source] if seen.time_s is not None else []),
    )


def _excess(seen: Observation, weights: Weights) -> Figure | None:
    """What profiling cost beyond the same samples at the chosen limit; None: under 1 %, or not known.

    Energy or time, or a share of both together.
    """
    known = seen.excess_s is not None and (weights.eta == 0 or seen.excess_j is not None)
    excess, cost = weights.cost(seen.excess_j, seen.excess_s or 0.0) if known else 0.0, observed_cost(seen, weights)
    if not weights.one_alone and abs(excess) < 0.005 * (cost or 0.0):
        return None
    if not excess:
        return None
    figure = words.cost(abs(excess), weights.unit) if weights.one_alone or not cost else words.share(abs(excess) / cost)
    if excess < 0:
        return Figure(
            value=excess, text=f"−{figure.text}", exact="it took less than training at the limit in force after it"
        )
    return figure.model_copy(update={"value": excess})
