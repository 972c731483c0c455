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
_REMEDY = 'write it as "accuracy >= 0.84" or "rmse <= 1.5", or "rmse <= runtime" and call run.set_target()'


@dataclass(frozen=True, slots=True)
class Target:
    """``metric >= value`` or ``metric <= value``; a value of None is set later by ``run.set_target()``.

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
            raise JobSpecError.of("target", text, "cannot be read as metric, direction and value", _REMEDY)
        value: float | None = None
        if match["value"] != "runtime":
            try:
                value = float(match["value"])
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise JobSpecError.of("target", text, f"its value {match['value']!r} is not a finite number", _REMEDY)
        return cls(match["metric"], match["op"] == ">=", value, bool(match["unit"]))

    def with_value(self, value: float, *, epochs_reported: int) -> Self:
        """This target with the value that ``run.set_target()`` was given.

        Raises ReportError: the job states a value itself, an epoch was reported already, not a finite number.
        """
        if self.value is not None:
            raise ReportError(
                f'run.set_target({value!r}): the job\'s target "{self} {self.value:g}" has a value already. '
                f'Write "{self} runtime" there, or leave set_target() out.'
            )
        if epochs_reported:
            raise ReportError(
                f"run.set_target({value!r}): an epoch was reported already. Set the target before the loop, or what "
                "was reached by then would count against another target."
            )
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # of a tensor of several elements, of 10**400
            number = math.nan
        if not math.isfinite(number):
            raise ReportError(
                f"run.set_target({_shown(value)}): not a finite number. Compute it from this run's own data."
            )
        return replace(self, value=_meant(number))

    def reached(self, metric: float) -> bool:
        """Whether ``metric`` meets the target. Raises ReportError where the value is not set yet."""
        if self.value is None:
            raise ReportError(
                f'target "{self} runtime" has no value yet. Call run.set_target(value) before the first run.report().'
            )
        return metric >= self.value if self.higher_is_better else metric <= self.value

    @property
    def turned(self) -> str:
        """Why the direction looks like the wrong one, by the metric's name; empty where it does not."""
        falling = {"loss", "error", "errors", "err", "rmse", "mse", "mae", "mape", "nll", "perplexity", "ppl", "wer"}
        rising = {"r2", "bleu", "rouge", "ndcg", "mrr", "psnr", "ssim", "reward"}
        falls = bool(falling & self._words) and not {"neg", "negative", "minus"} & self._words
        rises = not falls and bool(rising & self._words or self._is_named_as_share)
        if (falls and self.higher_is_better) or (rises and not self.higher_is_better):
            way = "fall" if falls else "rise"
            return f"training should make {self.metric} {way}, and the target {self._stated} waits for the opposite"
        return ""

    @property
    def other_way(self) -> str:
        """This target in the other direction, as a job states it; empty where the metric's name speaks against it."""
        other = replace(self, higher_is_better=not self.higher_is_better)
        return "" if other.turned else other._stated

    @property
    def _stated(self) -> str:
        value = "runtime" if self.value is None else f"{self.value:g}{' %' if self.per_cent else ''}"
        return f"{self} {value}"

    @property
    def _words(self) -> frozenset[str]:
        return frozenset(patterns.findall("[a-z0-9]+", self._spaced))

    @property
    def _spaced(self) -> str:
        return patterns.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", "_", self.metric).lower()  # valAccuracy

    @property
    def _is_named_as_share(self) -> bool:
        """Whether the metric is a share by its name, as val_accuracy, f1_macro, F1Score, mIoU and mAP50 are."""
        names = r"(?<![a-z])(accuracy|acc|f1|auc|auroc|precision|recall|m?iou|map)(score)?(?![a-z])"
        return "loss" not in self._spaced and patterns.search(names, self._spaced) is not None

    def misread(self, metric: float) -> str:
        """Why a metric is in another unit than the target for sure, with the remedy; empty where it may be in its unit.

        A share is at most 1: where the target's value is one and the metric's name is that of a share, with any prefix
        or suffix (``val_accuracy``, ``f1_macro``). Where the target says that it is in per cent, it is at most 100.
        Other errors in per cent may be more (word error rate), and so may growth.
        """
        named = self._is_named_as_share
        whole, value = 100.0 if self.per_cent else 1.0, self.value or 0.0
        is_share = 0 < value <= whole and (named or (self.per_cent and self.higher_is_better))
        most = whole if is_share else math.inf
        if metric <= most * (1 + 1e-6) or not math.isfinite(metric):  # sums of many terms are not exact
            return ""
        unit, other = ("per cent", "") if self.per_cent else ("a share", ", or state the target in per cent (... %)")
        return (
            f"{self.metric} {metric:g} was reported, and the target is {self} {value:g}, {unit}, which is at most "
            f"{most:g}. Report it as {unit}{other}."
        )

    def doubt(self, metric: float) -> tuple[str, str] | None:
        """What looks wrong in the target beside a metric, and the remedy: its direction, else its unit; else None.

        The unit, where one of both looks like a share and the other one like per cent: of metrics that are shares or
        error rates by name, and of targets that say that they are in per cent. A reward, or a loss, may be any number.
        """
        if turned := self.turned:
            return turned, f'write "{self.other_way}"'
        value, is_rate = self.value or 0.0, "rate" in self._words and not self._words.isdisjoint(("error", "err"))
        is_share = is_rate or self._is_named_as_share
        share = is_share and 0 < value <= 1 < metric <= 100
        per_cent = (is_share or self.per_cent) and 0 < metric <= 1 < value <= 100
        if not (share or per_cent):
            return None
        kinds = ("a share", "per cent") if share else ("per cent", "a share")
        return (
            f"{self.metric} {metric:g} was reported, and the target is {self} {value:g}: the target looks like "
            f"{kinds[0]} and the report like {kinds[1]}",
            "report it in the unit of the target, or change the target",
        )

    def pick(self, metrics: Mapping[str, float], call: str = "run.report") -> float:
        """The target's metric among those given to ``call``, as it is meant where it comes in single precision.

        An infinity on the far side of the target is a number (perplexity overflows in early epochs): the target is not
        reached. Raises ReportError: missing, not one number, not a finite one otherwise, or in another unit.
        """
        if self.metric not in metrics:
            raise ReportError(
                f"{call}() got {sorted(metrics)}, but the target is on {self.metric!r}. "
                f"Report it, as in {call}({self.metric}=value), or name another metric in the job's target."
            )
        try:
            given: Any = metrics[self.metric]
            given = given.item() if hasattr(given, "item") else given  # numpy's of one element is no float
            value = math.nan if isinstance(given, str | bytes) else float(given)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # of a tensor of several elements, of 10**400
            shown = f"{call}({self.metric}={_shown(metrics[self.metric])})"
            raise ReportError(f"{shown}: not one number. Report one for the whole epoch, such as a mean.") from None
        if isinstance(given, str | bytes):
            shown = f"{call}({self.metric}={_shown(given)})"
            raise ReportError(f"{shown}: not one number, but a text. Write {call}({self.metric}=float(value)).")
        if math.isnan(value) or value == (math.inf if self.higher_is_better else -math.inf):
            raise ReportError(
                f"{call}({self.metric}={metrics[self.metric]!r}): not a finite number. The training may have "
                f"diverged (a smaller learning rate helps), or the metric is computed on an empty set."
            )
        if why := self.misread(value):
            raise ReportError(f"{call}({self.metric}={metrics[self.metric]!r}): {why}")
        return _meant(value) if math.isfinite(value) else value

    def __str__(self) -> str:
        return f"{self.metric} {'>=' if self.higher_is_better else '<='}"


def _shown(value: object) -> str:
    """At most 60 characters of what was given: a tensor, or an integer, may be huge."""
    try:
        text = repr(value)
    except Exception:  # of an integer of more than 4300 digits, or of a class of the author's
        return type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meant(value: float) -> float:
    """The shortest number of which single precision makes ``value``, as .89999998 of .9; any other as it is."""
    shorter = [float(f"{value:.{digits}g}") for digits in range(6, 10)]
    first, *singles = array("f", [value, *shorter])
    if first != value:
        return value
    return next(short for short, single in zip(shorter, singles, strict=True) if single == value)
