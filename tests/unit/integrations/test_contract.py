"""What every framework's callback promises, in the real trainers of Hugging Face and Lightning.

``driver`` is the kit of a framework: its ``Training``, and the functions that stand at the end of its module. What one
framework alone has is tested in a file of its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import BATCH_SIZE, OF_TRAINER, TELL_TRAINER, State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.integrations.conftest import FRAMEWORKS, SIZES, left_behind, refused
from tests.unit.training.conftest import Kit, explore, incumbent

both = pytest.mark.parametrize("driver", FRAMEWORKS, indirect=True)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="lightning.pytorch")
    caplog.handler.setLevel(logging.NOTSET)  # of our own warnings


@both
def test_a_kept_training(driver: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = driver.Training(tmp_path)
    assert kit.run(incumbent(16), **SIZES).train(training) == 16
    (end,) = kit.ends()
    last = kit.last()
    assert (end.state, round(last.metric or 0, 6), last.epochs) == (State.CONVERGED, 0.9, 3.0)
    assert (last.samples, last.samples_per_epoch) == (3 * driver.SAMPLES, driver.SAMPLES), (
        "short last batches are counted as such"
    )
    (count,) = training.counts
    assert (count.begun, count.steps) == (3, 3 * driver.STEPS), "no epoch more than needed"
    assert last.energy_j


@both
def test_the_loop_alone_outside_of_train(driver: ModuleType, kit: Kit, tmp_path: Path) -> None:
    assert driver.Training(tmp_path)(kit.run(incumbent(16), **SIZES)) == 16
    assert [line.kind for line in kit.lines][-2:] == ["end", "final"]
    assert [end.state for end in kit.ends()] == [State.CONVERGED]


@both
def test_an_attempt_that_is_given_up_leaves_the_trainer_and_the_next_starts_afresh(
    driver: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = driver.Training(tmp_path, epochs=4)
    run = kit.run(explore(32, bound_epochs=2.0), incumbent(16), **SIZES)
    assert run.train(training) == 16
    assert [(end.batch_size, end.state) for end in kit.ends()] == [
        (32, State.GIVEN_UP),
        (16, State.CONVERGED),
    ]
    assert [count.begun for count in training.counts] == [2, 4]


@both
def test_a_bound_in_cost_ends_it_in_the_midst_of_an_epoch(
    driver: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    run = kit.run(explore(32, bound_cost=1.0), incumbent(16), **SIZES)
    run.train(driver.Training(tmp_path))
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


@both
def test_below_the_target_it_ends_after_max_epochs(
    driver: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = driver.Training(tmp_path, epochs=99)
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(training)
    assert [end.state for end in kit.ends()] == [State.EXHAUSTED]
    assert training.counts[0].begun == 2


@both
def test_accumulated_gradients_are_one_step(driver: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = driver.Training(tmp_path, parts=2)
    kit.run(incumbent(16), **SIZES).train(training)
    assert kit.last().samples == 3 * driver.SAMPLES
    assert training.counts[0].steps == 3 * driver.STEPS
    assert BATCH_SIZE not in kit.last().reasons


@pytest.mark.parametrize(
    ("driver", "changes", "target_in", "epochs", "evaluations"),
    [
        # the callback asks for them
        ("huggingface", {"eval_strategy": "no"}, 3, 3, 3),
        # of an epoch's three steps
        ("huggingface", {"eval_strategy": "steps", "eval_steps": 2}, 3, 3, 4),
        ("huggingface", {"eval_strategy": "steps", "eval_steps": 3}, 3, 3, 3),
        ("huggingface", {"eval_strategy": "steps", "eval_steps": 6}, 3, 4, 2),
        ("huggingface", {"eval_strategy": "steps", "eval_steps": 500}, 3, 10, 1),
        ("huggingface", {"eval_strategy": "steps", "eval_steps": 0.1}, 3, 3, 3),
        ("huggingface", {"eval_delay": 2}, 3, 3, 2),
        ("huggingface", {"eval_delay": 99}, 3, 10, 1),
        ("huggingface", {"eval_on_start": True}, 3, 3, 4),
        (
            "huggingface",
            {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 7},
            3,
            3,
            2,
        ),
        ("huggingface", {"max_steps": 30}, 3, 3, 3),
        ("huggingface", {"num_train_epochs": 12.5}, 3, 3, 3),
        # of an epoch's seven batches
        ("lightning", {"val_check_interval": 3}, 3, 3, 6),
        ("lightning", {"val_check_interval": 0.5}, 3, 3, 6),
        ("lightning", {"check_val_every_n_epoch": 2}, 3, 4, 2),
        ("lightning", {"check_val_every_n_epoch": 2, "num_sanity_val_steps": 0}, 3, 4, 2),
        ("lightning", {"check_val_every_n_epoch": None, "val_check_interval": 10}, 3, 3, 2),
        ("lightning", {"check_val_every_n_epoch": None, "val_check_interval": 20}, 4, 6, 2),
        # the last epoch is validated
        ("lightning", {"check_val_every_n_epoch": None, "val_check_interval": 99}, 3, 10, 1),
        ("lightning", {"max_steps": 70}, 3, 3, 3),
        ("lightning", {"max_steps": 70, "max_epochs": None}, 3, 3, 3),
        ("lightning", {"num_sanity_val_steps": -1}, 3, 3, 3),
        ("lightning", {"min_epochs": 1}, 3, 3, 3),
        ("lightning", {"max_epochs": -1}, 3, 3, 3),
    ],
    indirect=["driver"],
    ids=str,
)
def test_it_waits_for_an_evaluation_with_the_metric(
    driver: ModuleType,
    kit: Kit,
    tmp_path: Path,
    changes: dict[str, Any],
    target_in: int,
    epochs: int,
    evaluations: int,
) -> None:
    training = driver.Training(tmp_path, epochs=target_in, **changes)
    kit.run(incumbent(16), **SIZES).train(training)
    last = kit.last()
    assert (kit.ends()[-1].state, last.epochs) == (State.CONVERGED, epochs)
    assert last.samples == epochs * driver.SAMPLES
    assert round(last.metric or 0, 6) == 0.9
    (count,) = training.counts
    assert (count.begun, count.steps) == (epochs, epochs * driver.STEPS), "no step after the end"
    assert count.evaluations == evaluations


@both
def test_the_last_value_counts_for_an_epoch_without_one_and_that_is_said_once(
    driver: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = driver.Training(tmp_path, epochs=5, **driver.EVERY_SECOND_EPOCH)
    kit.run(explore(32, bound_epochs=1.0), incumbent(16), **SIZES).train(training)
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [
        (State.GIVEN_UP, 1),
        (State.CONVERGED, 6),
    ]
    assert kit.ends()[0].observation.metric is None, "nothing was evaluated by then"
    assert caplog.text.count("not every epoch is evaluated") == 1


@both
@pytest.mark.parametrize("inside", [True, False], ids=["in train()", "alone"])
def test_a_training_that_stops_early_keeps_its_model(
    driver: ModuleType, kit: Kit, tmp_path: Path, inside: bool
) -> None:
    run = kit.run(incumbent(16), **SIZES)
    training = driver.stops_early(tmp_path)
    if inside:
        run.train(training)
    else:
        training(run)
        run.close()
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().metric) == (State.EXHAUSTED, 3, 0.5)
    assert kit.lines[-1].attempt == 1, "its model is kept"


@pytest.mark.parametrize(
    ("driver", "step", "samples"),
    [
        # 36 samples, 3 steps: at the end of an epoch, and within one
        ("huggingface", 3, 2 * 36),
        ("huggingface", 4, 2 * 36 - 16),
        ("huggingface", 2, 3 * 36 - 32),
        # 100 samples, 7 steps
        ("lightning", 7, 2 * 100),
        ("lightning", 5, 2 * 100 + 32),
        ("lightning", 10, 100 + 64),
    ],
    indirect=["driver"],
)
def test_a_resumed_trainer_counts_as_resumed(
    driver: ModuleType, kit: Kit, tmp_path: Path, step: int, samples: int
) -> None:
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(driver.saves(tmp_path, every=step))
    kit.run(incumbent(16), **SIZES).train(driver.resumes(tmp_path, step))
    last = kit.last()
    assert (kit.ends()[-1].state, last.epochs, last.samples) == (State.CONVERGED, None, samples)
    assert "checkpoint that had trained 1 epoch" in last.reasons["epochs"]


@pytest.mark.parametrize(
    ("driver", "samples"),
    [
        ("huggingface", 36 - 32),
        # its loader begins again, and the rest of the steps is made of whole batches
        ("lightning", 5 * 16),
    ],
    indirect=["driver"],
)
def test_a_checkpoint_within_the_only_epoch_leaves_the_rest_of_it_to_train(
    driver: ModuleType, kit: Kit, tmp_path: Path, samples: int
) -> None:
    of_one_epoch = {**SIZES, "max_epochs": 1}
    kit.run(incumbent(16), **of_one_epoch).train(driver.saves(tmp_path, every=2))
    kit.run(incumbent(16), **of_one_epoch).train(driver.resumes(tmp_path, 2))
    assert kit.ends()[-1].state is State.EXHAUSTED
    assert kit.last().samples == samples


@pytest.mark.parametrize(
    ("driver", "situation"),
    [
        ("huggingface", "huggingface: a checkpoint of all epochs"),
        ("lightning", "lightning: a checkpoint of all epochs"),
    ],
    indirect=["driver"],
)
def test_a_checkpoint_that_is_complete_is_refused_except_in_a_retry(
    driver: ModuleType, kit: Kit, tmp_path: Path, situation: str
) -> None:
    end = 2 * driver.STEPS
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(driver.saves(tmp_path, every=end))
    refused(kit, driver.resumes(tmp_path, end), JobSpecError, situation, max_epochs=2)
    retry = kit.run(incumbent(16), max_epochs=2, **SIZES)
    retry.checkpoints = left_behind(kit, epochs=2)
    retry.train(driver.resumes(tmp_path, end))
    assert (kit.ends()[-1].state, kit.last().samples) == (State.EXHAUSTED, 0)


@pytest.mark.parametrize(
    ("driver", "situation"),
    [
        ("huggingface", "huggingface: compute_metrics does not return the target's metric"),
        ("lightning", "lightning: the module does not log the target's metric"),
    ],
    indirect=["driver"],
)
def test_another_metric_is_named_after_the_first_epoch(
    driver: ModuleType, kit: Kit, tmp_path: Path, situation: str
) -> None:
    training = driver.Training(tmp_path)
    refused(kit, training, ReportError, situation, target="f1 >= 0.9")
    assert training.counts[0].begun == 1


REFUSED: dict[str, dict[str, Any]] = {
    "huggingface: per_device_train_batch_size=8": {"per_device_train_batch_size": 8},
    "huggingface: gradient_accumulation_steps=2": {"gradient_accumulation_steps": 2},
    "huggingface: num_train_epochs=2": {"num_train_epochs": 2},
    "huggingface: num_train_epochs=9.5": {"num_train_epochs": 9.5},
    "huggingface: max_steps=6": {"max_steps": 6},
    "huggingface: max_steps=2": {"max_steps": 2},
    # five batches are three steps
    "huggingface: max_steps=29, accumulated by 2": {"max_steps": 29, "parts": 2},
    "huggingface: auto_find_batch_size=True": {"auto_find_batch_size": True},
    "huggingface: nothing to evaluate": {"eval_strategy": "no", "trainer": {"eval_dataset": None}},
    "huggingface: prediction_loss_only=True": {"prediction_loss_only": True},
    "huggingface: no compute_metrics": {"trainer": {"compute_metrics": None}},
    "huggingface: an empty evaluation set": {"trainer": {"eval_dataset": []}},
    "huggingface: two evaluation sets": {"trainer": {"eval_dataset": {"a": [], "b": []}}},
    "lightning: batches of 5, accumulated by 3": {"parts": 3},
    "lightning: max_epochs=2": {"max_epochs": 2},
    "lightning: max_steps=5": {"max_steps": 5},
    "lightning: max_steps=60": {"max_steps": 60},
    "lightning: max_steps=5, one in an epoch": {"max_steps": 5, "limit_train_batches": 1},
    "lightning: fast_dev_run=True": {"fast_dev_run": True},
    "lightning: barebones=True": {"barebones": True},
    "lightning: min_epochs=2": {"min_epochs": 2},
    "lightning: min_steps=8": {"min_steps": 8},
    "lightning: max_time of 0 s": {"max_time": {"seconds": 0}},
    "lightning: limit_train_batches=0": {"limit_train_batches": 0},
    "lightning: limit_val_batches=0": {"limit_val_batches": 0},
    "lightning: no loader to validate": {"loaders": 0},
    "lightning: check_val_every_n_epoch=20": {"check_val_every_n_epoch": 20},
}


@pytest.mark.parametrize(
    ("driver", "situation"),
    [(situation.partition(":")[0], situation) for situation in REFUSED],
    indirect=["driver"],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    driver: ModuleType, kit: Kit, tmp_path: Path, situation: str
) -> None:
    training = driver.Training(tmp_path, **REFUSED[situation])
    refused(kit, training, JobSpecError, situation)
    assert not training.has_stepped
    assert kit.last().samples in (0, None)


@both
def test_a_trainer_without_the_callback_is_told_of_it(
    driver: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loader is the trainer's: run.data_loader() would be no remedy."""

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            driver.without_callback(run, tmp_path)
            run.report(acc=0.5 * (epoch + 1))

    kit.run(incumbent(16), **SIZES).train(train)
    why = kit.last().reasons[BATCH_SIZE]
    assert why.endswith(OF_TRAINER)
    assert f"{why}. Remedy: {TELL_TRAINER}." in caplog.text
    assert "run.data_loader" not in caplog.text
