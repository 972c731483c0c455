"""The target of a job: a metric's name, a direction and a value. Standard library only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError, ReportError

_FORM = r"\s*(?P<metric>[A-Za-z_][\w./-]*)\s*(?P<op>>=|<=)\s*(?P<value>[^\s%]+)\s*(?P<unit>%?)\s*"
_REMEDY = (
    'write it as "accuracy >= 0.84" or "rmse <= 1.5", or "rmse <= runtime" and call '
    "run.set_target()"
)
# A target in the wrong direction is reached at once, or never: these words tell.
_FALLING = frozenset(
    [
        "loss",
        "error",
        "errors",
        "err",
        "rmse",
        "mse",
        "mae",
        "mape",
        "nll",
        "perplexity",
        "ppl",
        "wer",
    ]
)
_RISING = frozenset(["r2", "bleu", "rouge", "ndcg", "mrr", "psnr", "ssim", "reward"])
_NEGATED = frozenset(("neg", "negative", "minus"))


@dataclass(frozen=True, slots=True)
class Target:
    """``metric >= value`` or ``metric <= value``; a value of None is set later by
    ``run.set_target()``.

    ``per_cent``: the target says so, as in ``accuracy >= 88 %``.
    """

    metric: str
    higher_is_better: bool
    value: float | None
    per_cent: bool = False

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse ``"accuracy >= 0.84"``. Raises JobSpecError that names the expected form."""
        match = patterns.fullmatch(_FORM, text) if isinstance(text, str) else None
        if match is None:
            raise JobSpecError.of(
                "target", text, "cannot be read as metric, direction and value", _REMEDY
            )
        value: float | None = None
        # The training alone can know a value that depends on its data.
        if match["value"] != "runtime":
            value = _number(match["value"])
            if not math.isfinite(value):
                problem = f"its value {match['value']!r} is not a finite number"
                raise JobSpecError.of("target", text, problem, _REMEDY)
        return cls(
            metric=match["metric"],
            higher_is_better=match["op"] == ">=",
            value=value,
            per_cent=bool(match["unit"]),
        )

    def with_value(self, value: float, *, epochs_reported: int) -> Self:
        """This target with the value that ``run.set_target()`` was given.

        Raises ReportError: the job states a value itself, an epoch was reported already, not a
        finite number.
        """
        if self.value is not None:
            raise ReportError(
                f'run.set_target({value!r}): the job\'s target "{self} {self.value:g}" has a value '
                f'already. Write "{self} runtime" there, or leave set_target() out.'
            )
        # Epochs before and after would count against two targets.
        if epochs_reported:
            raise ReportError(
                f"run.set_target({value!r}): an epoch was reported already. Set the target before "
                "the loop, or what "
                "was reached by then would count against another target."
            )
        number = math.nan if isinstance(value, str | bytes) else _number(value)
        if not math.isfinite(number):
            raise ReportError(
                f"run.set_target({_shown(value)}): not a finite number. Compute it from this run's "
                "own data."
            )
        return replace(self, value=_meant(number))

    def reached(self, metric: float) -> bool:
        """Whether ``metric`` meets the target. Raises ReportError if the value is not set yet."""
        if self.value is None:
            raise ReportError(
                f'target "{self} runtime" has no value yet. Call run.set_target(value) before the '
                "first run.report()."
            )
        if self.higher_is_better:
            return metric >= self.value
        return metric <= self.value

    @property
    def turned(self) -> str:
        """Why the direction looks like the wrong one, by the metric's name; empty if it does
        not.
        """
        # Training makes a loss fall: a target that waits for it to rise is met by a bad model.
        opposite = "fall" if self.higher_is_better else "rise"
        if self._way != opposite:
            return ""
        return (
            f"training should make {self.metric} {opposite}, and the target {self._stated} waits "
            "for the opposite"
        )

    @property
    def _way(self) -> str:
        """The direction in which training should move the metric, by its name: "fall" or "rise";
        empty if it does not say so.
        """
        words = self._words
        if _FALLING & words and not _NEGATED & words:
            return "fall"
        if _RISING & words or self._is_named_as_share:
            return "rise"
        return ""

    @property
    def other_way(self) -> str:
        """This target in the other direction, as a job states it; empty if the metric's name speaks
        against it.
        """
        other = replace(self, higher_is_better=not self.higher_is_better)
        if other.turned:
            return ""
        return other._stated

    @property
    def _stated(self) -> str:
        if self.value is None:
            return f"{self} runtime"
        unit = " %" if self.per_cent else ""
        return f"{self} {self.value:g}{unit}"

    @property
    def _words(self) -> frozenset[str]:
        return frozenset(patterns.findall("[a-z0-9]+", self._spaced))

    @property
    def _spaced(self) -> str:
        # valAccuracy has its words by capitals alone
        return patterns.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", "_", self.metric).lower()

    @property
    def _is_named_as_share(self) -> bool:
        """Whether the metric is a share by its name, as val_accuracy, f1_macro, F1Score, mIoU and
        mAP50 are.
        """
        names = r"(?<![a-z])(accuracy|acc|f1|auc|auroc|precision|recall|m?iou|map)(score)?(?![a-z])"
        return "loss" not in self._spaced and patterns.search(names, self._spaced) is not None

    def misread(self, metric: float) -> str:
        """Why a metric is in another unit than the target for sure, with the remedy; else empty.

        A share is at most 1, if the target's value is one and the metric's name is that of a share,
        with any prefix or suffix (``val_accuracy``, ``f1_macro``). If the target says that it is in
        per cent, it is at most 100. Other errors in per cent may be more (word error rate), and so
        may growth.
        """
        whole = 100.0 if self.per_cent else 1.0
        value = self.value or 0.0
        # for example word error rate may be above 100 %
        rises_in_per_cent = self.per_cent and self.higher_is_better
        has_most = self._is_named_as_share or rises_in_per_cent
        # A metric that may be any number is never in the wrong unit for sure.
        if not has_most or not 0 < value <= whole:
            return ""
        # sums of many terms are not exact
        if metric <= whole * (1 + 1e-6) or not math.isfinite(metric):
            return ""
        unit = "a share"
        other = ", or state the target in per cent (... %)"
        if self.per_cent:
            unit = "per cent"
            other = ""
        return (
            f"{self.metric} {metric:g} was reported, and the target is {self} {value:g}, {unit}, "
            f"which is at most {whole:g}. Report it as {unit}{other}."
        )

    def doubt(self, metric: float) -> tuple[str, str] | None:
        """The doubt about the target beside a metric, and the remedy: its direction, else its
        unit; else None.

        The unit, if one of both looks like a share and the other one like per cent: of metrics that
        are shares or error rates by name, and of targets that say that they are in per cent. A
        reward, or a loss, may be any number.
        """
        turned = self.turned
        if turned:
            return turned, f'write "{self.other_way}"'
        value = self.value or 0.0
        is_rate = "rate" in self._words and not self._words.isdisjoint(("error", "err"))
        is_share = is_rate or self._is_named_as_share
        if is_share and 0 < value <= 1 < metric <= 100:
            looks = "the target looks like a share and the report like per cent"
        elif (is_share or self.per_cent) and 0 < metric <= 1 < value <= 100:
            looks = "the target looks like per cent and the report like a share"
        else:
            return None
        return (
            f"{self.metric} {metric:g} was reported, and the target is {self} {value:g}: {looks}",
            "report it in the unit of the target, or change the target",
        )

    def at_once(self, first: float) -> tuple[str, str] | None:
        """That the first epoch's metric reaches the target, and the remedy; None if it does not."""
        if self.value is None or not self.reached(first):
            return None
        remedy = "if that is not meant, set a target that only a trained model reaches"
        if self.other_way:
            remedy += f'; or is "{self.other_way}" meant'
        return (
            f"{self.metric} {first:g} reaches the target ({self} {self.value:g}) at once",
            remedy,
        )

    def pick(self, metrics: Mapping[str, float], call: str = "run.report") -> float:
        """The target's metric among those given to ``call``, as it is meant if it comes in
        single precision.

        An infinity on the far side of the target is a number (perplexity overflows in early
        epochs): the target is not reached. Raises ReportError: missing, not one number, not a
        finite one otherwise, or in another unit.
        """
        if self.metric not in metrics:
            raise ReportError(
                f"{call}() got {sorted(metrics)}, but the target is on {self.metric!r}. "
                f"Report it, as in {call}({self.metric}=value), or name another metric in the "
                "job's target."
            )
        reported: Any = metrics[self.metric]
        try:
            # numpy's of one element is no float
            one = reported.item() if hasattr(reported, "item") else reported
            is_text = isinstance(one, str | bytes)
            value = math.nan if is_text else float(one)
        except _NO_NUMBER:
            shown = f"{call}({self.metric}={_shown(reported)})"
            raise ReportError(
                f"{shown}: not one number. Report one for the whole epoch, such as a mean."
            ) from None
        if is_text:
            shown = f"{call}({self.metric}={_shown(one)})"
            raise ReportError(
                f"{shown}: not one number, but a text. Write {call}({self.metric}=float(value))."
            )
        # An infinity on the near side would reach the target by an error.
        past_target = math.inf if self.higher_is_better else -math.inf
        if math.isnan(value) or value == past_target:
            raise ReportError(
                f"{call}({self.metric}={reported!r}): not a finite number. The training may have "
                "diverged (a smaller learning rate helps), or the metric is computed on an empty "
                "set."
            )
        why = self.misread(value)
        if why:
            raise ReportError(f"{call}({self.metric}={reported!r}): {why}")
        if math.isfinite(value):
            return _meant(value)
        return value

    def __str__(self) -> str:
        sign = ">=" if self.higher_is_better else "<="
        return f"{self.metric} {sign}"


# float() raises each of these: of a tensor of several elements, for example, or of 10**400.
_NO_NUMBER = (TypeError, ValueError, RuntimeError, OverflowError)


def _number(value: Any) -> float:
    """A number, or NaN if it is none."""
    try:
        return float(value)
    except _NO_NUMBER:
        return math.nan


def _shown(value: object) -> str:
    """At most 60 characters of a value: a tensor, or an integer, may be huge."""
    try:
        text = repr(value)
    except Exception:  # of an integer of more than 4300 digits, or of a class of the author's
        return type(value).__name__
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


def _meant(value: float) -> float:
    """The shortest number of which single precision makes ``value``, as .89999998 of .9; any other
    as it is.
    """
    shorter = [float(f"{value:.{digits}g}") for digits in range(6, 10)]
    # torch computes in single precision: .9 comes as .89999998, which would miss a target of .9.
    first, *singles = array("f", [value, *shorter])
    if first != value:
        return value
    return next(short for short, single in zip(shorter, singles, strict=True) if single == value)


def remark(doubt: tuple[str, str]) -> str:
    """The doubt and its remedy, as logs, pages and commands say them."""
    what, remedy = doubt
    return f"{what[0].upper()}{what[1:]}. Remedy: {remedy}."
