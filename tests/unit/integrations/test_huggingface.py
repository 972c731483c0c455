"""The callback in the real Hugging Face ``Trainer``, on a tiny BERT made from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import BATCH_SIZE, State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.integrations.conftest import SIZES, imported, outcome, refused
from tests.unit.training.conftest import Kit, incumbent

SAMPLES = 36


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """:mod:`tests.unit.integrations.huggingface_kit`."""
    with imported("huggingface") as module:
        yield module


def test_the_loader_is_found_where_transformers_4_49_has_it(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path)
    training.callback = hf.LoaderInState
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (3 * SAMPLES, SAMPLES)


def test_a_training_that_fails_within_its_first_epoch_tells_which_part_of_it_was_trained(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path, others=[hf.Failing()])
    with pytest.raises(hf.Broken):
        kit.run(incumbent(16), **SIZES).train(training)
    last = kit.last()
    assert kit.ends()[-1].state is State.FAILED
    assert (last.epochs, last.samples_per_epoch) == (pytest.approx(16 / SAMPLES), SAMPLES)


def test_the_metric_may_be_named_as_the_trainer_names_it(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    kit.run(incumbent(16), target="eval_acc >= 0.9", **SIZES).train(hf.Training(tmp_path))
    assert [end.state for end in kit.ends()] == [State.CONVERGED]


def test_accumulated_gradients_are_one_step_by_the_trainers_arguments_alone(
    hf: ModuleType, kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loader does not say how many samples a batch has."""
    monkeypatch.setattr(
        "airflow_provider_zeus.integrations.huggingface.batch_size_of", lambda _: None
    )
    training = hf.Training(tmp_path, parts=2)
    kit.run(incumbent(16), **SIZES).train(training)
    assert kit.last().samples == 3 * SAMPLES
    assert training.counts[0].steps == 3 * 3
    assert BATCH_SIZE not in kit.last().reasons


