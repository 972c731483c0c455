"""Bounds on the size of what a training reports. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from airflow_provider_zeus.model.power_points import thinned
from airflow_provider_zeus.model.trial import BATCH_SIZE, IMPORTED, LIMIT, Observation, PowerPoint, ProfileSample

MOST_TEXT = 1000  # characters of a text, such as the reason why a training ended
MOST_RETURNED = 4096  # characters of the JSON that a training function returned
MOST_SAMPLES = 1000  # profile samples in one report, and in the profile of one device
MOST_EPOCHS = 1000  # whose metric is kept
_MOST_GPUS = 1000
_MOST_PHASE = 50  # characters
_TEXTS = {
    "device_model": MOST_TEXT,
    "energy_source": MOST_TEXT,
    "gpu_uuid": 10_000,  # of all GPUs, joined
    "price_currency": 12,
    "price_source": 200,
    "g_co2e_source": 200,
}
_FIELDS = frozenset({*(f.name for f in fields(Observation)), BATCH_SIZE, IMPORTED, LIMIT})


def truncated(text: str, most: int = MOST_TEXT) -> str:
    """The text cut to ``most`` characters, with ``?`` for what databases refuse: NUL, and what is not UTF-8."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("\0", "?").encode(errors="replace").decode()


def truncated_observation(seen: Observation) -> Observation:
    """The observation with its texts cut, only reasons of its own fields, and its lists with 1000 values at most."""
    changed: dict[str, Any] = {}
    for name, most in _TEXTS.items():
        text = getattr(seen, name)
        if text is not None and (short := truncated(text, most)) != text:
            changed[name] = short
    reasons = {name: truncated(why) for name, why in seen.reasons.items() if name in _FIELDS}
    if reasons != seen.reasons:
        changed["reasons"] = reasons
    if seen.returned is not None and truncated(seen.returned, MOST_RETURNED) != seen.returned:
        changed["returned"] = None  # cut, it would be no JSON
    if seen.gpu_energy_j is not None and len(seen.gpu_energy_j) > _MOST_GPUS:
        changed["gpu_energy_j"] = None
    if seen.epoch_metrics is not None and len(seen.epoch_metrics) > MOST_EPOCHS:
        changed["epoch_metrics"] = seen.epoch_metrics[:MOST_EPOCHS]
    return replace(seen, **changed) if changed else seen


def newest_samples(samples: Sequence[ProfileSample]) -> tuple[ProfileSample, ...]:
    """The newest 1000 samples."""
    return tuple(samples[-MOST_SAMPLES:])


def bounded_points(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """At most 500 points, the text of each phase cut."""
    few = thinned(points)
    return tuple(replace(p, phase=short) if (short := truncated(p.phase, _MOST_PHASE)) != p.phase else p for p in few)
