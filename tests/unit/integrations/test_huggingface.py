"""The callback in the real Hugging Face ``Trainer``, on a tiny BERT made from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.trial import BATCH_SIZE, OF_TRAINER, TELL_TRAINER, State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.integrations.conftest import left_behind, one_thread
from tests.unit.training.conftest import Kit, explore, incumbent

SIZES: dict[str, Any] = {"batch_sizes": [16, 32], "default_batch_size": 16, "profile_s": 0.1}
SAMPLES = 36


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """:mod:`tests.unit.integrations.huggingface_kit`."""
    with pytest.MonkeyPatch.context() as patched, one_thread():
        patched.setenv("HF_HUB_OFFLINE", "1")
        for name in ("transformers", "accelerate"):
            pytest.importorskip(name, reason=f"{name} is not installed: airflow-provider-zeus[huggingface]")
        yield import_module("tests.unit.integrations.huggingface_kit")


def test_a_kept_training(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path)
    assert kit.run(incumbent(16), **SIZES).train(training) == ("BertForSequenceClassification", 16)
    (end,) = kit.ends()
    seen = kit.last()
    assert (end.state, seen.metric, seen.epochs) == (State.CONVERGED, 0.9, 3.0)
    assert (seen.samples, seen.samples_per_epoch) == (3 * SAMPLES, SAMPLES), "short last batches are counted as such"
    assert (training.counts[0].epochs, training.counts[0].steps) == (3, 3 * 3), "no epoch more than needed"
    assert seen.energy_j


def test_the_loader_is_found_where_transformers_4_49_has_it(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path)
    training.callback = hf.LoaderInState
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.last().samples, kit.last().samples_per_epoch) == (3 * SAMPLES, SAMPLES)


def test_an_attempt_that_is_given_up_leaves_the_trainer_and_the_next_starts_afresh(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path, epochs=4)
    run = kit.run(explore(32, bound_epochs=2.0), incumbent(16), **SIZES)
    assert run.train(training) == ("BertForSequenceClassification", 16)
    assert [(end.batch_size, end.state) for end in kit.ends()] == [(32, State.GIVEN_UP), (16, State.CONVERGED)]
    assert [count.epochs for count in training.counts] == [2, 4]


def test_an_epochs_bound_in_cost_ends_it_in_the_midst_of_an_epoch(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    run = kit.run(explore(32, bound_cost=1.0), incumbent(16), **SIZES)
    run.train(hf.Training(tmp_path))
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]


def test_below_the_target_it_ends_after_max_epochs(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path, epochs=99)
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(training)
    assert [end.state for end in kit.ends()] == [State.EXHAUSTED]
    assert training.counts[0].epochs == 2


def test_the_metric_may_be_named_as_the_trainer_names_it(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    kit.run(incumbent(16), target="eval_acc >= 0.9", **SIZES).train(hf.Training(tmp_path))
    assert [end.state for end in kit.ends()] == [State.CONVERGED]


@pytest.mark.parametrize("known", [True, False], ids=["of its loader", "of its arguments alone"])
def test_accumulated_gradients_are_one_step(
    hf: ModuleType, kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """Twice the trainer's batch size is the run's."""
    if not known:
        monkeypatch.setattr("airflow_provider_zeus.integrations.huggingface.batch_size_of", lambda _: None)
    training = hf.Training(tmp_path)
    training.said = {"gradient_accumulation_steps": 2}
    kit.run(incumbent(16), **SIZES).train(training)
    assert kit.last().samples == 3 * SAMPLES
    assert training.counts[0].steps == 3 * 3


@pytest.mark.parametrize(
    ("changes", "epochs", "evaluations"),
    [
        ({"eval_strategy": "no"}, 3, 3),  # the callback asks for them
        ({"eval_strategy": "steps", "eval_steps": 2}, 3, 4),  # of an epoch's three steps
        ({"eval_strategy": "steps", "eval_steps": 3}, 3, 3),
        ({"eval_strategy": "steps", "eval_steps": 6}, 4, 2),
        ({"eval_strategy": "steps", "eval_steps": 500}, 10, 1),
        ({"eval_strategy": "steps", "eval_steps": 0.1}, 3, 3),
        ({"eval_delay": 2}, 3, 2),
        ({"eval_delay": 99}, 10, 1),
        ({"eval_on_start": True}, 3, 4),
        ({"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 7}, 3, 2),
        ({"max_steps": 30}, 3, 3),
        ({"num_train_epochs": 12.5}, 3, 3),
    ],
    ids=str,
)
def test_it_waits_for_an_evaluation_with_the_metric(
    hf: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], epochs: int, evaluations: int
) -> None:
    training = hf.Training(tmp_path, **changes)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().metric) == (State.CONVERGED, epochs, 0.9)
    count = training.counts[0]
    assert (count.steps, count.evaluations) == (3 * epochs, evaluations), "no step after the end"


def test_the_last_value_counts_for_an_epoch_without_one_and_that_is_said_once(
    hf: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = hf.Training(tmp_path, epochs=5, eval_strategy="steps", eval_steps=6)
    kit.run(explore(32, bound_epochs=2.0), incumbent(16), **SIZES).train(training)
    assert [(end.state, end.observation.epochs) for end in kit.ends()] == [(State.GIVEN_UP, 2), (State.CONVERGED, 6)]
    assert kit.ends()[0].observation.metric is None, "nothing was evaluated by then"
    assert caplog.text.count("not every epoch is evaluated") == 1


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

    training = hf.Training(tmp_path, kind=Own, max_steps=1000, trainer={"eval_dataset": hf.Sentences(to_evaluate)})
    kit.run(incumbent(16), **SIZES).train(training)
    assert [end.state for end in kit.ends()] == [State.NO_DATA]


@pytest.mark.parametrize("target", ["a_acc", "eval_b_acc", "c_acc", "c_loss"])
def test_the_target_is_on_one_of_several_evaluation_sets(hf: ModuleType, kit: Kit, tmp_path: Path, target: str) -> None:
    sets = {name: hf.Sentences(10) for name in "abc"}
    training = hf.Training(tmp_path, trainer={"eval_dataset": sets})
    text = f"{target} <= 9" if "loss" in target else f"{target} >= 0.9"
    kit.run(incumbent(16), target=text, **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 1 if "loss" in target else 3)


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
    hf: ModuleType, kit: Kit, tmp_path: Path, strategy: str, first: bool, prefix: str, copies: bool
) -> None:
    """The trainer leaves its own evaluation out after one that a callback makes in between."""
    other = [hf.Evaluating(prefix, data=hf.Sentences(10) if prefix == "train" else None, copies=copies)]
    changes = {"eval_strategy": strategy, "eval_steps": 3}
    kit.run(incumbent(16), **SIZES).train(
        hf.Training(tmp_path, before=other if first else (), after=() if first else other, **changes)
    )
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().samples) == (State.CONVERGED, 3, 3 * SAMPLES)


def test_another_callback_may_be_the_only_one_that_evaluates(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(
        tmp_path,
        trainer={"eval_dataset": None},
        after=[hf.Evaluating("eval", data=hf.Sentences(10))],
        eval_strategy="no",
    )
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)


def test_a_metric_that_the_trainer_adds_after_the_event(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path, kind=hf.AddsLater)
    kit.run(incumbent(16), target="late >= 0.9", max_epochs=3, **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().samples) == (State.CONVERGED, 3, 3 * SAMPLES)


def test_an_evaluation_of_the_authors_own(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    own = {"kind": hf.Logs, "trainer": {"compute_metrics": None}}
    kit.run(incumbent(16), target="own >= 0.9", **SIZES).train(hf.Training(tmp_path, **own))
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 3)
    training = hf.Training(tmp_path, **own | {"kind": hf.Keeps})
    with pytest.raises(ReportError, match=r"epoch 0 .*'own'. Let the Trainer's own evaluate\(\) .* self.log\(\)"):
        kit.run(incumbent(16), target="own >= 0.9", **SIZES).train(training)
    assert training.counts[0].epochs == 1


def test_without_memory_the_run_chooses_the_next_size_and_not_the_trainer(
    hf: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    training = hf.Training(tmp_path, kind=hf.TooLarge, auto_find_batch_size=True)
    assert kit.run(explore(32), incumbent(16), **SIZES).train(training)[1] == 16
    assert [end.state for end in kit.ends()] == [State.FAILED, State.CONVERGED]
    assert kit.ends()[0].observation.out_of_memory


def test_a_training_that_stops_early_keeps_its_model(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    from transformers import EarlyStoppingCallback

    best = {"metric_for_best_model": "acc", "load_best_model_at_end": True, "save_strategy": "epoch"}
    training = hf.Training(tmp_path, epochs=99, after=[EarlyStoppingCallback(2)], **best)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, kit.last().metric) == (State.EXHAUSTED, 3, 0.5)


def test_a_stream(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path, trainer={"train_dataset": hf.Stream()}, max_steps=30)
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs, training.counts[0].steps) == (State.CONVERGED, 3, 9)
    assert kit.last().samples == 3 * SAMPLES, "its last batch is a short one"


def test_a_trainers_own_loader_counts_by_its_batches(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path, kind=hf.Buckets)
    training.said = {"gradient_accumulation_steps": 2}
    kit.run(incumbent(16), **SIZES).train(training)
    assert (kit.last().samples, training.counts[0].steps) == (3 * SAMPLES, 3 * 2)
    training = hf.Training(tmp_path, kind=hf.Fixed)
    with pytest.raises(JobSpecError, match="batch size = 8: this attempt runs with 16"):
        kit.run(incumbent(16), **SIZES).train(training)
    assert training.counts[0].steps == 0


@pytest.mark.parametrize("value", [{"accuracy": 0.5}, [0.5, 0.5], None, float("nan")], ids=str)
def test_what_is_no_number_is_named_in_the_trainers_words(hf: ModuleType, kit: Kit, tmp_path: Path, value: Any) -> None:
    training = hf.Training(tmp_path, trainer={"compute_metrics": lambda _: {"acc": value}})
    with pytest.raises(ReportError, match=r"^compute_metrics\(acc="):
        kit.run(incumbent(16), **SIZES).train(training)


def test_a_trainer_needs_the_callback_and_no_other_loop(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            hf.Training(tmp_path)(run)

    with pytest.raises(ReportError, match=r"Take the trainer out of `for _ in run.epochs\(\):`"):
        kit.run(incumbent(16), **SIZES).train(train)
    with pytest.raises(ReportError, match=r"one callback of a run alone"):
        kit.run(incumbent(16), **SIZES).train(
            lambda run: hf.Training(tmp_path, after=[hf.ZeusTrainerCallback(run)])(run)
        )
    with pytest.raises(ReportError, match=r"gets a callback instead: ZeusTrainerCallback\(run\)"):
        kit.run(incumbent(16), **SIZES).train(lambda run: None)


@pytest.mark.parametrize(
    ("changes", "checkpoint", "epochs", "samples"),
    [
        ({"save_strategy": "epoch"}, 3, 1, 2 * SAMPLES),
        ({"save_strategy": "steps", "save_steps": 4}, 4, 1, 2 * SAMPLES - 16),
        ({"save_strategy": "steps", "save_steps": 2}, 2, 1, 3 * SAMPLES - 32),  # within its first epoch
    ],
)
def test_a_resumed_trainer_counts_as_resumed(
    hf: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], checkpoint: int, epochs: int, samples: int
) -> None:
    kit.run(incumbent(16), max_epochs=2, **SIZES).train(hf.Training(tmp_path, epochs=99, **changes))
    path = tmp_path / "out" / f"checkpoint-{checkpoint}"
    wanted = samples // SAMPLES + (samples % SAMPLES > 0)  # passes until the trainer's third epoch ends
    kit.run(incumbent(16), **SIZES).train(hf.Training(tmp_path, epochs=wanted, resume=str(path)))
    seen = kit.last()
    assert (kit.ends()[-1].state, seen.epochs, seen.samples) == (State.CONVERGED, None, samples)
    assert f"checkpoint that had trained {epochs} epochs" in seen.reasons["epochs"]


def test_a_checkpoint_that_is_complete_is_refused_but_in_a_retry(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    kit.run(incumbent(16), max_epochs=1, **SIZES).train(hf.Training(tmp_path, epochs=99, save_strategy="epoch"))
    training = hf.Training(tmp_path, resume=str(tmp_path / "out" / "checkpoint-3"))
    with pytest.raises(JobSpecError, match=r"resume_from_checkpoint = .*trained all of the job's max_epochs = 1"):
        kit.run(incumbent(16), max_epochs=1, **SIZES).train(training)
    retry = kit.run(incumbent(16), max_epochs=1, **SIZES)
    retry.checkpoints = left_behind(kit, epochs=1)
    retry.train(training)
    assert (kit.ends()[-1].state, kit.last().samples) == (State.EXHAUSTED, 0)


def test_another_metric_is_named_after_the_first_epoch(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path)
    with pytest.raises(ReportError, match=r"epoch 0 .*'f1' \(only acc, .*loss, .* came\).*compute_metrics return 'f1'"):
        kit.run(incumbent(16), target="f1 >= 0.9", **SIZES).train(training)
    assert training.counts[0].epochs == 1


@pytest.mark.parametrize(
    ("changes", "trainer", "said"),
    [
        ({"per_device_train_batch_size": 8}, {}, "batch size = 8: this attempt runs with 16 .*run.local_batch_size"),
        ({"gradient_accumulation_steps": 2}, {}, "batch size = 32"),
        ({"num_train_epochs": 2}, {}, "num_train_epochs = 2: the run may need 10.*run.job.max_epochs"),
        ({"num_train_epochs": 9.5}, {}, "num_train_epochs = 9.5: the run may need 10"),
        ({"max_steps": 6}, {}, "max_steps = 6: the run may need 10 .* after 2.*leave max_steps out"),
        ({"max_steps": 2}, {}, "max_steps = 2: .* after 0.667"),
        ({"eval_strategy": "no"}, {"eval_dataset": None}, 'eval_dataset = None: .*eval_strategy="epoch"'),
        ({"prediction_loss_only": True}, {}, "prediction_loss_only = True: .*leave it out, or name eval_loss"),
        ({}, {"compute_metrics": None}, "compute_metrics = None: .*compute_metrics that returns 'acc'"),
        ({}, {"eval_dataset": []}, "eval_dataset = 'no sample': .*give it samples"),
        ({}, {"eval_dataset": {"a": [], "b": []}}, r"eval_dataset = \['a', 'b'\]: .*name a_acc or b_acc in the job"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_step(
    hf: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], trainer: dict[str, Any], said: str
) -> None:
    training = hf.Training(tmp_path, trainer=trainer, **changes)
    with pytest.raises(JobSpecError, match=said):
        kit.run(incumbent(16), **SIZES).train(training)
    assert training.counts[0].steps == 0


@pytest.mark.parametrize("target", ["loss <= 9", "eval_loss <= 9"])
def test_the_loss_needs_no_metrics(hf: ModuleType, kit: Kit, tmp_path: Path, target: str) -> None:
    training = hf.Training(tmp_path, trainer={"compute_metrics": None}, prediction_loss_only=True)
    kit.run(incumbent(16), target=target, **SIZES).train(training)
    assert (kit.ends()[-1].state, kit.last().epochs) == (State.CONVERGED, 1)


def test_an_accumulation_that_does_not_divide(hf: ModuleType, kit: Kit) -> None:
    with pytest.raises(JobSpecError, match=r"gradient_accumulation_steps x gpus = 3: .* 16"):
        hf.arguments(kit.run(incumbent(16), **SIZES), gradient_accumulation_steps=3)


def test_the_gpus_of_one_process_share_a_batch(hf: ModuleType, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    run = kit.run(incumbent(16), **SIZES)
    assert hf.arguments(run)["per_device_train_batch_size"] == 4, "all that torch sees, as the trainer does"
    assert hf.arguments(run, gpus=2)["per_device_train_batch_size"] == 8


def test_the_trainer_may_be_used_after_its_end(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    """An evaluation that the user asks for is no epoch."""

    def train(run: ZeusRun) -> float:
        callback = hf.ZeusTrainerCallback(run)
        trainer = hf.Trainer(
            model=hf.BertForSequenceClassification(hf.TINY),
            args=hf.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, **hf.arguments(run)),
            train_dataset=hf.Sentences(),
            eval_dataset=hf.Sentences(10),
            compute_metrics=lambda _: {"acc": 0.95},
            callbacks=[callback],
        )
        trainer.train()
        return float(trainer.evaluate()["eval_acc"])

    assert kit.run(incumbent(16), **SIZES).train(train) == 0.95
    assert kit.last().epochs == 1


def test_a_trainer_without_the_callback_is_told_of_it(
    hf: ModuleType, kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loader is the trainer's: run.data_loader() would be no remedy."""

    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            given = {"per_device_train_batch_size": 64, "num_train_epochs": 1, "report_to": [], "use_cpu": True}
            args = hf.TrainingArguments(output_dir=str(tmp_path), save_strategy="no", disable_tqdm=True, **given)
            model = hf.BertForSequenceClassification(hf.TINY)
            hf.Trainer(model=model, args=args, train_dataset=hf.Sentences(640)).train()
            run.report(acc=0.5 * (epoch + 1))

    kit.run(incumbent(16), **SIZES).train(train)
    why = kit.last().reasons[BATCH_SIZE]
    assert why.endswith(OF_TRAINER)
    assert f"{why}. Remedy: {TELL_TRAINER}." in caplog.text
