"""Bar chart of the energy of each GPU of a run on several GPUs. Pure: plain data in and out."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.plugin.charts.chart_parts import bars, base, colours_of, number, plain, scale, value_axis
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.words import energy, source
from airflow_provider_zeus.plugin.views.models import LONGEST, Chart, Table

_Known = tuple[int, Trial, dict[str, float]]  # attempt, its trial, joules by GPU


def gpus(trials: Sequence[Trial]) -> Chart | None:
    """Chart of the energy of each GPU [J], attempts stacked; None where no attempt had several GPUs.

    It shows the newest energy source only: figures of different sources are never added.
    """
    title = "Energy per GPU"
    several = [(n, t) for n, t in enumerate(trials, 1) if (t.observation.device_count or 1) > 1]
    found: list[_Known] = []
    for n, trial in several:
        each_j, names = trial.observation.gpu_energy_j or (), (trial.observation.gpu_uuid or "").split(",")
        if len(set(names)) != len(each_j):
            names = [f"number {i}" for i in range(1, len(each_j) + 1)]
        if each_j:
            found.append((n, trial, dict(zip(names, each_j, strict=True))))
    if not several:
        return None
    if not found:
        why = several[-1][1].observation.reasons.get("gpu_energy_j", "")[:LONGEST]
        return Chart(title=title, note=f"Not known: {why or 'the log holds no energy by GPU'}.")
    of = found[-1][1].observation.energy_source
    shown = [(n, t, each) for n, t, each in found if t.observation.energy_source == of]
    names = list(dict.fromkeys(name for *_, each in shown for name in each))
    sums = [sum(each.get(name, 0.0) for *_, each in shown) for name in names]
    size, unit = scale(max(sums), "J")
    colours = colours_of([trial.batch_size for _, trial, _ in shown])
    option = base(
        grid={"left": 64, "right": 24, "top": 30, "bottom": 66},
        legend={"type": "scroll", "bottom": 0},
        xAxis={"type": "category", "data": [f"GPU {i}" for i in range(1, len(names) + 1)]},
        yAxis=value_axis(f"energy [{unit}]", 44, min=0),
        series=[
            bars(
                _attempt(n, trial),
                colour,
                [
                    {
                        "value": number(each.get(name, 0.0) / size),
                        "tip": plain(
                            f"GPU {i}: {name}\n{_attempt(n, trial)}\n"
                            f"{energy(each[name]).text if name in each else 'not used'}"
                        ),
                    }
                    for i, name in enumerate(names, 1)
                ],
            )
            for (n, trial, each), colour in zip(shown, colours, strict=True)
        ],
    )
    gaps = len(several) - len(shown)
    left_out = f" Not in it: {gaps} attempt{'s' * (gaps > 1)} whose figures are not known, or of another source."
    running = " An attempt still runs: its figures so far." if shown[-1][1].state is State.RUNNING else ""
    return Chart(
        title=title,
        option=option,
        text=f"Energy of {len(names)} GPUs, {energy(min(sums)).text} to {energy(max(sums)).text} each. "
        "The table holds the same figures.",
        note=f"By attempt, {source(of)}.{running}{left_out if gaps else ''}",
        table=_table(title, shown, names, sums),
    )


def _attempt(n: int, trial: Trial) -> str:
    return f"{n}: {words.sized(trial)}"


def _table(title: str, shown: Sequence[_Known], names: Sequence[str], sums: Sequence[float]) -> Table:
    total = sum(sums)
    rows = [
        [
            f"GPU {i}",
            name,
            *(energy(each[name]).text if name in each else "–" for *_, each in shown),
            energy(total_j).text,
            f"{100 * total_j / total:.0f} %" if total else "–",
        ]
        for i, (name, total_j) in enumerate(zip(names, sums, strict=True), 1)
    ]
    return Table(
        caption=title,
        columns=["GPU", "Identity", *(_attempt(n, t) for n, t, _ in shown), "Total", "Share"],
        numeric=[False, False, *(True for _ in shown), True, True],
        rows=rows,
    )
