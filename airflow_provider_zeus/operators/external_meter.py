"""Figures, seen from outside, of a command that does not use this package: energy, time,
outcome, batch size.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_zeus import patterns
from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    PLAIN,
    START_UNSEEN,
    UNSEEN,
    WHY_COLD,
    Observation,
    PlannedAttempt,
    State,
)
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.power.meter import DeviceMeter

ELSEWHERE = "the command trains on another host, which has sent no figure"
LOOK_S = 3.0  # a command's files may lie on a share of a network that hangs
NOT_STOPPED = "no ZeusRun was opened: it is measured from outside, and runs to its end"


class ExternalMeter(DeviceMeter):
    """Measures energy and time of a device from its construction on, so a command's set-up is
    included.
    """

    def observation(self) -> Observation:
        """Return the sums up to now; each figure that cannot be measured from outside is None with
        its reason.
        """
        self.look()
        measured = super().observation()
        unreported = "measured from outside: the command did not report it"
        reasons = {"epochs": unreported, "samples": unreported, **measured.reasons}
        if measured.energy_source != "simulated":
            return replace(measured, reasons=reasons)
        why = (
            "a simulated GPU advances with the steps that a training reports: use "
            "ZeusRun.from_env() there"
        )
        reasons |= {"energy_j": why, "time_s": why}
        return replace(measured, energy_j=None, time_s=None, gpu_energy_j=None, reasons=reasons)


class Outcome(NamedTuple):
    """How a command has ended, why not well, and the observation."""

    state: State
    reason: str | None
    observation: Observation


def outcome_of(job: ZeusJob, last_line: str, seen: Observation) -> Outcome:
    """Return the outcome of a command that succeeded and wrote no result.

    The last line of its output may be a JSON object with the target's metric and, optionally,
    ``epochs``, ``samples`` (in all) and, if the job's target is set at run time, ``target``.
    ``start`` is the start that was taken, and ``served`` the earlier model's metric. Without
    ``epochs`` the run counts as one epoch, so that whole runs are compared. Without the metric it
    is not known whether the target was reached: the model is kept, and the run teaches nothing
    about batch sizes.

    :param seen: measured from outside.
    """
    document = _document_in(last_line)
    target = job.parsed_target
    reported = _numbers_of(document)
    example = {target.metric: 0.9, "epochs": 12}
    if target.value is None:
        target = replace(target, value=reported.get("target"))
        example = {**example, "target": 0.8}
    # No dict: a metric may be named target.
    required = [(target.metric, reported.get(target.metric)), ("target", target.value)]
    missing = [name for name, value in required if value is None]
    if missing:
        remedy = f"print it as JSON on its last line, as in {json.dumps(example)}"
        state = State.NO_METRIC if target.metric in missing else State.EXHAUSTED
        others = [name for name in reported if patterns.fullmatch(r"[A-Za-z_][\w./-]{0,39}", name)]
        did = "did not report"
        # NaN, or a number as text: the author did print it, and should look at its value
        if any(f'"{name}"' in last_line for name in missing):
            did = "reported no finite number as"
        elif others:
            did = f"reported {masked(', '.join(others[:5]))}, and not"
        return Outcome(state, f"the command {did} its {' and '.join(missing)}: {remedy}", seen)
    metric = reported[target.metric]
    figures = {"metric": metric, "target_value": target.value, **_figures_in(document, reported)}
    # a figure that has come needs no reason for its absence
    reasons = {name: why for name, why in seen.reasons.items() if name not in figures}
    observation = replace(seen, **figures, reasons=reasons)
    doubt = target.misread(metric)
    if doubt:
        reason = f"whether it reached its target is not known: {doubt}"
        return Outcome(State.EXHAUSTED, reason, observation)
    if target.reached(metric):
        return Outcome(State.CONVERGED, None, observation)
    return Outcome(State.EXHAUSTED, f"ended at {metric:g}, below target", observation)


def _figures_in(document: Mapping[str, Any], reported: Mapping[str, float]) -> dict[str, Any]:
    """The figures that a command reports of its run, besides the metric."""
    epochs = reported.get("epochs", 0.0)
    # As one epoch each: then whole runs can at least be compared.
    figures: dict[str, Any] = {"epochs": epochs if epochs > 0 else 1.0}
    samples = reported.get("samples", 0.0)
    # above it not every whole number is a float
    if 1 <= samples < 2**53:
        figures["samples"] = int(samples)
    if "served" in reported:
        figures["served"] = reported["served"]
    if document.get("start") in list(Start):
        figures["start"] = Start(document["start"])
    return figures


def seen_to_use(
    seen: Observation, planned: PlannedAttempt, command: Sequence[str], cwd: str | None
) -> Observation:
    """The observation of a command that opened no ZeusRun, with whether it is seen to use its batch
    size and start.

    If its files do not answer in time, as on a share of a network that hangs, nothing is said of
    it.
    """
    reasons = {**seen.reasons, PLAIN: NOT_STOPPED}
    start = seen.start or planned.start
    try:
        uses_size = bounded(lambda: names(command, cwd, "ZEUS_BATCH_SIZE"), LOOK_S)
        if seen.start is None and planned.start is not None:
            uses_start = bounded(lambda: names(command, cwd, "ZEUS_START"), LOOK_S)
            if not uses_start:
                start = Start.COLD
                reasons[WHY_COLD] = f"{START_UNSEEN}: read it from ZEUS_START"
    except TimeoutError:
        uses_size = True
    if not uses_size:
        reasons[UNSEEN] = (
            f"the command is not seen to use batch size {planned.batch_size}: it opened no "
            "ZeusRun, and neither its arguments nor a script that they name has ZEUS_BATCH_SIZE"
        )
    return replace(seen, start=start, reasons=reasons)


def names(command: Sequence[str], cwd: str | None, word: str) -> bool:
    """Whether a command has this word, or a script or module of this host that it leads to has."""
    most_files = 50
    top = Path(cwd or ".")
    line = " ".join(command)
    # Scripts may name each other in a circle: the search would not end.
    looked_at = {top}
    folders = [top]  # after a ``cd`` a name is relative to its folder
    texts = [(top, line, patterns.findall(r"[^\s'\"();|&<>={}$:,]+", line)[:500])]
    for folder, text, named in texts:  # the loop appends to it: scripts lead to scripts
        if word in text:
            return True
        for name in named:
            for path in _meant(name, (folder, *folders)):
                try:
                    if len(folders) < 10 and path not in folders and path.is_dir():
                        folders.append(path)
                    # bounded: the files may lie on a slow share of a network
                    is_new = path not in looked_at and len(texts) <= most_files
                    if not is_new or not path.is_file():
                        continue
                    looked_at.add(path)
                    with path.open("rb") as file:
                        script = file.read(2**20).decode(errors="replace")
                except (OSError, ValueError):
                    continue
                texts.append((path.parent, script, _named_in(script)[:200]))
    return False


def _meant(name: str, folders: Sequence[Path]) -> Iterable[Path]:
    """The files and folders that a word may mean: as a path, or as a module."""
    module = name.replace(".", "/")
    ends = (".py", "/__init__.py", "/__main__.py")
    paths = [name, os.path.basename(name), *(module + end for end in ends)]
    return dict.fromkeys(folder / path for folder in folders for path in paths)


def _named_in(text: str) -> list[str]:
    """The files and modules that a script names: words with an ending, and those after import,
    from, cd or -m.
    """
    named = []
    for line in text.splitlines():
        words = patterns.findall(r"[\w./-]+", line)
        for before, word in pairwise(["", *words]):
            if before in ("import", "from", "cd", "-m"):
                named.append(word.removeprefix("."))
            elif patterns.fullmatch(r"[\w./-]+\.\w{1,6}", word):
                named.append(word)
    return named


def _document_in(line: str) -> dict[str, Any]:
    """The JSON object of a line; empty if the line is something else."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _numbers_of(document: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a JSON object, booleans left out."""
    numbers = {}
    for name, value in document.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) <= sys.float_info.max:
            numbers[name] = float(value)
    return numbers
