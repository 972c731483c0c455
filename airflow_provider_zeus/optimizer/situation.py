"""The situation that a decision is made in: all that both policies know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Lineage, Phase, ProfileSample, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.reasons import Why

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes


class Situation(NamedTuple):
    """All that a decision follows from.

    :param device: device of the recurrence; None: that of the newest trial.
    :param profiles: profile samples of this job on this device.
    :param running: the job's open trials (section 4.4, concurrent submissions).
    :param seed: seed of the decision; see :func:`.decision_seed`.
    :param settings: live settings; all are read but ``excluded``, which the belief knows.
        ``pinned_by``: the name of the pin, if it is none of them.
    :param run_type: run type of the recurrence;
        one that is not in ``job.learn_from`` explores nothing.
    :param runs_left: recurrences after this one, if the schedule says so; ``job.expected_runs``
        comes first. None: many. The policy "zeus" does not use it.
    :param finish_by_s: when the recurrence has to end [s since the epoch]; None: no deadline. The
        policy "zeus" does not use it to choose a batch size; its power limit is chosen by it.
    :param now_s: the present time, of the same clock.
    :param lineage: the earlier model of the recurrence, which a job with ``starts`` may start from.
    :param recurrence: names the run that is decided (:attr:`.Trial.recurrence`):
        its earlier tries may have failed.
    :param times: set by :func:`.choose`, if there is a deadline.
    """

    job: ZeusJob
    belief: Belief
    device: DeviceInfo | None = None
    profiles: Sequence[ProfileSample] = ()
    running: Sequence[Trial] = ()
    seed: int = 0
    settings: Mapping[str, Any] = MappingProxyType({})
    run_type: str | None = None
    runs_left: int | None = None
    finish_by_s: float | None = None
    now_s: float = 0.0
    lineage: Lineage | None = None
    recurrence: Sequence[str] = ()
    times: RunTimes | None = None

    @property
    def obstacle(self) -> str | None:
        """Why no other batch size may be tried now; None if one may. Each run says so."""
        job = self.job
        if self.settings.get("pause_exploration"):
            return Why.PAUSED.of()
        if self.run_type is not None and self.run_type not in job.learn_from:
            return Why.RUN_TYPE.of(run_type=self.run_type)
        # concurrent runs of Thompson sampling draw different sizes; under the other policy they
        # would try the same one
        tries = [trial for trial in self.running if trial.planned.phase.exploring]
        if job.policy != "zeus":
            tries = [trial for trial in self.running if trial.planned.tried]
        audits = [trial for trial in self.running if trial.planned.phase is Phase.AUDIT]
        for other in (*tries, *audits):
            return Why.OTHER_RUN.of(b=other.batch_size)
        return None


def start_at(default: int, feasible: Sequence[int]) -> int:
    """The default; if it is infeasible the next smaller feasible size, else the smallest one.

    :param feasible: ascending.
    """
    if not feasible:
        return default
    return max((b for b in feasible if b <= default), default=feasible[0])


def start_name(job: ZeusJob, start: int) -> str:
    """The name of the size that :func:`start_at` gives."""
    return (Why.DEFAULT if start == job.default_batch_size else Why.NEAREST).of()
