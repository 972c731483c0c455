"""``docs/pollux.md`` from ``data/pollux.md``, its text: figures of the report, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.plots import name_of
from benchmarks.quality.goodput import noise_scales
from benchmarks.report import fill_in, percent, table

PAPERS = "deepspeech2"  # the workload of section 6.6
PAPERS_RATIOS = (0.79, 1.12)  # of energy and of time to Pollux's, on four A40
SEVERAL = "4xa40"
LAST = ("energy", "time")  # of the last five recurrences, as in Figure 6
SHOWN = {
    "pollux": "",
    "pollux_from_default": "Pollux from the default",
    "pollux_believed": "an epoch gets as far as Pollux's own model says",
}

Report = Mapping[str, Any]
Figure = Sequence[float]


def plain(ratio: Figure) -> str:
    """A ratio as the change that it is."""
    return f"{100 * (ratio[0] - 1):+.1f} %"


def change(ratio: Figure) -> str:
    """A ratio as the change that it is, with its interval where there is one."""
    _, low, high = ratio
    return plain(ratio) if 100 * (high - 1) - 100 * (low - 1) < 0.05 else percent(ratio)


def short(gpu: str) -> str:
    """A GPU for people, or several, as ``4xa40``."""
    count, _, model = gpu.partition("x")
    return f"{count} × {model.upper()}" if count.isdigit() else gpu.upper()


def label(gpu: str) -> str:
    """The same, with what is assumed of several."""
    return f"{short(gpu)}, nothing lost between" if "×" in short(gpu) else short(gpu)


def page_of(report: Report) -> str:
    """The whole page. Raises JobSpecError where the report lacks what it shows."""
    gpus = list(report["variants"])
    if SEVERAL not in gpus:
        remedy = f"Use all GPUs, and {PAPERS} among the workloads"
        raise JobSpecError.of("page", SEVERAL, f"has no replay of {PAPERS}", remedy)
    stands_in = {w: of.stands_in for w, of in noise_scales().items()}
    words = {
        "seeds": str(report["seeds"]),
        "default_of_four": str(report["choices"][f"{PAPERS}/{SEVERAL}"]["default"]),
        "costs_said": costs_said(report),
        "limit_alone": limit_alone(report["choices"][f"{PAPERS}/{SEVERAL}"]),
        "own_noise": ", ".join(name_of(w) for w, said in stands_in.items() if not said),
        "stands_in": "; ".join(f"{name_of(w)}: {said}" for w, said in stands_in.items() if said),
        "noise_said": "; ".join(
            _variant(report, g, v) for g in gpus for v in ("pollux_noise_quarter", "pollux_noise_4")
        ),
        "m0_said": "; ".join(_variant(report, g, "pollux_from_default") for g in gpus),
        "believed_said": "; ".join(_variant(report, g, "pollux_believed") for g in gpus),
    }
    lines = {"papers": papers(report), "papers_said": papers_said(report), "pairs": pairs(report)}
    return fill_in("pollux", words, lines)


def _variant(report: Report, gpu: str, variant: str) -> str:
    of = report["variants"][gpu][variant]["zeus"]
    name = {"pollux_noise_quarter": ", a quarter", "pollux_noise_4": ", four times"}.get(variant, "")
    return f"{short(gpu)}{name} {plain(of['energy'])} energy, {plain(of['time'])} time"


def papers(report: Report) -> list[str]:
    """DeepSpeech2 on every GPU, and on the paper's four against each way that Pollux may have been run."""
    energy, time = (f"{100 * (r - 1):+.0f} %" for r in PAPERS_RATIOS)
    rows = [["**the paper**, four A40, trained", "zeus", energy, time, ""]]
    for gpu, variants in report["variants"].items():
        for variant, said in SHOWN.items():
            if gpu != SEVERAL and variant != "pollux":
                continue
            name = ", ".join(filter(None, (short(gpu) if said else label(gpu), said)))
            for policy, of in variants[variant].items():
                rows.append([name, policy, change(of["energy"]), change(of["time"]), change(of["energy of all"])])
    return table(["", "policy", "energy", "time", "energy of all recurrences"], rows)


