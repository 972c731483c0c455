"""The callback in the real Lightning ``Trainer``, on a linear model and synthetic data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import BATCH_SIZE, State
from airflow_provider_zeus.training.attempt_steps import AttemptSteps
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.integrations.conftest import SIZES, imported, left_behind, refused
from tests.unit.training.conftest import Kit, RealClock, explore, incumbent

SAMPLES = 100


@pytest.fixture(scope="module")
def pl() -> Iterator[ModuleType]:
    """:mod:`tests.unit.integrations.lightning_kit`."""
    with imported("lightning") as module:
        yield module


def test_a_metric_that_is_logged_in_training(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = pl.Training(tmp_path, validates=False)
    kit.run(incumbent(16), **SIZES).train(training)
    last = kit.last()
    assert (kit.ends()[-1].state, round(last.metric or 0, 6), last.epochs) == (
        State.CONVERGED,
        0.9,
        3.0,
    )
    assert (last.samples, last.samples_per_epoch) == (3 * SAMPLES, SAMPLES)
    assert (training.counts[0].begun, training.counts[0].steps) == (3, 3 * 7)


def test_what_the_module_logs_at_the_end_of_an_epoch_is_reported_with_it(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    left: list[Any] = []

    def train(run: ZeusRun) -> int:
        data = DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=run.batch_size)
        mine = pl.trainer(run, tmp_path)
        before = list(mine.callbacks)
        try:
            mine.fit(module := pl.LogsLate(3), data, data)
        finally:
            left.append(mine.callbacks == before)
        return module.begun

    assert kit.run(explore(32, bound_epochs=1.0), incumbent(16), **SIZES).train(train) == 3
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [
        (State.GIVEN_UP, 1),
        (State.CONVERGED, 3),
    ]
    assert left == [True, True], "the trainer's callbacks are as they were"


@pytest.mark.parametrize("changes", [{}, {"max_steps": 70}], ids=str)
def test_a_module_may_accumulate_gradients_by_itself(
    pl: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Nobody knows then how many steps an epoch has."""

    def train(run: ZeusRun) -> None:
        data = TensorDataset(torch.randn(SAMPLES, 4))
        pl.trainer(run, tmp_path, **changes).fit(
            pl.Manual(3), DataLoader(data, batch_size=8), DataLoader(data, batch_size=50)
        )

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().reasons.get(BATCH_SIZE)) == (3 * SAMPLES, None)


def test_the_trainer_of_the_other_package(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")

    class LogsLate(other.LightningModule):  # type: ignore[misc, name-defined]
        training_step = pl.Linear.training_step
        configure_optimizers = pl.Linear.configure_optimizers
        epochs = 3
        validates = True
        acc = pl.Linear.acc
        on_train_epoch_end = pl.LogsLate.on_train_epoch_end

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

    def train(run: ZeusRun) -> None:
        callbacks = [pl.ZeusCallback(run)]
        end = run.job.max_epochs
        trainer = other.Trainer(
            callbacks=callbacks, default_root_dir=tmp_path, max_epochs=end, **pl.QUIET
        )
        trainer.fit(LogsLate(), DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=16))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)


@pytest.mark.parametrize("stream", [False, True], ids=["sized", "stream"])
def test_the_runs_own_loader_counts_once(
    pl: ModuleType, kit: Kit, tmp_path: Path, stream: bool
) -> None:
    data = TensorDataset(torch.randn(SAMPLES, 4))

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(data)

    def train(run: ZeusRun) -> None:
        loader = run.data_loader(Stream() if stream else data)
        pl.trainer(run, tmp_path).fit(pl.Linear(3), loader, DataLoader(data, batch_size=50))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (3 * SAMPLES, SAMPLES)


def test_the_runs_own_loader_is_checked_like_any_other(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    def train(run: ZeusRun) -> None:
        data = TensorDataset(torch.randn(SAMPLES, 4))
        cut = pl.Trainer(
            callbacks=[pl.ZeusCallback(run)],
            default_root_dir=tmp_path,
            accumulate_grad_batches=2,
            **pl.QUIET,
        )
        cut.fit(pl.Linear(3), run.data_loader(data), DataLoader(data, batch_size=50))

    refused(kit, train, JobSpecError, "lightning: the run's own loader, accumulated by 2")


def test_batches_are_counted_whatever_they_look_like(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    """Those of torchvision's detection have one tensor for each image."""

    def train(run: ZeusRun) -> None:
        data = [(torch.rand(3, 4), {"boxes": torch.rand(2, 4)}) for _ in range(SAMPLES)]
        loader = DataLoader(
            data,
            batch_size=run.batch_size,
            collate_fn=lambda items: tuple(zip(*items, strict=True)),
        )
        pl.trainer(run, tmp_path).fit(
            pl.Images(2), loader, DataLoader(TensorDataset(torch.rand(50, 4)), batch_size=50)
        )

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (2 * SAMPLES, SAMPLES)


@pytest.mark.parametrize(
    "changes", [{"limit_val_batches": 0}, {"check_val_every_n_epoch": 20}], ids=str
)
def test_a_metric_that_is_logged_in_training_needs_no_validation(
    pl: ModuleType,
    kit: Kit,
    tmp_path: Path,
    changes: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, validates=False, **changes))
    assert kit.last().epochs == 3
    assert "not every epoch" not in caplog.text


def test_a_least_number_of_steps_within_the_first_epoch_is_no_obstacle(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, min_steps=3))
    assert kit.last().epochs == 3


