"""The callback in the real Lightning ``Trainer``, on a linear model and synthetic data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import BATCH_SIZE, OF_TRAINER, TELL_TRAINER, State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.integrations.conftest import left_behind, one_thread
from tests.unit.training.conftest import Kit, explore, incumbent

SIZES: dict[str, Any] = {"batch_sizes": [16, 32], "default_batch_size": 16, "profile_s": 0.1}
SAMPLES = 100


@pytest.fixture(scope="module")
def pl() -> Iterator[ModuleType]:
    """:mod:`tests.unit.integrations.lightning_kit`."""
    pytest.importorskip("lightning", reason="lightning is not installed: airflow-provider-zeus[lightning]")
    with one_thread():
        yield import_module("tests.unit.integrations.lightning_kit")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="lightning.pytorch")
    caplog.handler.setLevel(logging.NOTSET)  # of our own warnings


@pytest.mark.parametrize("validates", [True, False], ids=["logged in validation", "logged in training"])
def test_a_kept_training(pl: ModuleType, kit: Kit, tmp_path: Path, validates: bool) -> None:
    training = pl.Training(tmp_path, validates=validates)
    assert kit.run(incumbent(16), **SIZES).train(training) == 16
    (end,) = kit.ends()
    seen = kit.last()
    assert (end.state, round(seen.metric or 0, 6), seen.epochs) == (State.CONVERGED, 0.9, 3.0)
    assert (seen.samples, seen.samples_per_epoch) == (3 * SAMPLES, SAMPLES)
    assert (training.models[0].begun, training.models[0].steps) == (3, 3 * 7), "no epoch more than needed"
    assert seen.energy_j


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
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [(State.GIVEN_UP, 1), (State.CONVERGED, 3)]
    assert left == [True, True], "the trainer's callbacks are as they were"


def test_an_attempt_that_is_given_up_leaves_the_trainer_and_the_next_starts_afresh(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = pl.Training(tmp_path, epochs=4)
    run = kit.run(explore(32, bound_epochs=2.0), incumbent(16), **SIZES)
    assert run.train(training) == 16
    assert [(end.batch_size, end.state) for end in kit.ends()] == [(32, State.GIVEN_UP), (16, State.CONVERGED)]
    assert [model.begun for model in training.models] == [2, 4]


def test_a_bound_in_cost_ends_it_in_the_midst_of_an_epoch(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    kit.run(explore(32, bound_cost=1.0), incumbent(16), **SIZES).train(pl.Training(tmp_path))
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


def test_below_the_target_it_ends_after_max_epochs(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = pl.Training(tmp_path, epochs=99)
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(training)
    assert [end.state for end in kit.ends()] == [State.EXHAUSTED]
    assert training.models[0].begun == 2


def test_accumulated_gradients_are_one_step(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = pl.Training(tmp_path, parts=2)
    kit.run(incumbent(16), **SIZES).train(training)
    assert kit.last().samples == 3 * SAMPLES
    assert training.models[0].steps == 3 * 7


def test_a_module_may_accumulate_gradients_by_itself(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> None:
        data = TensorDataset(torch.randn(SAMPLES, 4))
        pl.trainer(run, tmp_path).fit(pl.Manual(3), DataLoader(data, batch_size=8), DataLoader(data, batch_size=50))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().reasons.get(BATCH_SIZE)) == (3 * SAMPLES, None)


def test_the_trainer_of_the_other_package(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning")

    class LogsLate(other.LightningModule):  # type: ignore[misc, name-defined]
        training_step, configure_optimizers = pl.Linear.training_step, pl.Linear.configure_optimizers
        epochs, validates, acc = 3, True, pl.Linear.acc
        on_train_epoch_end = pl.LogsLate.on_train_epoch_end

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

    def train(run: ZeusRun) -> None:
        callbacks, end = [pl.ZeusCallback(run)], run.job.max_epochs
        trainer = other.Trainer(callbacks=callbacks, default_root_dir=tmp_path, max_epochs=end, **pl.QUIET)
        trainer.fit(LogsLate(), DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=16))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)


@pytest.mark.parametrize("stream", [False, True], ids=["sized", "stream"])
def test_the_runs_own_loader_counts_once(pl: ModuleType, kit: Kit, tmp_path: Path, stream: bool) -> None:
    data = TensorDataset(torch.randn(SAMPLES, 4))

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(data)

    def train(run: ZeusRun) -> None:
        loader = run.data_loader(Stream() if stream else data)
        pl.trainer(run, tmp_path).fit(pl.Linear(3), loader, DataLoader(data, batch_size=50))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (3 * SAMPLES, SAMPLES)


def test_the_runs_own_loader_is_checked_like_any_other(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> None:
        data = TensorDataset(torch.randn(SAMPLES, 4))
        cut = pl.Trainer(
            callbacks=[pl.ZeusCallback(run)], default_root_dir=tmp_path, accumulate_grad_batches=2, **pl.QUIET
        )
        cut.fit(pl.Linear(3), run.data_loader(data), DataLoader(data, batch_size=50))

    with pytest.raises(JobSpecError, match="batch size = 32: this attempt runs with 16"):
        kit.run(incumbent(16), **SIZES).train(train)


def test_batches_are_counted_whatever_they_look_like(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    """Those of torchvision's detection have one tensor for each image."""

    def train(run: ZeusRun) -> None:
        data = [(torch.rand(3, 4), {"boxes": torch.rand(2, 4)}) for _ in range(SAMPLES)]
        loader = DataLoader(data, batch_size=run.batch_size, collate_fn=lambda items: tuple(zip(*items, strict=True)))
        pl.trainer(run, tmp_path).fit(pl.Images(2), loader, DataLoader(TensorDataset(torch.rand(50, 4)), batch_size=50))

    kit.run(incumbent(16), **SIZES).train(train)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (2 * SAMPLES, SAMPLES)


