"""What can be known from outside of a command that does not use this package: energy, time, outcome, batch size."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import PLAIN, UNSEEN, Observation, PowerPoint, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.meter import Span, read

ELSEWHERE = "the command trains on another host, which has sent no figure"
NOT_STOPPED = "no ZeusRun was opened: it is seen from outside alone, and runs to its end"


class ExternalMeter:
    """Measures energy and time of a device from its construction on, so a command's set-up is included."""

    def __init__(self, device: Device) -> None:
        self._device = device
        mark = read(device)
        self._total, self._since_point = Span(mark), Span(mark)

    def point(self) -> PowerPoint:
        """Return a power point: mean power [W] since the last one."""
        mark = read(self._device)
        self._total.advance(mark)
        self._since_point.advance(mark)
        point = PowerPoint(
            t_s=self._total.time_s, power_w=self._since_point.power_w, limit_w=self._device.limit_w(), phase="train"
        )
        self._since_point = Span(mark)
        return point

    def observation(self) -> Observation:
        """Return the sums up to now; each figure that cannot be measured from outside is None with its reason."""
        device, info, total = self._device, self._device.info, self._total
        total.advance(read(device))
        energy_j, time_s = total.energy_j, total.time_s or None
        reasons = dict.fromkeys(("epochs", "samples"), "measured from outside: the command did not report it")
        if info.energy_source == "simulated":
            energy_j, time_s = None, None
            why = "a simulated GPU advances with the steps that a training reports: use ZeusRun.from_env() there"
            reasons |= {"energy_j": why, "time_s": why}
        elif info.energy_source is None or energy_j is None or total.still:
            energy_j = None
            reasons["energy_j"] = device.missing.get("energy_j") or total.reason or total.still or "no source of energy"
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


class NoMeter:
    """Stands for :class:`ExternalMeter` where the command trains on another host: nothing of it can be seen here."""

    def point(self) -> PowerPoint | None:
        """No power point."""
        return None

    def observation(self) -> Observation:
        """Nothing but the reason. The time that the command ran here would include its wait in a queue."""
        return Observation(reasons=dict.fromkeys(("energy_j", "time_s", "epochs", "samples"), ELSEWHERE))


def outcome_of(job: ZeusJob, last_line: str, seen: Observation) -> tuple[State, str | None, Observation]:
    """Return (state, reason, observation) of a command that succeeded and wrote no result.

    The last line of its output may be a JSON object with the target's metric and, optionally, ``epochs``, ``samples``
    (in all) and, where the job's target is set at run time, ``target``. Without ``epochs`` the run counts as one epoch,
    so that whole runs are compared. Without the metric it is not known whether the target was reached: the model is
    kept, and the run teaches nothing about batch sizes.

    :param seen: what was measured from outside.
    """
    target, reported = job.parsed_target, _numbers_in(last_line)
    example = {target.metric: 0.9, "epochs": 12}
    if target.value is None:
        target, example = replace(target, value=reported.get("target")), {**example, "target": 0.8}
    required = [(target.metric, reported.get(target.metric)), ("target", target.value)]  # a metric may be named target
    missing = [name for name, value in required if value is None]
    if missing:
        remedy = f"print it as JSON on its last line, as in {json.dumps(example)}"
        state = State.NO_METRIC if target.metric in missing else State.EXHAUSTED
        return state, f"the command did not report its {' and '.join(missing)}: {remedy}", seen
    metric = reported[target.metric]
    epochs, samples = reported.get("epochs", 0.0), reported.get("samples", 0.0)
    known = {"metric": metric, "target_value": target.value, "epochs": epochs if epochs > 0 else 1.0}
    known |= {"samples": int(samples)} if 1 <= samples < 2**53 else {}
    reasons = {name: why for name, why in seen.reasons.items() if name not in known}
    seen = replace(seen, **known, reasons=reasons)  # type: ignore[arg-type]
    if why := target.misread(metric):
        return State.EXHAUSTED, f"whether it reached its target is not known: {why}", seen
    if target.reached(metric):
        return State.CONVERGED, None, seen
    return State.EXHAUSTED, f"ended at {metric:g}, below target", seen


def seen_to_use(seen: Observation, batch_size: int, command: Sequence[str], cwd: str | None) -> Observation:
    """The observation of a command that opened no ZeusRun, with whether it is seen to use its batch size."""
    reasons = {**seen.reasons, PLAIN: NOT_STOPPED}
    if not names(command, cwd, "ZEUS_BATCH_SIZE"):
        reasons[UNSEEN] = (
            f"the command is not seen to use batch size {batch_size}: it opened no ZeusRun, and neither its words nor "
            "a script that they lead to have ZEUS_BATCH_SIZE"
        )
    return replace(seen, reasons=reasons)


def names(command: Sequence[str], cwd: str | None, *words: str, most_files: int = 50) -> bool:
    """Whether a command has one of these words, or a script or module of this host that it leads to does."""
    top = Path(cwd or ".")
    known, texts = {top}, [(top, " ".join(command), re.split(r"[\s'\"();|&<>=]+", " ".join(command))[:500])]
    for folder, text, named in texts:  # it grows
        if any(word in text for word in words):
            return True
        for name in named:
            modules = [f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py", "/__main__.py")]
            for path in dict.fromkeys(base / each for base in (folder, top) for each in (name, *modules)):
                try:
                    if path in known or len(texts) > most_files or not path.is_file():
                        continue
                    known.add(path)
                    with path.open("rb") as file:
                        said = file.read(2**20).decode(errors="replace")
                except (OSError, ValueError):
                    continue
                found = re.findall(r"(?:\bimport|\bfrom|-m)\s+\.?([\w.]+)|([\w./-]+\.\w{1,6})\b", said)
                texts.append((path.parent, said, [each for pair in found for each in pair if each][:200]))
    return False


def _numbers_in(line: str) -> dict[str, float]:
    """Return the finite numbers of a JSON object, booleans left out; empty where the line is something else."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {
        name: float(value)
        for name, value in (document.items() if isinstance(document, dict) else ())
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