@pytest.mark.parametrize("limit", ["limit_train_batches", "overfit_batches"])
def test_an_epoch_may_be_a_part_of_the_data(
    pl: ModuleType, kit: Kit, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[float | None] = []
    start_pass = AttemptSteps.start_pass

    def started(steps: AttemptSteps, samples: float | None) -> Callable[[int], None]:
        passes.append(samples)
        return start_pass(steps, samples)

    monkeypatch.setattr(AttemptSteps, "start_pass", started)
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, **{limit: 3}))
    assert passes == [3 * 16] * 3, "known from the first step on"
    assert (kit.last().epochs, kit.last().samples_per_epoch) == (3, 3 * 16)


@pytest.mark.parametrize("sanity", [0, 2])
def test_several_validation_loaders(pl: ModuleType, kit: Kit, tmp_path: Path, sanity: int) -> None:
    several = {"module": pl.Several, "loaders": 2, "num_sanity_val_steps": sanity}
    kit.run(incumbent(16), target="acc/dataloader_idx_1 >= 0.9", **SIZES).train(
        pl.Training(tmp_path, **several)
    )
    assert kit.last().epochs == 3
    named = "acc/dataloader_idx_0, acc/dataloader_idx_1"
    with pytest.raises((JobSpecError, ReportError), match=named):
        kit.run(incumbent(16), **SIZES).train(training := pl.Training(tmp_path, **several))
    assert training.counts[0].begun == (0 if sanity else 1), "the sanity check tells their names"


def test_a_batch_size_that_drops_all_samples_fails_and_the_incumbent_trains(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    def train(run: ZeusRun) -> int:
        loader = DataLoader(
            TensorDataset(torch.randn(20, 4)), batch_size=run.batch_size, drop_last=True
        )
        pl.trainer(run, tmp_path).fit(pl.Linear(1), loader, loader)
        return run.batch_size

    assert kit.run(explore(32), incumbent(16), **SIZES).train(train) == 16
    assert [end.state for end in kit.ends()] == [State.FAILED, State.CONVERGED]
    assert "batch size 32 leaves no batch of 20 samples" in str(kit.ends()[0].reason)


def test_an_empty_data_set_is_no_failure(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> int:
        pl.trainer(run, tmp_path).fit(
            pl.Linear(1), DataLoader(TensorDataset(torch.randn(0, 4)), batch_size=run.batch_size)
        )
        run.progress.present.end_pass(0.0, 2.0)  # another pass, which waits for nothing
        return run.batch_size

    assert kit.run(incumbent(16), on=RealClock(kit), **SIZES).train(train) == 16
    assert [(end.state, end.notes["data_wait_s"]) for end in kit.ends()] == [(State.NO_DATA, 0.0)]


@pytest.mark.parametrize("same", [False, True], ids=["another trainer", "the same one"])
@pytest.mark.parametrize("ends", [True, False], ids=["after the end", "after early stopping"])
def test_a_second_fit(pl: ModuleType, kit: Kit, tmp_path: Path, same: bool, ends: bool) -> None:
    """As in two stages of a fine-tuning: it goes on with the epochs of the first, unless these have ended the run."""
    modules = [pl.Linear(2 if ends else 99), pl.Linear(4)]

    def train(run: ZeusRun) -> None:
        data = DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=16)
        first = pl.trainer(run, tmp_path)
        first.callbacks.append(stop := pl.EarlyStopping("acc", mode="max", patience=1))
        first.fit(modules[0], data, data)
        first.callbacks.remove(stop)
        first.should_stop = False
        (first if same else pl.trainer(run, tmp_path)).fit(modules[1], data, data)

    if ends:
        refused(kit, train, ReportError, "lightning: a second fit after the end")
        assert modules[1].steps == 0
    else:
        kit.run(incumbent(16), **SIZES).train(train)
        assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 4 if same else 6)


def test_a_finder_of_batch_sizes_is_to_be_left_out(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    def train(run: ZeusRun) -> None:
        data = DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=run.batch_size)
        mine = pl.trainer(run, tmp_path)
        module = pl.Linear(3)
        module.batch_size = run.batch_size
        module.train_dataloader = module.val_dataloader = lambda: data
        mine.callbacks.append(pl.BatchSizeFinder())
        mine.fit(module)

    refused(kit, train, JobSpecError, "lightning: a finder of batch sizes")


def test_a_checkpoint_from_after_the_last_epoch_has_nothing_to_train_in_a_retry(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    """Lightning begins no loop then, and announces no training."""
    path = tmp_path / "end.ckpt"

    class Keeps(pl.Callback):  # type: ignore[misc]
        def on_fit_end(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(path)

    first = pl.Training(tmp_path, epochs=99, others=[Keeps()])
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(first)
    retry = kit.run(incumbent(16), max_epochs=2, **SIZES)
    retry.checkpoints = left_behind(kit, epochs=2)
    retry.train(again := pl.Training(tmp_path, ckpt_path=path))
    assert (kit.ends()[-1].state, kit.last().samples) == (State.EXHAUSTED, 0)
    assert again.counts[0].steps == 0