@pytest.mark.parametrize(
    ("changes", "target_in", "epochs"),
    [
        ({"val_check_interval": 3}, 3, 3),  # of an epoch's seven batches
        ({"val_check_interval": 0.5}, 3, 3),
        ({"check_val_every_n_epoch": 2}, 3, 4),
        ({"check_val_every_n_epoch": 2, "num_sanity_val_steps": 0}, 3, 4),
        ({"check_val_every_n_epoch": None, "val_check_interval": 10}, 3, 3),
        ({"check_val_every_n_epoch": None, "val_check_interval": 20}, 4, 6),
        ({"check_val_every_n_epoch": None, "val_check_interval": 99}, 3, 10),  # the last epoch is validated
        ({"max_steps": 70}, 3, 3),
        ({"max_steps": 70, "max_epochs": None}, 3, 3),
        ({"num_sanity_val_steps": -1}, 3, 3),
        ({"min_epochs": 1}, 3, 3),
    ],
    ids=str,
)
def test_it_waits_for_a_validation_with_the_metric(
    pl: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], target_in: int, epochs: int
) -> None:
    training = pl.Training(tmp_path, epochs=target_in, **changes)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().samples) == (State.CONVERGED, epochs, epochs * SAMPLES)
    assert (training.models[0].begun, training.models[0].steps) == (epochs, 7 * epochs)


@pytest.mark.parametrize("changes", [{"limit_val_batches": 0}, {"check_val_every_n_epoch": 20}], ids=str)
def test_a_metric_that_is_logged_in_training_needs_no_validation(
    pl: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, validates=False, **changes))
    assert kit.last().epochs == 3
    assert "not every epoch" not in caplog.text


def test_the_last_value_counts_for_an_epoch_without_one_and_that_is_said_once(
    pl: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = pl.Training(tmp_path, epochs=5, check_val_every_n_epoch=2)
    kit.run(explore(32, bound_epochs=1.0), incumbent(16), **SIZES).train(training)
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [(State.GIVEN_UP, 1), (State.CONVERGED, 6)]
    assert kit.ends()[0].observation.metric is None, "nothing was validated by then"
    assert caplog.text.count("not every epoch is evaluated") == 1


@pytest.mark.parametrize("limit", ["limit_train_batches", "overfit_batches"])
def test_an_epoch_may_be_a_part_of_the_data(pl: ModuleType, kit: Kit, tmp_path: Path, limit: str) -> None:
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, **{limit: 3}))
    assert (kit.last().epochs, kit.last().samples_per_epoch) == (3, 3 * 16)


