"""What a training draws as seen from outside its process: for commands that tell nothing of it themselves."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Observation, PowerPoint, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.meter import Span, read

_STEPS_ONLY = "a simulated GPU moves with the steps of a training that tells of them: use ZeusRun.from_env() there"
_NOT_TOLD = "measured from outside: the command told nothing of it"


class Outside:
    """Energy and time of a device from now on, set-up included."""

    def __init__(self, device: Device) -> None:
        self._device = device
        mark = read(device)
        self._total, self._point = Span(mark), Span(mark)

    def point(self) -> PowerPoint:
        """Mean power since the last point."""
        mark = read(self._device)
        self._total.advance(mark)
        self._point.advance(mark)
        point = PowerPoint(
            t_s=self._total.time_s, power_w=self._point.power_w, limit_w=self._device.limit_w(), phase="train"
        )
        self._point = Span(mark)
        return point

    def observation(self) -> Observation:
        """Sums up to now; what cannot be seen from outside has its reason."""
        device, info, total = self._device, self._device.info, self._total
        total.advance(read(device))
        energy_j, time_s = total.energy_j, total.time_s or None
        reasons = dict.fromkeys(("epochs", "samples"), _NOT_TOLD)
        if info.energy_source == "simulated":
            energy_j, time_s = None, None
            reasons |= {"energy_j": _STEPS_ONLY, "time_s": _STEPS_ONLY}
        elif info.energy_source is None or energy_j is None:
            energy_j = None
            reasons["energy_j"] = device.missing.get("energy_j") or total.reason or "no source of energy"
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


def told_by_output(job: ZeusJob, last_line: str, seen: Observation) -> tuple[State, str | None, Observation]:
    """(state, reason, observation) of a command that ended well and wrote no result.

    The last line of its output may be a JSON object with the target's metric and, if it likes, ``epochs``, ``samples``
    (in all) and, where the job's target is set at run time, ``target``. Without ``epochs`` the run counts as one epoch,
    so that its cost is what is compared. Without the metric nobody knows whether the target was reached: the model is
    kept, and the run counts as below target.
    """
    target, told = job.parsed_target, _object(last_line)
    example = {target.metric: 0.9, "epochs": 12}
    if target.value is None:
        target, example = replace(target, value=told.get("target")), {**example, "target": 0.8}
    missing = [
        name for name, value in ((target.metric, told.get(target.metric)), ("target", target.value)) if value is None
    ]
    if missing:
        told_as = f"print it as JSON on its last line, as in {json.dumps(example)}"
        return State.EXHAUSTED, f"the command did not tell its {' and '.join(missing)}: {told_as}", seen
    metric = told[target.metric]
    reached = target.reached(metric)
    epochs, samples = told.get("epochs", 0.0), told.get("samples", 0.0)
    known = {"metric": metric, "target_value": target.value, "epochs": epochs if epochs > 0 else 1.0}
    known |= {"samples": int(samples)} if 1 <= samples < 2**53 else {}
    reasons = {name: why for name, why in seen.reasons.items() if name not in known}
    seen = replace(seen, **known, reasons=reasons)  # type: ignore[arg-type]
    return (State.CONVERGED, None, seen) if reached else (State.EXHAUSTED, f"ended at {metric:g}, below target", seen)


def _object(line: str) -> dict[str, float]:
    """The numbers in a JSON object; empty where the line is something else. What is true or infinite is no number."""
    try:
        told = json.loads(line)
        items = told.items() if isinstance(told, dict) else ()
    except (ValueError, RecursionError):
        return {}
    return {name: float(value) for name, value in items if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
