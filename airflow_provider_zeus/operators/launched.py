"""How many processes a command starts to train together, as far as its words tell. Standard library only."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence

_TORCHRUN = {"--nproc-per-node": "1", "--nnodes": "1"}
_LAUNCHERS = {  # words of the command -> options whose product is the number, with what holds where they are not there
    ("torchrun",): _TORCHRUN,
    ("-m", "torch.distributed.run"): _TORCHRUN,
    ("-m", "torch.distributed.launch"): _TORCHRUN,
    ("accelerate", "launch"): {"--num-processes": ""},  # of all hosts; else a file says it
}
_OF_THE_GPUS = ("gpu", "auto")


def processes_of(command: Sequence[str], gpus: int | None) -> int | None:
    """Processes that a command starts by torchrun or accelerate; None where its words do not tell.

    :param command: arguments, or ``["bash", "-c", text]``.
    :param gpus: of the job, for a number of processes that follows the GPUs.
    """
    words = _words(command)
    for launcher, options in _LAUNCHERS.items():
        at = _position(words, launcher)
        if at is not None:
            said = words[at + len(launcher) :]
            found = [_number(_option(said, name, default), gpus) for name, default in options.items()]
            return math.prod(n for n in found if n) if all(found) else None
    return None


def _words(command: Sequence[str]) -> list[str]:
    if list(command[:2]) != ["bash", "-c"]:
        return list(command)
    try:
        return shlex.split(command[2])
    except ValueError:  # of a shell's own grammar
        return []


def _position(words: Sequence[str], launcher: Sequence[str]) -> int | None:
    """Where a launcher stands; None where it does not, or more than once."""
    named = [os.path.basename(word) for word in words]
    found = [i for i in range(len(words)) if tuple(named[i : i + len(launcher)]) == tuple(launcher)]
    return found[0] if len(found) == 1 else None


def _option(words: Sequence[str], option: str, default: str) -> str:
    """The value of an option, by ``=`` or in the next word."""
    for i, word in enumerate(words):
        name, given, value = word.partition("=")
        if name.replace("_", "-") == option:
            return value if given else next(iter(words[i + 1 :]), "")
    return default


def _number(text: str, gpus: int | None) -> int | None:
    if text in _OF_THE_GPUS:
        return gpus
    return int(text) if text.isdecimal() and int(text) else None  # "1:4" hosts and "$N" processes: nobody knows yet
