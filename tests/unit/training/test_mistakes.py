"""What a run shows of mistakes in its training: each has its remedy, and what is right is not accused."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.training import mistakes
from airflow_provider_zeus.training.mistakes import GoesOn


@pytest.mark.parametrize(
    ("told", "optimizer_steps", "epochs", "words"),
    [
        (16, 0, 1, None),
        (0, 0, 0, None),
        (0, 2, 0, "torch made 2 optimizer steps, none counted"),
        (0, 0, 1, "an epoch was reported, and no step was counted"),
    ],
)
def test_whether_steps_are_counted(told: int, optimizer_steps: int, epochs: int, words: str | None) -> None:
    found = mistakes.of_steps(told, optimizer_steps, epochs)
    if words is None:
        assert found is None
        return
    assert found is not None
    assert found.what.startswith(words)
    assert "run.step(samples)" in found.remedy


@pytest.mark.parametrize(
    ("drawn", "is_wrong"),
    [
        ([16, 16], False),
        ([32, 16], False),  # the loader is one batch ahead
        ([15], False),  # the last one of the data, nearly whole
        ([16, 32], False),  # a second loader beside it
        ([], False),
        ([32, 32], True),
        ([64], True),  # accumulated on top
        ([4], True),
    ],
)
def test_whether_the_loader_has_the_chosen_size(drawn: list[int], is_wrong: bool) -> None:
    found = mistakes.of_batch_size(16, drawn)
    assert (found is not None) == is_wrong
    if found is not None:
        assert f"{max(drawn)} samples are drawn for each optimizer step, and not the 16" in found.what
        assert found.remedy.startswith("build the loader by run.data_loader(data)")


@pytest.mark.parametrize(
    ("target", "first", "remedy"),
    [
        ("accuracy >= 0.9", 0.5, None),
        ("accuracy >= 0.9", 95.0, "report it in the unit of the target"),  # per cent against a share
        ("accuracy >= 90", 0.95, "report it in the unit of the target"),  # a share against per cent
        ("accuracy >= 90 %", 50.0, None),
        ("accuracy <= 0.9", 0.5, 'write "accuracy >= 0.9"'),  # the direction
        ("loss >= 0.2", 3.3, 'write "loss <= 0.2"'),
        ("loss <= 0.1", 0.5, None),
        ("loss <= 0.1", 50.0, None),
        ("loss <= 0.1", 0.05, "if that is not meant, set a target that only a trained model reaches"),
        ("quality <= 0.9", 0.4, 'or is "quality >= 0.9" meant'),
        ("reward >= 20", 0.95, None),
        ("loss <= runtime", 0.5, None),
    ],
)
def test_the_direction_and_the_unit_of_the_metric(target: str, first: float, remedy: str | None) -> None:
    found = mistakes.of_metric(Target.parse(target), first)
    assert (found is None) == (remedy is None)
    if found is not None and remedy is not None:
        assert remedy in found.remedy


def test_a_loss_never_has_to_rise() -> None:
    found = mistakes.of_metric(Target.parse("loss <= 0.1"), 0.05)
    assert found is not None
    assert "loss 0.05 reaches the target" in found.what
    assert ">=" not in found.remedy


def test_a_metric_under_another_name() -> None:
    target = Target.parse("accuracy >= 0.9")
    found = mistakes.of_names(target, {"loss", "acc"})
    assert found is not None
    assert found.what == "acc, loss came, and the target is on accuracy"
    assert "run.report(accuracy=value)" in found.remedy
    assert "name acc or loss in the job's target" in found.remedy
    assert mistakes.of_names(target, {"accuracy", "loss"}) is None
    assert mistakes.of_names(target, ()) is None


def test_a_model_that_an_earlier_attempt_trained() -> None:
    found = mistakes.of_model(3)
    assert found is not None
    assert found.what.startswith("3 of the weights")
    assert "inside the function" in found.remedy
    assert mistakes.of_model(0) is None


@pytest.mark.parametrize(("asked", "epochs", "is_wrong"), [(True, 1, False), (False, 0, False), (False, 1, True)])
def test_a_loop_in_place_of_that_of_the_run(asked: bool, epochs: int, is_wrong: bool) -> None:
    found = mistakes.of_own_loop(asked, epochs)
    assert (found is not None) == is_wrong
    assert found is None or "for epoch in run.epochs()" in found.remedy


@pytest.mark.parametrize(
    ("goes_on", "words"),
    [
        (GoesOn.STEP, "after the loop over the batches and not within it"),
        (GoesOn.AGAIN, "which repeats the pass by itself"),
        (GoesOn.REPORT, "once in each epoch, with all metrics"),
    ],
)
def test_an_epoch_that_goes_on_after_its_report(goes_on: GoesOn, words: str) -> None:
    assert words in mistakes.of_epoch("accuracy", goes_on).remedy


@pytest.mark.parametrize(
    ("epochs", "most", "reached", "is_wrong"),
    [(1, 3, False, True), (2, 3, False, False), (1, 1, False, False), (1, 3, True, False), (0, 3, False, False)],
)
def test_a_loop_that_is_left_after_its_first_epoch(epochs: int, most: int, reached: bool, is_wrong: bool) -> None:
    found = mistakes.of_end(epochs, most, reached)
    assert (found is not None) == is_wrong
    assert found is None or "`return` is inside the loop" in found.remedy


def test_a_validation_that_counts_as_training() -> None:
    found = mistakes.of_validation(2)
    assert found is not None
    assert found.what.endswith("validation counts as training")
    assert "a DataLoader of their own" in found.remedy
    assert mistakes.of_validation(0) is None


@pytest.mark.parametrize(
    ("sizes", "planned", "samples", "loader_size", "named"),
    [
        ([16, 32, 64], 16, 768, 16, ""),
        ([16, 32, 1024], 16, 768, 16, "1024"),
        ([16, 800, 900], 16, 768, 16, "800, 900"),
        ([64, 1024], 64, 768, 16, ""),  # in four parts: 1024 is trained in batches of 256
        ([64, 4096], 64, 768, 16, "4096"),
        ([16, 1024], 16, 768, 700, ""),  # of a validation
    ],
)
def test_sizes_that_leave_no_batch(sizes: list[int], planned: int, samples: int, loader_size: int, named: str) -> None:
    found = mistakes.of_dropped(sizes, planned, samples, loader_size)
    assert (found.what.rpartition(" batch of ")[2] if found else "") == named
