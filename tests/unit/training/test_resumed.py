"""A training that goes on from a checkpoint does not count as trained in the epochs that were
left.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.cost import Rates
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Observation, State, TrialKey
from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop, steps


def from_checkpoint(run: ZeusRun, *, had: int = 5, reached: int = 7) -> list[int]:
    run.resumed(epochs=had)
    seen = []
    for epoch in run.epochs():
        seen.append(epoch)
        steps(run)
        run.report(acc=0.9 if epoch + 1 >= reached else 0.5)
    return seen


def test_epochs_go_on_where_the_checkpoint_was_and_are_not_learnt(kit: Kit) -> None:
    assert kit.run().train(from_checkpoint) == [5, 6]
    (end,) = kit.ends()
    seen = end.observation
    assert (end.state, seen.epochs, seen.samples) == (State.CONVERGED, None, 2 * 51_200)
    assert "5 epochs" in seen.reasons["epochs"]
    assert Rates.of(seen) is not None, "what an epoch costs is learnt"


def test_max_epochs_counts_what_the_checkpoint_had(kit: Kit) -> None:
    assert kit.run(max_epochs=8).train(from_checkpoint, had=5, reached=99) == [5, 6, 7]
    assert kit.ends()[0].state is State.EXHAUSTED


def test_it_is_called_before_the_first_epoch_and_fits_into_max_epochs(kit: Kit) -> None:
    def late(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.resumed(epochs=1)

    with pytest.raises(ReportError, match="an epoch has begun"):
        kit.run().train(late)
    for had in (-1, 10):
        with pytest.raises(ReportError, match=rf"epochs={had}\): .*max_epochs = 10"):
            kit.run().train(from_checkpoint, had=had)


def test_each_attempt_says_it_for_itself(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        if run.attempt == 1:
            run.resumed(epochs=3)
        return loop(run, epochs=2 if run.attempt == 2 else 99)

    run = kit.run(explore(1024), incumbent(256))
    assert run.train(train) == 256
    assert [e.observation.epochs for e in kit.ends()] == [None, 2.0]


def too_good(caplog: pytest.LogCaptureFixture) -> bool:
    return any(
        r.levelno == logging.WARNING and "attempt_dir" in r.getMessage() for r in caplog.records
    )


@pytest.mark.parametrize(("first", "said"), [(1, True), (3, False)])
def test_a_target_reached_at_once_after_a_long_attempt_is_warned_about(
    kit: Kit, caplog: pytest.LogCaptureFixture, first: int, said: bool
) -> None:
    run = kit.run(explore(1024, bound_epochs=4.0), incumbent(256))
    run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else first))
    assert too_good(caplog) is said


def test_only_an_attempt_of_its_size_or_the_last_one_gets_the_checkpoint_of_an_earlier_try(
    kit: Kit,
) -> None:
    held = Checkpoint(
        path="/c", epochs=3, batch_size=256, key=TrialKey("ti-0"), observation=Observation()
    )
    seen: list[tuple[int, bool]] = []

    def train(run: ZeusRun) -> int:
        seen.append((run.batch_size, run.checkpoint is not None))
        return loop(run, epochs=2 if run.attempt == 2 else 99)

    run = kit.run(explore(1024), incumbent(256))
    run.checkpoints = Checkpoints(held)
    assert run.train(train) == 256
    assert seen == [(1024, False), (256, True)]


@pytest.mark.parametrize(
    ("metric", "target", "state"),
    [
        (0.5, "acc >= 0.9", State.EXHAUSTED),
        (0.95, "acc >= 0.9", State.CONVERGED),
        (0.5, "acc >= runtime", "converged"),
    ],
)
def test_a_retry_goes_on_from_a_checkpoint_that_is_complete_and_trains_nothing(
    kit: Kit, metric: float, target: str, state: str
) -> None:
    kept: list[Checkpoint] = []
    seen: list[int] = []

    def train(run: ZeusRun) -> str:
        if target.endswith("runtime") and not run.checkpoint:
            run.set_target(0.4)
        if run.checkpoint:
            run.resumed(epochs=run.checkpoint.epochs)
        for epoch in run.epochs():
            seen.append(epoch)
            steps(run)
            run.report(acc=metric if epoch == 2 else 0.1)
            run.checkpointed("/c", epochs=epoch + 1)
        if len(kept) == 3 and not run.checkpoint:
            raise ConnectionError("the model's registry is away")
        return "kept"

    first = kit.run(max_epochs=3, target=target)
    first.checkpoints = Checkpoints(keep=kept.append)
    with pytest.raises(ConnectionError):
        first.train(train)
    retry = kit.run(max_epochs=3, target=target)
    retry.checkpoints = Checkpoints(kept[-1])
    assert retry.train(train) == "kept"
    assert seen == [0, 1, 2]
    end = kit.ends()[-1]
    assert (end.state, end.observation.metric, end.observation.epochs) == (state, metric, None)


def test_of_a_complete_checkpoint_that_a_retry_found_itself_no_metric_is_known(kit: Kit) -> None:
    """Whether it reached the target is not known, so the retry does not fail for it."""
    run = ZeusRun.from_plan(kit.plan(require_target=True), sink=kit.lines.append, try_number=2)
    kit.runs.append(run)
    assert run.train(from_checkpoint, had=10) == []
    assert (kit.ends()[-1].state, kit.ends()[-1].observation.metric) == (State.NO_METRIC, None)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_of_a_retry_takes_a_complete_checkpoint(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    environ = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "ZEUS_TRY": "2",
    }
    for name, value in {**environ, "ZEUS_PLAN": kit.plan().to_json()}.items():
        monkeypatch.setenv(name, value)
    run = ZeusRun.from_env()
    kit.runs.append(run)
    run.resumed(epochs=10)
    assert run.progress.present.complete


def test_a_start_does_not_go_on_from_the_checkpoint_of_the_start_that_failed_before_it(
    kit: Kit,
) -> None:
    """Neither in the try that follows, nor in its retry, which trains another start alone:
    both have one batch size.
    """
    kept: list[Checkpoint] = []
    seen: list[tuple[str, str | None]] = []

    def train(run: ZeusRun) -> None:
        seen.append((run.planned_start, run.checkpoint.path if run.checkpoint else None))
        for epoch in run.epochs():
            steps(run)
            run.report(acc=0.95 if run.planned_start == "cold" else 0.1)
            run.checkpointed(f"/{run.planned_start}", epochs=epoch + 1)
            if run.planned_start == "warm":
                raise ArithmeticError("the weights are not finite")

    warm = replace(incumbent(256), start=Start.WARM, bound_cost=1e9)
    cold = replace(incumbent(256), start=Start.COLD)
    for attempts in ((warm, cold), (warm, cold), (cold,)):
        run = kit.run(*attempts, starts=["cold", "warm"], policy="knowledge_gradient")
        run.checkpoints = Checkpoints(kept[0] if kept else None, kept.append)
        run.train(train)
    assert [held.start for held in kept] == ["warm", "cold", "warm", "cold", "cold"]
    assert seen == [
        ("warm", None),
        ("cold", None),
        ("warm", "/warm"),
        ("cold", None),
        ("cold", None),
    ]


def test_a_checkpoint_that_cannot_be_kept_fails_no_training(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def full(checkpoint: Checkpoint) -> None:
        raise ConnectionError("the api-server is gone")

    def train(run: ZeusRun) -> str:
        for epoch in run.epochs():
            steps(run)
            run.report(acc=0.95)
            run.checkpointed("/c", epochs=epoch + 1)
        return "kept"

    run = kit.run()
    run.checkpoints = Checkpoints(keep=full)
    assert run.train(train) == "kept"
    assert "keep where the checkpoint lies" in caplog.text
