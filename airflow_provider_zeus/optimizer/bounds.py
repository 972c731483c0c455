"""How much a training may tell: what comes from elsewhere may be of any size. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from airflow_provider_zeus.optimizer.points import MAX_POINTS, thinned
from airflow_provider_zeus.optimizer.trial import Observation, PowerPoint, ProfileSample

MOST_TEXT = 1000  # characters of a text: why a training ended, the name of a device
MOST_SAMPLES = 1000  # profile samples in one report, and in the profile of one device
_MOST_UUIDS = 10_000  # characters of the UUIDs of all GPUs
_MOST_GPUS = 1000
_MOST_PHASE = 50  # characters
_FIELDS = frozenset(f.name for f in fields(Observation))


def brief(text: str, most: int = MOST_TEXT) -> str:
    """A text of at most ``most`` characters, with ``?`` for control characters and for what no database takes."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short if short.isprintable() else "".join(c if _is_kept(c) else "?" for c in short)


def _is_kept(c: str) -> bool:
    return c.isprintable() or c in "\n\t" or (c >= "\xa0" and c.isspace())


def bounded(seen: Observation) -> Observation:
    """The observation with brief texts, reasons of its own fields alone, and parts of at most 1000 GPUs."""
    each = seen.gpu_energy_j
    return replace(
        seen,
        device_model=None if seen.device_model is None else brief(seen.device_model),
        energy_source=None if seen.energy_source is None else brief(seen.energy_source),
        gpu_uuid=None if seen.gpu_uuid is None else brief(seen.gpu_uuid, _MOST_UUIDS),
        gpu_energy_j=None if each is not None and len(each) > _MOST_GPUS else each,
        reasons={name: brief(why) for name, why in seen.reasons.items() if name in _FIELDS},
    )


def few_samples(samples: Sequence[ProfileSample]) -> tuple[ProfileSample, ...]:
    """The newest 1000 samples."""
    return tuple(samples[-MOST_SAMPLES:])


def few_points(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """At most 500 points, each with a brief phase."""
    few = points if len(points) <= MAX_POINTS else thinned(points)
    return tuple(replace(p, phase=short) if (short := brief(p.phase, _MOST_PHASE)) != p.phase else p for p in few)