@pytest.mark.parametrize("inside", [True, False], ids=["in train()", "alone"])
def test_a_training_that_stops_early_keeps_its_model(pl: ModuleType, kit: Kit, tmp_path: Path, inside: bool) -> None:
    run = kit.run(incumbent(16), **SIZES)
    training = pl.Training(tmp_path, epochs=99, others=[pl.EarlyStopping("acc", mode="max", patience=2)])
    if inside:
        run.train(training)
    else:
        training(run)
        run.close()
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().metric) == (State.EXHAUSTED, 3, 0.5)
    assert kit.lines[-1].attempt == 1, "its model is kept"


@pytest.mark.parametrize(
    ("step", "epochs", "samples"), [(7, 1, 2 * SAMPLES), (5, 1, 2 * SAMPLES + 32), (10, 1, SAMPLES + 64)]
)
def test_a_resumed_trainer_counts_as_resumed(
    pl: ModuleType, kit: Kit, tmp_path: Path, step: int, epochs: int, samples: int
) -> None:
    """From a checkpoint at the end of an epoch, and within one."""
    keeping = pl.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1)
    saves = {"others": [keeping], "enable_checkpointing": True}
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(pl.Training(tmp_path, epochs=99, **saves))
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, ckpt_path=tmp_path / f"step={step}.ckpt"))
    seen = kit.last()
    assert (kit.ends()[-1].state, seen.epochs, seen.samples) == (State.CONVERGED, None, samples)
    assert f"checkpoint that had trained {epochs} epochs" in seen.reasons["epochs"]


def test_a_checkpoint_that_is_complete_is_refused_but_in_a_retry(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> None:
        first = pl.trainer(run, tmp_path)
        first.fit(pl.Linear(99), data := DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=16), data)
        first.save_checkpoint(tmp_path / "last.ckpt")

    kit.run(incumbent(16), max_epochs=2, **SIZES).train(train)
    with pytest.raises(JobSpecError, match=r"ckpt_path = .*trained all of the job's max_epochs = 2"):
        kit.run(incumbent(16), max_epochs=2, **SIZES).train(pl.Training(tmp_path, ckpt_path=tmp_path / "last.ckpt"))
    for epochs in (2, 99):
        retry = kit.run(incumbent(16), max_epochs=2, **SIZES)
        retry.checkpoints = left_behind(kit, epochs=2)
        retry.train(pl.Training(tmp_path, epochs=epochs, ckpt_path=tmp_path / "last.ckpt"))
        assert (kit.ends()[-1].state, kit.last().samples) == (State.EXHAUSTED, 0)


@pytest.mark.parametrize("sanity", [0, 2])
def test_several_validation_loaders(pl: ModuleType, kit: Kit, tmp_path: Path, sanity: int) -> None:
    several = {"module": pl.Several, "loaders": 2, "num_sanity_val_steps": sanity}
    kit.run(incumbent(16), target="acc/dataloader_idx_1 >= 0.9", **SIZES).train(pl.Training(tmp_path, **several))
    assert kit.last().epochs == 3
    named = "acc/dataloader_idx_0, acc/dataloader_idx_1"
    with pytest.raises((JobSpecError, ReportError), match=named):
        kit.run(incumbent(16), **SIZES).train(training := pl.Training(tmp_path, **several))
    assert training.models[0].begun == (0 if sanity else 1), "the sanity check tells their names"


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"parts": 3}, "batch size = 15: this attempt runs with 16 .*run.local_batch_size"),
        ({"max_epochs": 2}, "max_epochs = 2: the run may need 10.*run.job.max_epochs"),
        ({"max_steps": 5}, "max_steps = 5: the run may need 10 .* after 0.714.*leave max_steps out"),
        ({"max_steps": 60}, "max_steps = 60: the run may need 10"),
        ({"fast_dev_run": True}, "fast_dev_run = True: .*leave it out"),
        ({"barebones": True}, "barebones = True: .*leave it out"),
        ({"min_epochs": 2}, "min_epochs = 2: .*train on after the run's end"),
        ({"min_steps": 8}, "min_steps = 8: .*train on after the run's end"),
        ({"max_time": {"seconds": 0}}, "ended before its first step.*max_time"),
        ({"limit_train_batches": 0}, "ended before its first step.*limit_train_batches"),
        ({"limit_val_batches": 0}, "limit_val_batches = 0: .*does not log the target's 'acc'.*leave it out"),
        ({"loaders": 0}, r"val_dataloaders = None: .*give trainer.fit\(\) a loader"),
        ({"check_val_every_n_epoch": 20}, "check_val_every_n_epoch = 20: .*max_epochs = 10"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    pl: ModuleType, kit: Kit, tmp_path: Path, training: dict[str, Any], said: str
) -> None:
    """A step that the optimizer is about to make is not made."""
    made = pl.Training(tmp_path, **training)
    with pytest.raises(JobSpecError, match=said):
        kit.run(incumbent(16), **SIZES).train(made)
    assert not any(model.optimizers().state for model in made.models if model._trainer is not None)
    assert kit.last().samples in (0, None)


