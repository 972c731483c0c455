"""Targets: which texts are valid, when a target is reached, which reports are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.model.target import Target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("accuracy >= 0.84", Target("accuracy", True, 0.84)),
        ("  rmse<=1.5e-3 ", Target("rmse", False, 0.0015)),
        ("val/top-1 >= 1", Target("val/top-1", True, 1.0)),
        ("loss <= -2", Target("loss", False, -2.0)),
        ("rmse <= runtime", Target("rmse", False, None)),
        ("accuracy >= 88 %", Target("accuracy", True, 88.0, per_cent=True)),
        ("accuracy>=88%", Target("accuracy", True, 88.0, per_cent=True)),
    ],
)
def test_good_targets(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accuracy",
        "accuracy > 0.8",
        "accuracy == 1",
        ">= 0.8",
        "0.8 <= accuracy",
        "a >= 1 2",
        "a >= %",
        "a >= 1 %%",
        "a >=",
        None,
        0.8,
        ["a"],
    ],
)
def test_the_error_of_an_invalid_target_shows_a_valid_one(text: Any) -> None:
    with pytest.raises(JobSpecError) as caught:
        Target.parse(text)
    said = str(caught.value)
    assert said.startswith(f"target = {text!r}: ")
    assert '"accuracy >= 0.84"' in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "high", "Runtime"])
def test_a_value_must_be_a_finite_number(value: str) -> None:
    with pytest.raises(
        JobSpecError, match=rf"^target = 'accuracy >= {value}': its value '{value}' "
    ):
        Target.parse(f"accuracy >= {value}")


@pytest.mark.parametrize(
    ("text", "metric", "reached"),
    [
        ("acc >= 0.9", 0.9, True),
        ("acc >= 0.9", 0.89, False),
        ("rmse <= 1", 1.0, True),
        ("rmse <= 1", 1.01, False),
    ],
)
def test_a_target_is_reached_at_its_value(text: str, metric: float, reached: bool) -> None:
    assert Target.parse(text).reached(metric) is reached


def test_a_target_without_a_value_says_what_to_call() -> None:
    with pytest.raises(
        ReportError, match=r'^target "rmse <= runtime" .* run\.set_target\(value\) '
    ):
        Target.parse("rmse <= runtime").reached(1.0)


def test_the_metric_of_the_target_is_picked() -> None:
    assert Target.parse("acc >= 1").pick({"loss": 3.0, "acc": 0.5}) == 0.5


@pytest.mark.parametrize("value", ["0.5", b"0.5", np.str_("0.5")])
def test_a_text_is_no_metric(value: Any) -> None:
    with pytest.raises(ReportError, match=r"but a text\. Write run\.report\(acc=float\(value\)\)"):
        Target.parse("acc >= 1").pick({"acc": value})


def test_a_report_without_the_metric_names_both() -> None:
    with pytest.raises(ReportError) as caught:
        Target.parse("acc >= 1").pick({"loss": 3.0, "f1": 0.2})
    said = str(caught.value)
    assert all(name in said for name in ("['f1', 'loss']", "'acc'", "run.report(acc=value)"))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "good",
        [0.95, 0.9],
        torch.tensor([0.95, 0.9]),
        np.array([0.95, 0.9]),
        pytest.param(10**5000, id="an integer of which Python makes no text"),
    ],
)
def test_what_is_not_one_number_has_nothing_to_do_with_the_training(value: Any) -> None:
    with pytest.raises(ReportError, match="not one number") as caught:
        Target.parse("acc >= 1").pick({"acc": value})
    assert "learning rate" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [np.float32(0.9), np.array([0.9]), torch.tensor(0.9), torch.tensor(0.9).item(), 0.9]
)
def test_single_precision_reaches_what_it_is_meant_to_reach(value: Any) -> None:
    target = Target.parse("acc >= 0.9")
    assert target.pick({"acc": value}) == 0.9
    assert target.reached(target.pick({"acc": value}))
    below = float(np.nextafter(np.float32(0.9), np.float32(0)))
    assert not target.reached(target.pick({"acc": below}))


@pytest.mark.parametrize("value", [np.float32(0.9), torch.tensor(0.9), np.float64(0.9), 0.9])
def test_a_value_set_in_single_precision_is_the_one_meant(value: Any) -> None:
    assert Target.parse("acc >= runtime").with_value(value, epochs_reported=0).value == 0.9


@pytest.mark.parametrize(
    "value", [None, "0.9", [0.9, 0.8], np.array([0.9, 0.8]), np.float32("nan"), float("inf")]
)
def test_a_value_that_is_no_finite_number_is_not_set(value: Any) -> None:
    with pytest.raises(ReportError, match=r"run\.set_target.*: not a finite number"):
        Target.parse("acc >= runtime").with_value(value, epochs_reported=0)


@pytest.mark.parametrize(
    "value", [0.5, 0.1234567890123, 1234567.5, 12345678.0, 16777216.0, 0.0, -(2.0**-149), 1e300]
)
def test_any_other_number_is_taken_as_it_is(value: float) -> None:
    picked = Target.parse("score >= 1").pick({"score": value})
    assert picked == pytest.approx(value, rel=1e-7, abs=1e-50)
    assert picked == value or value == -(2.0**-149), (
        "of single precision the shortest number that is the same there"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_metric_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ReportError) as caught:
        Target.parse("acc >= 1").pick({"acc": value})
    said = str(caught.value)
    assert said.startswith(f"run.report(acc={value!r}): ")
    assert "smaller learning rate" in said


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("accuracy >= 0.88", 75.3),
        ("val_accuracy >= 0.88", 1.1),
        ("eval/F1 >= 1", 2.0),
        ("test.auc >= 0.9", 90.0),
        ("box-mAP >= 0.4", 40.0),
        ("accuracy >= 88 %", 101.0),
        ("growth >= 5 %", 130.0),
        ("f1_macro >= 0.8", 80.0),
        ("F1Score >= 0.8", 80.0),
        ("valAccuracy >= 0.9", 91.0),
        ("accuracy_top1 >= 0.76", 75.0),
        ("mAP50 >= 0.5", 50.0),
        ("test/mIoU >= 0.5", 50.0),
        ("auroc >= 0.9", 91.0),
    ],
)
def test_a_metric_in_another_unit_is_refused_with_the_remedy(text: str, metric: float) -> None:
    target = Target.parse(text)
    with pytest.raises(
        ReportError, match=r"which is at most 1(00)?\. Report it as (a share|per cent)"
    ):
        target.pick({target.metric: metric})


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("accuracy >= 0.88", 1.0),
        ("accuracy >= 0.88", 1.0000001),
        ("accuracy >= 88", 75.3),
        ("accuracy >= 88 %", 75.3),
        ("accuracy >= 88 %", 0.753),
        ("score >= 0.88", 75.3),
        ("heatmap_loss <= 0.5", 3.0),
        ("heatmap >= 0.5", 3.0),
        ("iou_loss <= 0.5", 3.0),
        ("accumulated >= 0.5", 3.0),
        ("wer <= 5 %", 180.0),
        ("mape <= 5 %", 250.0),
        ("growth >= 120 %", 130.0),
        ("loss <= 0.5", 7.0),
    ],
)
def test_a_metric_that_may_be_in_the_targets_unit_is_taken(text: str, metric: float) -> None:
    target = Target.parse(text)
    assert target.pick({target.metric: metric}) == pytest.approx(metric)


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("accuracy >= 88 %", 0.753),
        ("growth >= 5 %", 0.3),
        ("val_f1 >= 88", 0.9),
        ("error_rate <= 5 %", 0.9),
        ("error_rate <= 0.05", 7.0),
    ],
)
def test_a_metric_that_may_be_in_another_unit_is_doubted(text: str, metric: float) -> None:
    what, remedy = Target.parse(text).doubt(metric) or ("", "")
    assert "looks like" in what
    assert "in the unit of the target" in remedy


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("reward >= 0.9", 1.5),
        ("sharpe >= 0.5", 1.2),
        ("psnr >= 0.5", 22.0),
        ("score >= 1", 12.0),
        ("reward >= 20", 0.4),
        ("heart_rate >= 0.9", 70.0),
    ],
)
def test_a_metric_that_is_no_share_by_name_may_be_any_number(text: str, metric: float) -> None:
    assert Target.parse(text).doubt(metric) is None


@pytest.mark.parametrize(
    ("text", "metric", "right"),
    [
        ("loss >= 0.2", 3.3, "loss <= 0.2"),
        ("val_mse >= 0.05", 0.5, "val_mse <= 0.05"),
        ("perplexity >= 20 %", 0.5, "perplexity <= 20 %"),
        ("error_rate >= 0.1", 60.0, "error_rate <= 0.1"),
        ("accuracy <= 0.2", 0.5, "accuracy >= 0.2"),
        ("auc <= runtime", 0.5, "auc >= runtime"),
    ],
)
def test_a_wrong_direction_is_said_before_a_unit(text: str, metric: float, right: str) -> None:
    what, remedy = Target.parse(text).doubt(metric) or ("", "")
    assert f"the target {text} waits for the opposite" in what
    assert remedy == f'write "{right}"'


@pytest.mark.parametrize(("text", "value"), [("ppl <= 20", "inf"), ("acc >= 0.9", "-inf")])
def test_an_infinity_on_the_far_side_has_not_reached_it(text: str, value: str) -> None:
    target = Target.parse(text)
    assert not target.reached(target.pick({target.metric: float(value)}))


@pytest.mark.parametrize(
    ("text", "value"), [("ppl <= 20", "-inf"), ("acc >= 0.9", "inf"), ("ppl <= 20", "nan")]
)
def test_another_infinity_is_refused(text: str, value: str) -> None:
    with pytest.raises(ReportError, match="not a finite number"):
        Target.parse(text).pick({text.split()[0]: float(value)})
