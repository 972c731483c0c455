"""Scenarios that others bring, as JSON: a list of cases. Every key but ``pair`` may be left out.

::

    [
      {
        "name": "a coarse list and a harder target, on data that change",
        "pair": "neumf/a40",
        "eta": 0.5,
        "batch_sizes": [512, 1024, 1500, 2048, 4096],
        "default_batch_size": 1024,
        "target": "harder",
        "gpu_fill": "wide",
        "drift": {"kind": "towards small", "at": 50, "back": 85},
        "recurrences": 120
      },
      {"pair": "resnet50/v100"}
    ]

======================  ==============================================================================================
key                     meaning; and what holds where it is left out
======================  ==============================================================================================
``name``                how the report calls it; ``cases[0]``, ``cases[1]``, ...
``pair``                workload/GPU of the traces' folder
``eta``                 weight of energy against time, 0 to 1; 0.5
``batch_sizes``         ascending; a size between two measured ones is interpolated; those that were measured
``default_batch_size``  one of them that reaches the target; the workload's own
``target``              ``easier`` or ``harder`` than measured (``benchmarks.quality.scenario_sets``); ``as measured``
``gpu_fill``            ``wide``: large batches fill the GPU better than measured; ``narrow``: less well;
                        ``as measured``
``drift``               ``kind``: one of ``benchmarks.quality.drifts`` (``level x`` with any factor); ``at``: recurrence
                        of the shift, from 0; ``back``, if wanted: recurrence at which it ends; no drift
``recurrences``         100
======================  ==============================================================================================

They are applied in the order of the table. Raises JobSpecError that names case and key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.quality.drifts import KINDS, LEVEL, Drift, shifted
from benchmarks.quality.scenario_sets import EASIER, GPU, harder, listed, on_gpu, reaching, retargeted, with_default
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

AS_MEASURED = "as measured"
RECURRENCES = 100
TARGETS: Mapping[str, Callable[[Scenario], Scenario]] = {
    AS_MEASURED: lambda scenario: scenario,
    "easier": lambda scenario: retargeted(scenario, *EASIER),
    "harder": harder,
}
FILLS = {AS_MEASURED: 0.0, "wide": -GPU, "narrow": GPU}
KEYS = ("name", "pair", "eta", "batch_sizes", "default_batch_size", "target", "gpu_fill", "drift", "recurrences")


def read_cases(path: Path, traces: Traces) -> dict[str, Drift]:
    """The cases of a file by name."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobSpecError.of("--file", str(path), f"cannot be read ({error.strerror})", "Give a JSON file") from None
    except ValueError as error:
        raise JobSpecError.of("--file", str(path), f"is not JSON ({error})", "Correct it") from None
    if not isinstance(told, list) or not told:
        raise JobSpecError.of("--file", str(path), "is not a list of cases", "Write [{...}, ...]")
    cases = [Case(i, fields, traces) for i, fields in enumerate(told)]
    found = {case.name: case.drift() for case in cases}
    if len(found) < len(cases):
        names = [case.name for case in cases]
        twice = next(name for name in names if names.count(name) > 1)
        raise JobSpecError.of("name", twice, "is the name of two cases", "Rename one of them")
    return found


class Case:
    """One case of a file: its fields, checked as they are read."""

    def __init__(self, number: int, fields: object, traces: Traces) -> None:
        self._at, self._traces = f"cases[{number}]", traces
        self._fields = self._object(self._at, fields, KEYS)
        self.name = self._read("name", self._at, str, lambda v: bool(v.strip()), "text")

    def drift(self) -> Drift:
        """The job, and what holds from which recurrence on."""
        scenario = self._scenario()
        recurrences = self._read("recurrences", RECURRENCES, int, lambda v: v > 0, "a positive whole number")
        told = self._fields.get("drift")
        if told is None:
            return Drift(scenario, recurrences)
        at = f"{self._at}.drift"
        fields = self._object(at, told, ("kind", "at", "back"))
        kind, times = fields.get("kind"), [fields.get("at"), *([fields["back"]] if "back" in fields else [])]
        if not all(type(t) is int and 0 < t < recurrences for t in times) or times != sorted(set(times)):
            remedy = f"Give at, or at and a later back, from 1 to {recurrences - 1}"
            raise JobSpecError.of(f"{at}.at, .back", times, "are no recurrences of this case", remedy)
        before, after = self._shifted(at, kind, scenario)
        return Drift(before, recurrences, dict(zip(times, (after, before), strict=False)))

    def _scenario(self) -> Scenario:
        workload, _, gpu = self._read("pair", None, str, lambda v: "/" in v, "workload/GPU").partition("/")
        pair = self._traces.pair(workload, gpu)
        eta = self._read("eta", 0.5, (int, float), lambda v: 0 <= v <= 1, "a number from 0 to 1")
        scenario = Scenario(pair, eta)
        first, *_, last = (*pair.batch_sizes, pair.batch_sizes[-1])
        said = f"a list of different whole numbers from {first} to {last}"
        sizes = self._read("batch_sizes", list(pair.batch_sizes), list, lambda v: _sizes(v, first, last), said)
        default = self._read(
            "default_batch_size", pair.default_batch_size, int, lambda v: v in sizes, "one of the batch sizes"
        )
        target = self._read("target", AS_MEASURED, str, TARGETS.__contains__, f"one of {', '.join(TARGETS)}")
        fill = self._read("gpu_fill", AS_MEASURED, str, FILLS.__contains__, f"one of {', '.join(FILLS)}")
        scenario = TARGETS[target](with_default(listed(scenario, sorted(sizes)), default))
        own = scenario.pair.default_batch_size
        if not reaching(scenario.pair, own) or ("default_batch_size" in self._fields and own != default):
            self._refuse("default_batch_size", default, "never reaches the target", "Use a smaller one")
        return on_gpu(scenario, FILLS[fill])

    def _shifted(self, at: str, kind: Any, scenario: Scenario) -> tuple[Scenario, Scenario]:
        try:
            whole = [Scenario(pair, scenario.eta) for pair in self._traces.pairs([scenario.pair.gpu])]
            found = shifted(kind, scenario, whole)
        except (TypeError, ValueError, AttributeError):
            remedy = f"Use one of {', '.join(KINDS)}, or {LEVEL} with another factor"
            raise JobSpecError.of(f"{at}.kind", kind, "is no kind of drift", remedy) from None
        if found is None:
            raise JobSpecError.of(f"{at}.kind", kind, "cannot befall this scenario", "Use another kind or pair")
        return found

    def _object(self, at: str, fields: object, keys: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(fields, dict):
            raise JobSpecError.of(at, fields, "is not an object", "Write {...}")
        for key in fields:
            if key not in keys:
                raise JobSpecError.of(f"{at}.{key}", fields[key], "is unknown", f"Use some of {', '.join(keys)}")
        return fields

    def _read(self, key: str, default: Any, kind: Any, fits: Callable[[Any], bool], said: str) -> Any:
        value = self._fields.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool) or not fits(value):
            self._refuse(key, value, f"is not {said}", "Correct it")
        return value

    def _refuse(self, key: str, value: object, problem: str, remedy: str) -> None:
        raise JobSpecError.of(f"{self._at}.{key}", value, problem, remedy)


def _sizes(values: Sequence[Any], first: int, last: int) -> bool:
    whole = all(type(b) is int and first <= b <= last for b in values)
    return bool(values) and whole and len(set(values)) == len(values)
