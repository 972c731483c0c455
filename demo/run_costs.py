"""Cost of each scheduled run, from the run log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Phase, State, Trial
from demo.baseline import Baseline

HALF = Weights(0.5, 1.0)  # how the demo's costs weigh energy and time, to tell them in words


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """One scheduled run: its attempts, their cost (all attempts and tries),
    and the baseline's cost.

    An unknown figure is None.
    """

    slice_key: str
    attempts: tuple[tuple[int, State], ...]
    kept: bool
    limit_w: float | None  # of the last attempt
    epochs: float | None
    energy_j: float | None
    time_s: float | None
    cost_j: float | None
    phase: Phase  # of the first attempt
    why: str
    source: str | None
    baseline: Baseline | None = None

    @property
    def exploiting(self) -> bool:
        """Whether the run used the best known batch size instead of exploring."""
        return not self.phase.exploring


def run_costs(trials: Iterable[Trial], baselines: Mapping[str, Baseline]) -> list[RunCost]:
    """Group trials into runs, in the order in which the runs began."""
    ordered = sorted(trials, key=lambda t: t.number)
    first = {t.origin.run_id: t.number for t in reversed(ordered)}
    by_run = sorted(ordered, key=lambda t: (first[t.origin.run_id], t.number))
    return [
        _of_run(list(run), baselines) for _, run in groupby(by_run, key=lambda t: t.origin.run_id)
    ]


def _of_run(run: list[Trial], baselines: Mapping[str, Baseline]) -> RunCost:
    key = run[0].origin.data_slice or ""
    last = run[-1]
    return RunCost(
        slice_key=key,
        attempts=tuple((t.batch_size, t.state) for t in run),
        kept=last.state.kept_model,
        limit_w=last.observation.power_limit_w,
        epochs=_sum(t.observation.epochs for t in run),
        energy_j=_sum(t.observation.energy_j for t in run),
        time_s=_sum(t.observation.time_s for t in run),
        cost_j=_sum(_cost_j(t) for t in run),
        phase=run[0].planned.phase,
        why=run[0].planned.why,
        source=last.observation.energy_source,
        baseline=baselines.get(key),
    )


def _cost_j(trial: Trial) -> float | None:
    seen = trial.observation
    device = DeviceInfo(
        model=seen.device_model or "unknown",
        count=seen.device_count or 1,
        max_power_w=seen.max_power_w,
        energy_source=seen.energy_source,
    )
    return observed_cost(seen, Weights.of(ZeusJob.from_dict(trial.spec), device))


def _sum(figures: Iterable[float | None]) -> float | None:
    """Sum of the figures; None where one is unknown: a partial sum would look like a saving."""
    total = 0.0
    for figure in figures:
        if figure is None:
            return None
        total += figure
    return total
