"""From the trial log to the rows, totals and details of the pages. Pure.

Every cost is computed with the job's present eta, so that runs compare. A run's cost is the sum of
its attempts and tries; if one of them is missing, the sum is a lower bound. Figures of different
sources are never added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Self

from airflow_provider_zeus.model.cost import Weights, observed_cost, weights_of
from airflow_provider_zeus.model.groups import grouped, sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import Observation, State, Trial, TrialKey, timed
from airflow_provider_zeus.plugin.answer_parts import AttemptState, Detail, Figure, RunRow, Total
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.reports.dataset import runs_of, total
from airflow_provider_zeus.units import devices

NOT_STORED = "not yet stored"
ToFigure = Callable[[float], Figure]


def rows_of(
    trials: Iterable[Trial], job: ZeusJob, pending: Collection[TrialKey] = ()
) -> list[RunRow]:
    """One row per run (and map index), newest first. ``pending``: trials without a stored cost."""
    trials = list(trials)
    numbers = RunNumbers(trials)
    return [_row(run, job, numbers, pending=pending) for run in reversed(runs_of(trials))]


def _row(
    run: Sequence[Trial], job: ZeusJob, numbers: RunNumbers, *, pending: Collection[TrialKey]
) -> RunRow:
    first = run[0]
    last = run[-1]
    origin = first.origin
    measured = timed(run)
    costs: dict[TrialKey, float | None] = {}
    units = set()
    for trial in measured:
        weights = weights_of(job, trial.observation)
        units.add(weights.unit)
        costs[trial.key] = observed_cost(trial.observation, weights)
    sources = [trial.observation.energy_source for trial in measured]
    mixed = None
    # The sum of a GPU's counter and an estimate of the processors would mean nothing.
    if len({*sources}) > 1 or len(units) > 1:
        names = " and ".join(sorted({words.source(source) for source in sources}))
        mixed = (
            f"Its attempts were measured in different ways ({names}); such figures are not added."
        )
    unit = "J"
    if units == {"s"}:
        unit = "s"
    energy_j = sum_of_known(trial.observation.energy_j for trial in run)

    def cost_figure(cost: float) -> Figure:
        return words.cost(cost, unit, energy_j)

    cost = _Attempts(run, [costs.get(trial.key) for trial in run], "energy_j")
    return RunRow(
        number=numbers.run(first),
        run_id=origin.run_id,
        task_id=origin.task_id,
        map_index=origin.map_index if origin.map_index >= 0 else None,
        run_type=origin.run_type,
        data_slice=last.origin.data_slice,
        slice_text=words.data_slice(last.origin.data_slice),
        began_at=first.opened_at,
        attempts=[_attempt_state(trial) for trial in run],
        limit=_one(last, "power_limit_w", words.watts),
        epochs=_Attempts.of(run, "epochs").sum(words.epochs),
        energy=_Attempts.of(run, "energy_j").sum(words.energy, mixed),
        time=_Attempts.of(run, "time_s").sum(words.duration, mixed),
        cost=cost.sum(cost_figure, mixed),
        unit=unit,
        phase=words.phase(first.planned.phase),
        explored=first.planned.tried,
        why=first.planned.why,
        state=last.state.value,
        state_text=_state_text(last, pending),
        state_why=words.ended(last) + words.why_cold(last),
        source=words.badge(sources, words.why_no_energy(last)),
    )


def _attempt_state(trial: Trial) -> AttemptState:
    start = words.start(trial)
    return AttemptState(
        batch_size=trial.batch_size,
        state=trial.state.value,
        state_text=words.state(trial.state) + start,
        start=trial.observation.start if start else None,
    )


def _state_text(trial: Trial, pending: Collection[TrialKey]) -> str:
    if trial.key in pending and trial.state.awaits_result:
        return NOT_STORED
    return words.state(trial.state) + words.start(trial)


def _one(trial: Trial, name: str, to_figure: ToFigure) -> Figure:
    value = getattr(trial.observation, name)
    if value is None:
        return words.missing(_why_missing(trial, name))
    return to_figure(value)


def _why_missing(trial: Trial, name: str) -> str:
    reasons = trial.observation.reasons
    if name in reasons:
        return reasons[name]
    if trial.state is State.RUNNING:
        return "not measured yet"
    return trial.reason or "not measured"


class _Attempts(NamedTuple):
    """One figure of each attempt of a run. ``name``: of its field, which has reasons of gaps."""

    run: Sequence[Trial]
    values: Sequence[float | None]
    name: str

    @classmethod
    def of(cls, run: Sequence[Trial], name: str) -> Self:
        return cls(run, [getattr(trial.observation, name) for trial in run], name)

    def sum(self, to_figure: ToFigure, mixed: str | None = None) -> Figure:
        """The sum; an incomplete one has a text and no value, so that no total includes it.

        :param mixed: why the figures cannot be added.
        """
        if mixed:
            return words.missing(mixed)
        gaps = [trial for trial, value in zip(self.run, self.values, strict=True) if value is None]
        # Without any figure the reason is all that can be told.
        if len(gaps) == len(self.run):
            return words.missing(_why_missing(gaps[-1], self.name))
        total = to_figure(sum_of_known(self.values))
        # Without a value no total includes what still grows.
        if any(trial.state is State.RUNNING for trial in self.run):
            return Figure(text=f"{total.text} so far", exact=total.exact)
        if gaps:
            why = "; ".join(f"{words.sized(t)}: {_why_missing(t, self.name)}" for t in gaps)
            exact = f"{total.exact}, and more that is not known ({why})"
            return Figure(text=f"≥ {total.text}", exact=exact)
        return total


def totals_of(rows: Iterable[RunRow]) -> list[Total]:
    """Sums over the rows whose cost is known, one for each source."""
    with_cost = (row for row in rows if row.cost.value is not None)
    groups = grouped(with_cost, lambda row: (row.source.text, row.unit))
    return [
        Total(
            source=group[0].source,
            runs=len(group),
            energy=_added([row.energy for row in group], words.energy),
            time=_added([row.time for row in group], words.duration),
        )
        for group in groups.values()
    ]


def _added(figures: Sequence[Figure], to_figure: ToFigure) -> Figure:
    whole = total(figure.value for figure in figures)
    # A sum that lacks a part looks like a saving.
    if whole is None:
        return Figure(exact="one of them is not known")
    return to_figure(whole)


def detail_of(
    trial: Trial, job: ZeusJob, numbers: RunNumbers, pending: Collection[TrialKey] = ()
) -> Detail:
    """An attempt of a run. ``pending``: trials whose cost is not yet stored."""
    observation = trial.observation
    where = trial.origin.task_id
    if trial.origin.map_index >= 0:
        where += f" [{trial.origin.map_index}]"
    sentences = (words.ended, words.why_cold, words.host, words.hidden_gpu)
    sources = []
    if observation.time_s is not None:
        sources.append(observation.energy_source)
    busy = None
    if observation.gpu_busy is not None or "gpu_busy" in observation.reasons:
        busy = _one(trial, "gpu_busy", words.share)
    return Detail(
        where=where,
        number=numbers.attempt(trial),
        batch_size=trial.batch_size,
        state=trial.state.value,
        state_text=_state_text(trial, pending),
        phase=words.phase(trial.planned.phase),
        why=trial.planned.why,
        ended="".join(sentence(trial) for sentence in sentences),
        limit=_one(trial, "power_limit_w", words.watts),
        epochs=_one(trial, "epochs", words.epochs),
        energy=_one(trial, "energy_j", words.energy),
        time=_one(trial, "time_s", words.duration),
        excess=_excess(observation, weights_of(job, observation)),
        busy=busy,
        device=devices(observation.device_model or "", observation.device_count),
        source=words.badge(sources, words.why_no_energy(trial)),
    )


def _excess(observation: Observation, weights: Weights) -> Figure | None:
    """The cost of profiling beyond the same samples at the chosen limit.

    It is energy or time, or a share of both together. None: none, a share under .5 %, or not known.
    """
    if observation.excess_s is None:
        return None
    # Eq. 2 needs the energy unless time alone counts.
    if weights.eta != 0 and observation.excess_j is None:
        return None
    excess = weights.cost(observation.excess_j, observation.excess_s)
    if not excess:
        return None
    figure = words.cost(abs(excess), weights.unit)
    # Joules of both together would be taken for energy.
    if not weights.one_alone:
        cost = observed_cost(observation, weights)
        if not cost or abs(excess) < 0.005 * cost:
            return None
        figure = words.share(abs(excess) / cost)
    # The value keeps its sign for sorting; the text says it in words.
    figure.value = excess
    if excess < 0:
        figure.text = f"−{figure.text}"
        figure.exact = "it took less than training at the limit in force after it"
    return figure