def test_an_epoch_counts_with_the_evaluation_at_its_end_and_not_with_one_within_it(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    class Asks(hf.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **of: Any) -> None:
            control.should_evaluate = state.global_step == 2  # of three

    found = iter([0.5])
    trainer = {"compute_metrics": lambda _: {"acc": next(found, 0.9)}}
    training = hf.Training(tmp_path, others=[Asks()], trainer=trainer)
    kit.run(incumbent(16), **SIZES).train(training)
    assert outcome(kit) == (State.CONVERGED, 1, SAMPLES)
    assert training.counts[0].evaluations == 2


@pytest.mark.parametrize("to_evaluate", [0, 10])
def test_an_empty_slice_has_no_data_whatever_there_is_to_evaluate(
    hf: ModuleType, kit: Kit, tmp_path: Path, to_evaluate: int
) -> None:
    import transformers
    from torch.utils.data import DataLoader

    if not to_evaluate and Version(transformers.__version__) < Version("5"):
        pytest.skip("transformers 4 evaluates an empty set, and fails")

    class Own(hf.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:  # transformers' own refuses an empty data set
            return DataLoader(hf.Sentences(0), batch_size=16)

    training = hf.Training(
        tmp_path, kind=Own, max_steps=1000, trainer={"eval_dataset": hf.Sentences(to_evaluate)}
    )
    kit.run(incumbent(16), **SIZES).train(training)
    assert [end.state for end in kit.ends()] == [State.NO_DATA]


@pytest.mark.parametrize("target", ["a_acc", "eval_b_acc", "c_acc", "c_loss"])
def test_the_target_is_on_one_of_several_evaluation_sets(
    hf: ModuleType, kit: Kit, tmp_path: Path, target: str
) -> None:
    sets = {name: hf.Sentences(10) for name in "abc"}
    training = hf.Training(tmp_path, trainer={"eval_dataset": sets})
    text = f"{target} <= 9" if "loss" in target else f"{target} >= 0.9"
    kit.run(incumbent(16), target=text, **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (
        State.CONVERGED,
        1 if "loss" in target else 3,
    )


@pytest.mark.parametrize(
    ("strategy", "first", "prefix", "copies"),
    [
        ("epoch", True, "train", False),
        ("epoch", False, "train", False),
        ("epoch", False, "train", True),
        ("epoch", False, "eval", True),
        ("no", True, "eval", False),
        ("no", False, "eval", False),
        ("no", False, "train", False),
        ("steps", True, "train", False),
    ],
)
def test_another_callback_evaluates_too(
    hf: ModuleType,
    kit: Kit,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    strategy: str,
    first: bool,
    prefix: str,
    copies: bool,
) -> None:
    """The trainer leaves its own evaluation out after one that a callback makes in between."""
    other = [
        hf.Evaluating(prefix, data=hf.Sentences(10) if prefix == "train" else None, copies=copies)
    ]
    changes = {"eval_strategy": strategy, "eval_steps": 3}
    kit.run(incumbent(16), **SIZES).train(
        hf.Training(
            tmp_path, before=other if first else (), others=() if first else other, **changes
        )
    )
    assert outcome(kit) == (State.CONVERGED, 3, 3 * SAMPLES)
    assert "not every epoch is evaluated" not in caplog.text


def test_another_callback_may_be_the_only_one_that_evaluates(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(
        tmp_path,
        trainer={"eval_dataset": None},
        others=[hf.Evaluating("eval", data=hf.Sentences(10))],
        eval_strategy="no",
    )
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)


def test_a_metric_that_the_trainer_adds_after_the_event(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path, kind=hf.AddsLater)
    kit.run(incumbent(16), target="late >= 0.9", max_epochs=3, **SIZES).train(training)
    assert outcome(kit) == (State.CONVERGED, 3, 3 * SAMPLES)


def test_an_evaluation_of_the_authors_own(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    own = {"kind": hf.Logs, "trainer": {"compute_metrics": None}}
    kit.run(incumbent(16), target="own >= 0.9", **SIZES).train(hf.Training(tmp_path, **own))
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)
    training = hf.Training(tmp_path, **own | {"kind": hf.Keeps})
    refused(
        kit,
        training,
        ReportError,
        "huggingface: an own evaluation is not told",
        target="own >= 0.9",
    )
    assert training.counts[0].begun == 1


def test_a_stream(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path, trainer={"train_dataset": hf.Stream()}, max_steps=30)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, training.counts[0].steps) == (
        State.CONVERGED,
        3,
        9,
    )
    assert kit.last().samples == 3 * SAMPLES, "its last batch is a short one"


def test_a_trainers_own_loader_counts_by_its_batches(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path, kind=hf.Buckets, parts=2)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.last().samples, training.counts[0].steps) == (3 * SAMPLES, 3 * 2)
    training = hf.Training(tmp_path, kind=hf.Fixed)
    refused(kit, training, JobSpecError, "huggingface: an own loader of another batch size")
    assert training.counts[0].steps == 0


@pytest.mark.parametrize("value", [{"accuracy": 0.5}, [0.5, 0.5], None, float("nan")], ids=str)
def test_what_is_no_number_is_named_in_the_trainers_words(
    hf: ModuleType, kit: Kit, tmp_path: Path, value: Any
) -> None:
    training = hf.Training(tmp_path, trainer={"compute_metrics": lambda _: {"acc": value}})
    with pytest.raises(ReportError, match=r"^compute_metrics\(acc="):
        kit.run(incumbent(16), **SIZES).train(training)


def test_a_trainer_needs_the_callback_and_no_other_loop(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            hf.Training(tmp_path)(run)

    def train_with_two(run: ZeusRun) -> None:
        hf.Training(tmp_path, others=[hf.ZeusTrainerCallback(run)])(run)

    refused(kit, train, ReportError, "huggingface: a loop around the trainer")
    refused(kit, train_with_two, ReportError, "huggingface: two callbacks")
    refused(kit, lambda run: None, ReportError, "huggingface: no callback")


@pytest.mark.parametrize("target", ["loss <= 9", "eval_loss <= 9"])
def test_the_loss_needs_no_metrics(hf: ModuleType, kit: Kit, tmp_path: Path, target: str) -> None:
    training = hf.Training(tmp_path, trainer={"compute_metrics": None}, prediction_loss_only=True)
    kit.run(incumbent(16), target=target, **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 1)


def test_an_accumulation_that_does_not_divide(hf: ModuleType, kit: Kit) -> None:
    with pytest.raises(JobSpecError, match=r"gradient_accumulation_steps x gpus = 3: .* 16"):
        hf.arguments(kit.run(incumbent(16), **SIZES), gradient_accumulation_steps=3)


def test_the_gpus_of_one_process_share_a_batch(
    hf: ModuleType, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    run = kit.run(incumbent(16), **SIZES)
    assert hf.arguments(run)["per_device_train_batch_size"] == 4, (
        "all that torch sees, as the trainer does"
    )
    assert hf.arguments(run, gpus=2)["per_device_train_batch_size"] == 8


def test_the_trainer_may_be_used_after_its_end(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    """An evaluation that the user asks for is no epoch."""

    def train(run: ZeusRun) -> float:
        callback = hf.ZeusTrainerCallback(run)
        trainer = hf.Trainer(
            model=hf.BertForSequenceClassification(hf.TINY),
            args=hf.TrainingArguments(
                output_dir=str(tmp_path), report_to=[], use_cpu=True, **hf.arguments(run)
            ),
            train_dataset=hf.Sentences(),
            eval_dataset=hf.Sentences(10),
            compute_metrics=lambda _: {"acc": 0.95},
            callbacks=[callback],
        )
        trainer.train()
        return float(trainer.evaluate()["eval_acc"])

    assert kit.run(incumbent(16), **SIZES).train(train) == 0.95
    assert kit.last().epochs == 1
