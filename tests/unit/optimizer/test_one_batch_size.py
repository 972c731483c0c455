"""One batch size in the list (section 7): nothing to choose, and the power limit is still found."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.model.cost import Weights, best_limit
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, ProfileSample, State
from airflow_provider_zeus.optimizer.policy import Belief, choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.strategies import make_trial

B = 256
STEPS = 200


def job_of(policy: str) -> ZeusJob:
    return ZeusJob(
        batch_sizes=[B],
        default_batch_size=B,
        target="acc >= 0.9",
        max_epochs=20,
        policy=policy,
        device="simulated:v100/shufflenet",
    )


class Recurring:
    """A job of one batch size that recurs on a simulated V100, in real runs."""

    def __init__(self, policy: str, tmp: Path) -> None:
        self.job = job_of(policy)
        self.tmp = tmp
        self.number = 0
        self.belief: Belief = prior(self.job)
        self.profile: tuple[ProfileSample, ...] = ()
        self.device: DeviceInfo | None = None

    def recur(self) -> list[ResultLine]:
        self.number += 1
        decision = choose(
            Situation(
                self.job, self.belief, profiles=self.profile, device=self.device, seed=self.number
            )
        )
        assert [a.batch_size for a in decision.attempts] == [B]
        assert not decision.attempts[0].bounded
        plan = Plan(
            job_id="dag.train",
            ti_id=f"ti-{self.number}",
            number=self.number,
            first_attempt=1,
            spec=self.job.to_dict(),
            attempts=decision.attempts,
            seed=decision.seed,
            state_dir=str(self.tmp),
            profile=self.profile,
        )
        gpu = SimulatedGpu("v100", load="shufflenet", state_file=self.tmp / "gpu")
        lines: list[ResultLine] = []
        ZeusRun.from_plan(plan, device=gpu, sink=lines.append).train(train)
        end = next(line for line in lines if line.kind == "end")
        assert end.observation is not None
        self.device = gpu.info
        self.profile += tuple(s for line in lines for s in line.profile)
        seen = end.observation.to_dict()
        trial = make_trial(
            self.number, B, State.CONVERGED, job=self.job, phase=decision.attempts[0].phase, **seen
        )
        self.belief = learn(self.belief, trial)
        return lines


def train(run: ZeusRun) -> None:
    for epoch in run.epochs():
        for _ in range(STEPS):
            run.step(B)
        run.report(acc=0.95 if epoch == 9 else 0.5)


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_one_batch_size_is_run_each_time_and_its_power_limit_is_found(
    policy: str, tmp_path: Path
) -> None:
    recurring = Recurring(policy, tmp_path)
    for _ in range(4):
        lines = recurring.recur()
    limits = {s.limit_w for s in recurring.profile}
    assert recurring.device is not None
    best = best_limit(recurring.profile, Weights.of(recurring.job, recurring.device))
    assert best is not None
    assert {best[0] - 25, best[0], best[0] + 25, 250.0} <= limits, (
        "both neighbours, and where it began"
    )
    seen = next(line.observation for line in lines if line.kind == "end")
    assert seen is not None
    assert seen.power_limit_w == best[0] < 250.0
    assert not [s for line in lines for s in line.profile], "what is known is not profiled again"
    assert {b for _, b, _ in recurring.belief.converged} == {B}
