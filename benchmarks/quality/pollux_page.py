"""``docs/evidence/pollux.md`` from ``data/pollux.md``, its text: figures of the report,
and what is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.plots import name_of
from benchmarks.quality.goodput import noise_scales
from benchmarks.report import bold, change, change_interval, fill_in, table

PAPERS = "deepspeech2"  # the workload of section 6.6
PAPERS_RATIOS = (0.79, 1.12)  # of energy and of time to Pollux's, on four A40
SEVERAL = "4xa40"
LAST = ("energy", "time")  # of the last five recurrences, as in Figure 6
SHOWN = {
    "pollux": "",
    "pollux_from_default": "Pollux from the default",
    "pollux_believed": "epochs by Pollux's own model",
}

Report = Mapping[str, Any]
Figure = Sequence[float]


def short(gpu: str) -> str:
    """A GPU for people, or several, as ``4xa40``."""
    count, _, model = gpu.partition("x")
    return f"{count}×{model.upper()}" if count.isdigit() else gpu.upper()


def label(gpu: str) -> str:
    """The same, with what is assumed of several."""
    return f"{short(gpu)}, nothing lost between" if "×" in short(gpu) else short(gpu)


def page_of(report: Report) -> str:
    """The whole page. Raises JobSpecError where the report lacks what it shows."""
    gpus = list(report["variants"])
    if SEVERAL not in gpus:
        remedy = f"Use all GPUs, and {PAPERS} among the workloads"
        raise JobSpecError.of("page", SEVERAL, f"has no replay of {PAPERS}", remedy)
    words = {
        "seeds": str(report["seeds"]),
        "default_of_four": str(report["choices"][f"{PAPERS}/{SEVERAL}"]["default"]),
        "eta_said": eta_said(report),
        "limit_alone": limit_alone(report["choices"][f"{PAPERS}/{SEVERAL}"]),
        "own_noise": ", ".join(name_of(w) for w, of in noise_scales().items() if not of.stands_in),
        "noise_said": "; ".join(
            _variant(report, g, v) for g in gpus for v in ("pollux_noise_quarter", "pollux_noise_4")
        ),
        "m0_said": "; ".join(_variant(report, g, "pollux_from_default") for g in gpus),
        "believed_said": "; ".join(_variant(report, g, "pollux_believed") for g in gpus),
    }
    lines = {"papers": papers(report), "pairs": pairs(report)}
    return fill_in("pollux", words, lines)


def _variant(report: Report, gpu: str, variant: str) -> str:
    of = report["variants"][gpu][variant]["zeus"]
    times = {"pollux_noise_quarter": ", a quarter", "pollux_noise_4": ", four times"}
    return f"{short(gpu)}{times.get(variant, '')}: {change(of['energy'])}, {change(of['time'])}"


def papers(report: Report) -> list[str]:
    """DeepSpeech2 on every GPU, and on the paper's four against each way that Pollux may have
    been run.
    """
    energy, time = (f"{100 * (r - 1):+.0f}" for r in PAPERS_RATIOS)
    rows = [["**the paper**, four A40, trained", "zeus", energy, time, ""]]
    for gpu, variants in report["variants"].items():
        for variant, said in SHOWN.items():
            if gpu != SEVERAL and variant != "pollux":
                continue
            name = ", ".join(filter(None, (short(gpu) if said else label(gpu), said)))
            for policy, of in variants[variant].items():
                beside = _beside_the_paper(of) if (gpu, policy) == (SEVERAL, "zeus") else ""
                rows.append(
                    [
                        name,
                        policy,
                        change_interval(of["energy"]),
                        change_interval(of["time"]),
                        beside,
                    ]
                )
    return table(["", "policy", "energy", "time", "beside the paper's"], rows)


def _beside_the_paper(of: Mapping[str, Figure]) -> str:
    return ", ".join(
        f"{name}: {_agrees(of[name], published)}"
        for name, published in zip(LAST, PAPERS_RATIOS, strict=True)
    )


def eta_said(report: Report) -> str:
    """By how much eta moves energy and time."""
    moved = []
    for gpu, etas in report["eta"].items():
        ends = [
            f"{change(etas[eta]['zeus']['energy'])}, {change(etas[eta]['zeus']['time'])}"
            for eta in ("0", "1")
        ]
        moved.append(f"{short(gpu)} from {' to '.join(ends)}")
    return "; ".join(moved)


def _agrees(ratio: Figure, published: float) -> str:
    """The published change beside ours: within the interval, in the same direction, or not."""
    value, low, high = ratio
    if low - 0.005 <= published <= high + 0.005:
        return "within our interval"
    if low <= 1 <= high:
        return "ours is no sure change"
    same = (value < 1) == (published < 1)
    return "same direction" if same else "other direction"


def limit_alone(choice: Mapping[str, Any]) -> str:
    """What the difference is where Pollux begins with the cheapest size and stays there."""
    if choice["pollux"]["pollux_from_default"] != [choice["best"]]:
        return ""
    return (
        f" From the default, {choice['default']} on four A40, it trains with the cheapest size"
        " throughout: the difference is that of the power limit alone."
    )


def pairs(report: Report) -> list[str]:
    """Every workload: energy, time and cost of all by policy,
    and the batch sizes that Pollux takes.
    """
    rows = []
    for gpu, means in report["geomean"].items():
        for pair, of in report["pairs"].items():
            workload, _, where = pair.partition("/")
            if where != gpu:
                continue
            chosen = report["choices"][pair]
            sizes = ", ".join(map(str, chosen["pollux"]["pollux"]))
            rows.append(
                [f"{name_of(workload)}, {short(gpu)}", *_cells(of), sizes, str(chosen["best"])]
            )
        rows.append([f"**mean**, {short(gpu)}", *_cells(means), "", ""])
    return table(["", *POLICIES, "Pollux's batch sizes", "cheapest"], rows)


def _cells(of: Mapping[str, Mapping[str, Figure]]) -> list[str]:
    return [", ".join(_figures(of[policy])) for policy in POLICIES]


def _figures(of: Mapping[str, Figure]) -> list[str]:
    cost = of["cost of all"]
    return [*(change(of[name]) for name in LAST), bold(change(cost), cost)]
