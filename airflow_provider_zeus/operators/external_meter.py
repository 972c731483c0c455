"""What can be known from outside of a command that does not use this package: energy, time, outcome, batch size."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    PowerPoint,
    State,
)
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.task_meter import Counted

ELSEWHERE = "the command trains on another host, which has sent no figure"
LOOK_S = 3.0  # for the files of a command, which may lie on a share of a network
NOT_STOPPED = "no ZeusRun was opened: it is measured from outside, and runs to its end"


class ExternalMeter:
    """Measures energy and time of a device from its construction on, so a command's set-up is included."""

    def __init__(self, device: Device) -> None:
        self._counted = Counted(device)

    def point(self) -> PowerPoint:
        """Return a power point: mean power [W] since the last one."""
        counted = self._counted
        counted.advance()
        limit_w = counted.device.limit_w()
        return PowerPoint(t_s=counted.total.time_s, power_w=counted.take_power_w(), limit_w=limit_w, phase="train")

    def observation(self) -> Observation:
        """Return the sums up to now; each figure that cannot be measured from outside is None with its reason."""
        counted, device, info = self._counted, self._counted.device, self._counted.device.info
        counted.advance()
        total, why_not = counted.total, counted.why_not
        energy_j, time_s = None if why_not else total.energy_j, total.time_s or None
        reasons = dict.fromkeys(("epochs", "samples"), "measured from outside: the command did not report it")
        if info.energy_source == "simulated":
            energy_j, time_s = None, None
            why = "a simulated GPU advances with the steps that a training reports: use ZeusRun.from_env() there"
            reasons |= {"energy_j": why, "time_s": why}
        elif why_not:
            reasons["energy_j"] = why_not
        return Observation(
            energy_j=energy_j,
            time_s=time_s,
            power_limit_w=device.limit_w(),
            device_model=info.model,
            device_count=info.count,
            max_power_w=info.max_power_w,
            energy_source=info.energy_source,
            gpu_uuid=device.uuid,
            gpu_energy_j=None if energy_j is None else total.each_j,
            reasons=reasons,
        )


def outcome_of(job: ZeusJob, last_line: str, seen: Observation) -> tuple[State, str | None, Observation]:
    """Return (state, reason, observation) of a command that succeeded and wrote no result.

    The last line of its output may be a JSON object with the target's metric and, optionally, ``epochs``, ``samples``
    (in all) and, where the job's target is set at run time, ``target``. ``start`` is the start that was taken, and
    ``served`` the earlier model's metric. Without ``epochs`` the run counts as one epoch,
    so that whole runs are compared. Without the metric it is not known whether the target was reached: the model is
    kept, and the run teaches nothing about batch sizes.

    :param seen: what was measured from outside.
    """
    said = _document_in(last_line)
    target, reported = job.parsed_target, _numbers_of(said)
    example = {target.metric: 0.9, "epochs": 12}
    if target.value is None:
        target, example = replace(target, value=reported.get("target")), {**example, "target": 0.8}
    required = [(target.metric, reported.get(target.metric)), ("target", target.value)]  # a metric may be named target
    missing = [name for name, value in required if value is None]
    if missing:
        remedy = f"print it as JSON on its last line, as in {json.dumps(example)}"
        state = State.NO_METRIC if target.metric in missing else State.EXHAUSTED
        others = [name for name in reported if patterns.fullmatch(r"[A-Za-z_][\w./-]{0,39}", name)][:5]
        did = f"reported {masked(', '.join(others))}, and not" if others else "did not report"
        if any(f'"{name}"' in last_line for name in missing):
            did = "reported no finite number as"
        return state, f"the command {did} its {' and '.join(missing)}: {remedy}", seen
    metric = reported[target.metric]
    epochs, samples = reported.get("epochs", 0.0), reported.get("samples", 0.0)
    known: dict[str, Any] = {"metric": metric, "target_value": target.value, "epochs": epochs if epochs > 0 else 1.0}
    known |= {"samples": int(samples)} if 1 <= samples < 2**53 else {}
    known |= {"served": reported["served"]} if "served" in reported else {}
    if said.get("start") in list(Start):
        known["start"] = Start(said["start"])
    reasons = {name: why for name, why in seen.reasons.items() if name not in known}
    seen = replace(seen, **known, reasons=reasons)
    if why := target.misread(metric):
        return State.EXHAUSTED, f"whether it reached its target is not known: {why}", seen
    if target.reached(metric):
        return State.CONVERGED, None, seen
    return State.EXHAUSTED, f"ended at {metric:g}, below target", seen


def seen_to_use(seen: Observation, planned: PlannedAttempt, command: Sequence[str], cwd: str | None) -> Observation:
    """The observation of a command that opened no ZeusRun, with whether it is seen to use its batch size and start.

    Where its files do not answer in time, as on a share of a network that hangs, nothing is said of it.
    """
    reasons, batch_size = {**seen.reasons, PLAIN: NOT_STOPPED}, planned.batch_size
    sees_start = planned.start is None or seen.start is not None
    try:
        is_named = bounded(lambda: names(command, cwd, "ZEUS_BATCH_SIZE"), LOOK_S)
        starts = sees_start or bounded(lambda: names(command, cwd, "ZEUS_START"), LOOK_S)
    except TimeoutError:
        is_named = starts = True
    if not sees_start:
        seen = replace(seen, start=planned.start if starts else Start.COLD)
        reasons |= {} if starts else {WHY_COLD: f"{START_UNSEEN}: read it from ZEUS_START"}
    if not is_named:
        reasons[UNSEEN] = (
            f"the command is not seen to use batch size {batch_size}: it opened no ZeusRun, and neither its arguments "
            "nor a script that they name has ZEUS_BATCH_SIZE"
        )
    return replace(seen, reasons=reasons)


def names(command: Sequence[str], cwd: str | None, *words: str, most_files: int = 50) -> bool:
    """Whether a command has one of these words, or a script or module of this host that it leads to does."""
    top, line = Path(cwd or "."), " ".join(command)
    known, folders = {top}, [top]  # folders: those that are named, as by ``cd``
    texts = [(top, line, patterns.findall(r"[^\s'\"();|&<>={}$:,]+", line)[:500])]
    for folder, text, named in texts:  # it grows, as folders does
        if any(word in text for word in words):
            return True
        for name in named:
            ends = (".py", "/__init__.py", "/__main__.py")
            meant = [name, os.path.basename(name), *(f"{name.replace('.', '/')}{end}" for end in ends)]
            for path in dict.fromkeys(base / each for base in (folder, *folders) for each in meant):
                try:
                    if path.is_dir() and path not in folders and len(folders) < 10:
                        folders.append(path)
                    if path in known or len(texts) > most_files or not path.is_file():
                        continue
                    known.add(path)
                    with path.open("rb") as file:
                        said = file.read(2**20).decode(errors="replace")
                except (OSError, ValueError):
                    continue
                texts.append((path.parent, said, _named_in(said)[:200]))
    return False


def _named_in(text: str) -> list[str]:
    """The files and modules that a script names: what has an ending, and what follows import, from, cd or -m."""
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
    """The JSON object of a line; empty where the line is something else."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _numbers_of(document: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a JSON object, booleans left out."""
    return {
        name: float(value)
        for name, value in document.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
