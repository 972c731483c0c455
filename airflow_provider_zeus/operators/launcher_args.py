"""What a command starts, read from its arguments: how many processes, and whether on other hosts.

Standard library only.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Collection, Sequence


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
            words = shlex.split(words[2].replace("\\\n", ""))
        except ValueError:  # uses more of the shell's grammar
            return None
    names = [os.path.basename(word) for word in words]
    torchrun = {"--nproc-per-node": "1", "--nnodes": "1"}
    launchers = {  # words of the command -> options whose product is the number of processes, with their defaults
        ("torchrun",): torchrun,
        ("-m", "torch.distributed.run"): torchrun,
        ("-m", "torch.distributed.launch"): torchrun,
        ("accelerate", "launch"): {"--num-processes": ""},  # of all hosts; its default is in a file
    }
    for launcher, options in launchers.items():
        size = len(launcher)
        found = [i for i in range(len(names)) if tuple(names[i : i + size]) == launcher]
        if len(found) == 1:
            arguments = _before_script(words[found[0] + size :], options)
            if arguments is None:
                return None
            counts = [_count(arguments, option, default, gpus) for option, default in options.items()]
            return math.prod(n for n in counts if n) if all(counts) else None
    return None


def _before_script(words: Sequence[str], options: Collection[str]) -> Sequence[str] | None:
    """Words before a launcher's script, or its module: the launcher's own; None where that is not found.

    A word that ends in ``.py`` is the script, even after an option that is not known here: most of those are flags.
    Any other word is the script only where it cannot be the value of an option, nor a variable of the shell.

    :param options: of which it is known that a value follows.
    """
    sure, before = True, ""  # whether no earlier word may have been the script; the word before
    for i, word in enumerate(words):
        bare, is_value = before.startswith("-") and "=" not in before, _option(before) in options
        before = word
        if bare and is_value:
            continue
        if word in ("--", "-m", "--module") or word.endswith(".py"):
            return words[:i]
        if not word.startswith("-"):
            if sure and not bare and "$" not in word:
                return words[:i]
            sure = False
    return None


def _count(words: Sequence[str], option: str, default: str, gpus: int | None) -> int | None:
    """Value of an option, given by ``=`` or in the next word; None where it is no number, as "1:4" or "$N".

    The last one counts where the option is repeated.
    """
    text = default
    for i, word in enumerate(words):
        if _option(word) == option:
            _, given, value = word.partition("=")
            text = value if given else next(iter(words[i + 1 :]), "")
    if text in ("gpu", "auto"):
        return gpus
    return int(text) if text.isdecimal() and int(text) else None


def _option(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")