def test_a_trainer_without_an_end_of_its_own(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    kit.run(incumbent(16), **SIZES).train(pl.Training(tmp_path, max_epochs=-1))
    assert kit.last().epochs == 3


def test_a_batch_size_that_drops_all_samples_fails_and_the_incumbent_trains(
    pl: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    def train(run: ZeusRun) -> int:
        loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=run.batch_size, drop_last=True)
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

    assert kit.run(incumbent(16), **SIZES).train(train) == 16
    assert [(end.state, end.notes["data_wait_s"]) for end in kit.ends()] == [(State.NO_DATA, 0.0)]


def test_the_loop_alone_outside_of_train(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    assert pl.Training(tmp_path)(kit.run(incumbent(16), **SIZES)) == 16
    assert [line.kind for line in kit.lines][-2:] == ["end", "final"]
    assert [end.state for end in kit.ends()] == [State.CONVERGED]


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
        with pytest.raises(ReportError, match="one run trains one model"):
            kit.run(incumbent(16), **SIZES).train(train)
        assert modules[1].steps == 0
    else:
        kit.run(incumbent(16), **SIZES).train(train)
        assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 4 if same else 6)


def test_a_metric_that_is_not_there(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"epoch 0 .*'f1' \(only acc, loss came\).*self.log\('f1'"):
        kit.run(incumbent(16), target="f1 >= 0.9", **SIZES).train(pl.Training(tmp_path))


def test_a_finder_of_batch_sizes_is_to_be_left_out(pl: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> None:
        data = DataLoader(TensorDataset(torch.randn(SAMPLES, 4)), batch_size=run.batch_size)
        mine = pl.trainer(run, tmp_path)
        module = pl.Linear(3)
        module.batch_size = run.batch_size
        module.train_dataloader = module.val_dataloader = lambda: data
        mine.callbacks.append(pl.BatchSizeFinder())
        mine.fit(module)

    with pytest.raises(JobSpecError, match=r"callbacks = 'BatchSizeFinder': it changes .* leave the finder out"):
        kit.run(incumbent(16), **SIZES).train(train)


def test_a_trainer_without_the_callback_is_told_of_it(
    pl: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loader is the trainer's: run.data_loader() would be no remedy."""

    def train(run: ZeusRun) -> None:
        data = DataLoader(TensorDataset(torch.randn(10 * SAMPLES, 4)), batch_size=4 * run.batch_size)
        for epoch in run.epochs():
            mine = pl.Trainer(default_root_dir=tmp_path, max_epochs=1, **pl.QUIET)
            mine.fit(pl.Linear(3), data)
            run.report(acc=0.5 * (epoch + 1))

    kit.run(incumbent(16), **SIZES).train(train)
    why = kit.last().reasons[BATCH_SIZE]
    assert why.endswith(OF_TRAINER)
    assert f"{why}. Remedy: {TELL_TRAINER}." in caplog.text
    assert "run.data_loader" not in caplog.text
