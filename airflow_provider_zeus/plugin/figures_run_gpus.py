"""Energy of each GPU of a run that several GPUs trained, as bars. Plain data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.optimizer.trial import Observation, State, Trial
from airflow_provider_zeus.plugin.figures import COLOURS, Option, base, number, plain, scale
from airflow_provider_zeus.plugin.models import LONGEST, Chart, Table
from airflow_provider_zeus.plugin.words import energy, source

TITLE = "Energy per GPU"

_Known = tuple[int, Trial, dict[str, float]]  # attempt, its trial, joules by GPU


def gpus(trials: Sequence[Trial]) -> Chart | None:
    """Joules of each GPU, attempts one upon the other; None where no attempt had several GPUs.

    Of one energy source alone, the newest: figures of several are never added.
    """
    several = [(n, t) for n, t in enumerate(trials, 1) if (t.observation.device_count or 1) > 1]
    known = [(n, t, each_of(t.observation)) for n, t in several]
    found = [(n, t, each) for n, t, each in known if each]
    if not several:
        return None
    if not found:
        return Chart(title=TITLE, note=f"Not known: {why_not(several[-1][1].observation)}.")
    of = found[-1][1].observation.energy_source
    shown = [(n, t, each) for n, t, each in found if t.observation.energy_source == of]
    names = list(dict.fromkeys(name for *_, each in shown for name in each))
    sums = [sum(each.get(name, 0.0) for *_, each in shown) for name in names]
    size, unit = scale(max(sums), "J")
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 66},
        legend={"type": "scroll", "bottom": 0},
        xAxis={"type": "category", "data": [f"GPU {i}" for i in range(1, len(names) + 1)]},
        yAxis={"type": "value", "name": f"energy [{unit}]", "min": 0, "nameLocation": "middle", "nameGap": 44},
        series=[_bars(one, names, size) for one in shown],
    )
    gaps = len(several) - len(shown)
    left_out = f" Not in it: {gaps} attempt{'s' * (gaps > 1)} whose figures are not known, or of another source."
    running = " An attempt still runs: these are its figures so far." if shown[-1][1].state is State.RUNNING else ""
    return Chart(
        title=TITLE,
        option=option,
        text=f"Energy of {len(names)} GPUs, {energy(min(sums)).text} to {energy(max(sums)).text} each. "
        "The table holds the same figures.",
        note=f"By attempt, {source(of)}.{running}{left_out if gaps else ''}",
        table=_table(shown, names, sums),
    )


def each_of(seen: Observation) -> dict[str, float]:
    """Joules by GPU, in the order in which the training has them; empty where they are not known."""
    each = seen.gpu_energy_j or ()
    names = (seen.gpu_uuid or "").split(",")
    return dict(zip(names if len(set(names)) == len(each) else _numbered(len(each)), each, strict=True))


def why_not(seen: Observation) -> str:
    """Why the energy of each GPU is not known."""
    return seen.reasons.get("gpu_energy_j", "")[:LONGEST] or "its log line was written without it"


def _numbered(count: int) -> list[str]:
    return [f"number {n}" for n in range(1, count + 1)]


def _attempt(n: int, trial: Trial) -> str:
    return f"{n}: batch size {trial.batch_size}"


def _bars(one: _Known, names: Sequence[str], size: float) -> Option:
    n, trial, each = one
    colour = COLOURS[(n - 1) % len(COLOURS)]
    return {
        "type": "bar",
        "name": _attempt(n, trial),
        "stack": "all",
        "barMaxWidth": 64,
        "itemStyle": {"color": colour},
        "data": [
            {"value": number(each.get(name, 0.0) / size), "tip": _tip(f"GPU {i}", name, one)}
            for i, name in enumerate(names, 1)
        ],
    }


def _tip(label: str, name: str, one: _Known) -> str:
    n, trial, each = one
    drawn = energy(each[name]).text if name in each else "not used"
    return plain(f"{label}: {name}\n{_attempt(n, trial)}\n{drawn}")


def _table(shown: Sequence[_Known], names: Sequence[str], sums: Sequence[float]) -> Table:
    total = sum(sums)
    rows = [
        [
            f"GPU {i}",
            name,
            *(energy(each[name]).text if name in each else "–" for *_, each in shown),
            energy(all_of).text,
            f"{100 * all_of / total:.0f} %" if total else "–",
        ]
        for i, (name, all_of) in enumerate(zip(names, sums, strict=True), 1)
    ]
    return Table(
        caption=TITLE,
        columns=["GPU", "Identity", *(_attempt(n, t) for n, t, _ in shown), "In all", "Share"],
        numeric=[False, False, *(True for _ in shown), True, True],
        rows=rows,
    )
