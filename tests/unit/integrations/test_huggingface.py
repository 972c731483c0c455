"""The callback in the real Hugging Face ``Trainer``, on a tiny BERT made from scratch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zeus.cli.checks_training import of_training
from airflow_provider_zeus.cli.rehearsal import Stage
from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent

SIZES: dict[str, Any] = {"batch_sizes": [16, 32], "default_batch_size": 16, "profile_s": 0.1, "profile_steps": 1}
SAMPLES = 36


@pytest.fixture(scope="module")
def hf() -> Iterator[ModuleType]:
    """:mod:`tests.unit.integrations.huggingface_kit`."""
    with pytest.MonkeyPatch.context() as patched:
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


def test_accumulated_gradients_are_one_step(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    training = hf.Training(tmp_path)
    training.said = {"gradient_accumulation_steps": 2}
    kit.run(incumbent(16), **SIZES).train(training)
    assert kit.last().samples == 3 * SAMPLES
    assert training.counts[0].steps == 3 * 3


def test_evaluations_in_the_midst_of_an_epoch_end_none(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    """Step 2 is evaluated; the epoch ends with step 3, where nothing is."""
    training = hf.Training(tmp_path, eval_strategy="steps", eval_steps=2)
    with pytest.raises(ReportError, match=r"epoch 0 .*run\.report\(acc="):
        kit.run(incumbent(16), **SIZES).train(training)
    assert training.counts[0].evaluations == 1


def test_another_metric_is_named(hf: ModuleType, kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"run.report\(f1=\.\.\.\) \(only acc, .*eval_loss, .* came\)"):
        kit.run(incumbent(16), target="f1 >= 0.9", **SIZES).train(hf.Training(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_device_train_batch_size": 8}, "batch size = 8: this attempt runs with 16 .*run.local_batch_size"),
        ({"gradient_accumulation_steps": 2}, "batch size = 32"),
        ({"num_train_epochs": 2}, "epochs = 2: the run may need 10.*run.job.max_epochs"),
        ({"max_steps": 6}, "epochs = 2: the run may need 10"),
    ],
)
def test_arguments_that_do_not_fit(
    hf: ModuleType, kit: Kit, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobSpecError, match=said):
        kit.run(incumbent(16), **SIZES).train(hf.Training(tmp_path, **changes))


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


def test_two_steps_before_the_first_run(hf: ModuleType, tmp_path: Path) -> None:
    job = ZeusJob(batch_sizes=[16, 32], default_batch_size=32, target="loss <= 0.001", max_epochs=3)
    outcome = Stage().function(job, hf.Training(tmp_path))
    found = {f.check: f for f in of_training(outcome, timeout_s=60.0)}
    assert {name: f.status for name, f in found.items() if name != "value"} == {
        "training": "ok",
        "steps": "ok",
        "batch size": "undecided",  # it draws a batch ahead, and the third is the last one
        "metric": "ok",
        "model": "ok",
    }
    assert outcome.seen is not None
    assert outcome.seen.cut