def papers_said(report: Report) -> list[str]:
    """Whether energy and time move as published on the paper's own set-up, and by how much eta moves them."""
    said = []
    for variant, words in SHOWN.items():
        of = report["variants"][SEVERAL][variant]["zeus"]
        agree = [_agrees(of[name], published) for name, published in zip(LAST, PAPERS_RATIOS, strict=True)]
        parts = (f"{name} {plain(of[name])} ({so})" for name, so in zip(LAST, agree, strict=True))
        said.append(f"- On four A40, {words or 'Pollux from the smallest size'}: `zeus` {', '.join(parts)}.")
    moved = []
    for gpu, etas in report["eta"].items():
        ends = (f"{plain(etas[eta]['zeus']['energy'])} and {plain(etas[eta]['zeus']['time'])}" for eta in ("0", "1"))
        moved.append(f"{short(gpu)} from {' to '.join(ends)}")
    said.append(
        f"- eta moves the result, as the paper says of Zeus. Energy and time from eta 0 to 1: {'; '.join(moved)}."
    )
    return said


def _agrees(ratio: Figure, published: float) -> str:
    """The published change beside ours: within the interval, in the same direction, or not."""
    value, low, high = ratio
    printed = f"published {100 * (published - 1):+.0f} %"
    if low - 0.005 <= published <= high + 0.005:
        return f"{printed}, within our interval"
    if low <= 1 <= high:
        return f"{printed}; ours is no change for sure"
    direction = "the same" if (value < 1) == (published < 1) else "the other"
    return f"{printed}: {direction} direction, outside our interval"


def limit_alone(choice: Mapping[str, Any]) -> str:
    """What the difference is where Pollux begins with the cheapest size and stays there."""
    if choice["pollux"]["pollux_from_default"] != [choice["best"]]:
        return ""
    return (
        f" Where it begins at the default, {choice['default']} on four A40, it trains with the cheapest size from the "
        "first epoch on: the difference is that of the power limit alone."
    )


def pairs(report: Report) -> list[str]:
    """Every workload, with the batch sizes that Pollux takes."""
    rows = []
    for gpu, means in report["geomean"].items():
        for pair, of in report["pairs"].items():
            workload, _, where = pair.partition("/")
            if where == gpu:
                chosen = report["choices"][pair]
                sizes = [", ".join(map(str, chosen["pollux"]["pollux"])), str(chosen["default"]), str(chosen["best"])]
                rows.append([name_of(workload), short(gpu), *_cells(of), *sizes])
        rows.append(["**geometric mean**", short(gpu), *_cells(means), "", "", ""])
    head = [f"{p}: {name}" for p in POLICIES for name in (*LAST, "cost of all")]
    return table(["workload", "GPU", *head, "Pollux's batch sizes", "default", "cheapest"], rows)


def _cells(of: Mapping[str, Mapping[str, Figure]]) -> list[str]:
    return [change(of[p][name]) for p in POLICIES for name in (*LAST, "cost of all")]


def costs_said(report: Report) -> str:
    """Whether all recurrences together, tries included, cost less than Pollux's."""
    means = []
    for gpu, of in report["geomean"].items():
        by = " and ".join(f"{plain(of[p]['cost of all'])} ({p})" for p in POLICIES)
        means.append(f"{short(gpu)} {by}")
    dearer = [
        f"{name_of(pair.partition('/')[0])} on {short(pair.partition('/')[2])} with `{p}` "
        f"({change(of[p]['cost of all'])})"
        for pair, of in report["pairs"].items()
        for p in POLICIES
        if of[p]["cost of all"][0] > 1
    ]
    return f"In the mean: {'; '.join(means)}. It is higher for {', '.join(dearer) or 'no pair'}."
