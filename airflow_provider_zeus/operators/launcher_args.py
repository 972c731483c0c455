"""What a command starts, read from its arguments: how many processes, and whether on other hosts.

Standard library only.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence

_TORCHRUN = {"--nproc-per-node": "1", "--nnodes": "1"}
_LAUNCHERS = {  # words of the command -> options whose product is the number of processes, with their defaults
    ("torchrun",): _TORCHRUN,
    ("-m", "torch.distributed.run"): _TORCHRUN,
    ("-m", "torch.distributed.launch"): _TORCHRUN,
    ("accelerate", "launch"): {"--num-processes": ""},  # of all hosts; its default is in a file
}


def submits_to_slurm(command: Sequence[str]) -> bool:
    """Whether a command is ``sbatch``, so that the training runs on hosts that Slurm chooses."""
    return bool(command) and os.path.basename(command[0]) == "sbatch"


def processes_of(command: Sequence[str], gpus: int | None) -> int | None:
    """Return how many processes a command starts by torchrun or accelerate; None where its words do not say.

    :param command: arguments, or ``["bash", "-c", text]``.
    :param gpus: of the job, for ``--nproc-per-node=gpu`` and ``auto``.
    """
    words = list(command)
    if words[:2] == ["bash", "-c"]:
        try:
            words = shlex.split(words[2])
        except ValueError:  # uses more of the shell's grammar
            return None
    names = [os.path.basename(word) for word in words]
    for launcher, options in _LAUNCHERS.items():
        size = len(launcher)
        found = [i for i in range(len(names)) if tuple(names[i : i + size]) == launcher]
        if len(found) == 1:
            arguments = words[found[0] + size :]
            counts = [_count(arguments, option, default, gpus) for option, default in options.items()]
            return math.prod(n for n in counts if n) if all(counts) else None
    return None


def _count(words: Sequence[str], option: str, default: str, gpus: int | None) -> int | None:
    """Value of an option, given by ``=`` or in the next word; None where it is no number, as "1:4" or "$N"."""
    text = default
    for i, word in enumerate(words):
        name, given, value = word.partition("=")
        if name.replace("_", "-") == option:
            text = value if given else next(iter(words[i + 1 :]), "")
            break
    if text in ("gpu", "auto"):
        return gpus
    return int(text) if text.isdecimal() and int(text) else None
