"""Bounds on the size of reports of a training. Standard library only."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    DATA_WAIT,
    LIMIT,
    NO_STRIKE,
    PAUSED,
    PLAIN,
    TO_TRY,
    UNCAPPED,
    UNSEEN,
    WHY_COLD,
    Observation,
)
from airflow_provider_zeus.model.wire import Text, rules

MOST_TEXT = 1000  # any training may write it, and each page of the job loads it
MOST_RETURNED = 4096  # the next run gets it in its environment
MOST_SAMPLES = 1000  # all of a device's are read for each decision
MOST_EPOCHS = 1000  # a chart shows no more, and each row of a log is loaded
MAX_POINTS = 500  # a chart has no more pixels, and each of a trial's points is stored
MOST_PHASE = 50  # any training may write it
# Any other key is a training's own, and would grow without bound.
_REASONS = frozenset(f.name for f in fields(Observation)).union(
    (BATCH_SIZE, DATA_WAIT, LIMIT, NO_STRIKE, PAUSED, PLAIN, TO_TRY, UNCAPPED, UNSEEN, WHY_COLD)
)


def truncated(text: str, most: int = MOST_TEXT) -> str:
    """The text cut to ``most`` characters, with ``?`` for characters that databases refuse: NUL,
    and what is not UTF-8.
    """
    short = text
    if len(text) > most:
        short = text[: most - 1] + "…"
    return short.replace("\0", "?").encode(errors="replace").decode()


def truncated_observation(observation: Observation) -> Observation:
    """The observation with its texts cut, only reasons of its own fields, and its lists with 1000
    values at most; itself if nothing of it is cut.
    """
    changed: dict[str, Any] = {}
    for name, most in _texts().items():
        text = getattr(observation, name)
        if text is not None:
            changed[name] = truncated(text, most)
    changed["reasons"] = {
        name: truncated(why) for name, why in observation.reasons.items() if name in _REASONS
    }
    returned = observation.returned
    if returned is not None and truncated(returned, MOST_RETURNED) != returned:
        changed["returned"] = None  # cut, it would be no JSON
    if observation.gpu_energy_j is not None and len(observation.gpu_energy_j) > 1000:
        changed["gpu_energy_j"] = None
    if observation.epoch_metrics is not None:
        changed["epoch_metrics"] = observation.epoch_metrics[:MOST_EPOCHS]
    # A log has many observations, of which hardly one is cut: a copy of each takes its time.
    if all(getattr(observation, name) == value for name, value in changed.items()):
        return observation
    return replace(observation, **changed)


@cache
def _texts() -> dict[str, int]:
    """The texts of an observation that are cut, and how many characters are left of each."""
    texts = {n: rule for n, rule in rules(Observation).items() if isinstance(rule, Text)}
    return {n: rule.most for n, rule in texts.items() if rule.most and not rule.exact}
