"""What a training draws as seen from outside its process: for commands that tell nothing of it themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.errors import ReportError
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
    if target.value is None and isinstance(told.get("target"), int | float):
        target = replace(target, value=float(told["target"]))
    example = json.dumps({target.metric: 0.9, "epochs": 12})
    try:
        metric = target.pick(told)
        reached = target.reached(metric)
    except ReportError:
        reason = f"the command did not tell its {target.metric}: print it as JSON on its last line, as in {example}"
        return State.EXHAUSTED, reason, seen
    epochs, samples = _positive(told.get("epochs")), _positive(told.get("samples"))
    known = {"metric": metric, "target_value": target.value, "epochs": epochs or 1.0}
    known |= {"samples": int(samples)} if samples else {}
    reasons = {name: why for name, why in seen.reasons.items() if name not in known}
    seen = replace(seen, **known, reasons=reasons)  # type: ignore[arg-type]
    return (State.CONVERGED, None, seen) if reached else (State.EXHAUSTED, f"ended at {metric:g}, below target", seen)


def _object(line: str) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _positive(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < float("inf") else None
