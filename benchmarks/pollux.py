"""Pollux against both policies (section 6.6 of the paper):
``python -m benchmarks.pollux --traces DIR``.

Replays Pollux's choice of the batch size (``benchmarks/quality/goodput.py``) and the policies
``zeus`` and ``knowledge_gradient`` on the same traces with the same luck, and writes
``report.json``, ``report.md`` and ``pollux.png``; with ``--page`` also ``docs/evidence/pollux.md``.
The paper trained DeepSpeech2 on four A40. The traces are of one GPU; ``4xa40`` is four of them with
nothing lost in between (``benchmarks/quality/goodput.py``).
Everything is simulated from measured epochs, times and powers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.command import SELECTION, chosen_traces, command, needs, option, took
from benchmarks.plots import POLICY, name_of, panels, save
from benchmarks.quality import pollux_page
from benchmarks.quality.goodput import POLLUX, noise_scales, pair_on, sizes_by_progress
from benchmarks.quality.pollux_page import LAST, PAPERS, PAPERS_RATIOS, SEVERAL, short
from benchmarks.replays import Replays, Task, run_tasks
from benchmarks.report import Ratio, geomean_of, ratio_of, write_report
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces

ETAS = (0.0, 1.0)
ETA = 0.5
FIGURES = {
    "energy": "eta_last5",
    "time": "tta_last5",
    "energy of all": "cum_energy",
    "cost of all": "spent",
}

Found = Mapping[Task, Replays]


def tasks_of(pairs: Sequence[tuple[str, str]], seeds: Sequence[int]) -> list[Task]:
    """Every policy and variant of Pollux on every pair;
    on the paper's workload both ends of eta too.
    """
    found = [Task(w, g, policy, tuple(seeds)) for w, g in pairs for policy in (*POLICIES, *POLLUX)]
    papers = [pair for pair in pairs if pair[0] == PAPERS]
    found += [
        Task(*pair, policy, tuple(seeds), eta=eta)
        for pair in papers
        for policy in POLICIES
        for eta in ETAS
    ]
    return list(dict.fromkeys(found))


def against(
    found: Found, pair: tuple[str, str], policy: str, variant: str = "pollux", eta: float = ETA
) -> dict[str, Ratio]:
    """Energies, times and costs of a policy over Pollux's.

    Costs are compared under one eta alone.
    """
    by = {(t.workload, t.gpu, t.policy, t.eta): replays for t, replays in found.items()}
    ours = by[*pair, policy, eta]
    theirs = by[*pair, variant, ETA]
    names = FIGURES if eta == ETA else LAST
    return {
        name: ratio_of(getattr(ours, FIGURES[name]), getattr(theirs, FIGURES[name]))
        for name in names
    }


def report_of(
    found: Found, scenarios: Mapping[tuple[str, str], Scenario], seeds: int
) -> dict[str, Any]:
    """The whole ``report.json``."""
    gpus = list(dict.fromkeys(gpu for _, gpu in scenarios))
    ratios = {pair: {p: against(found, pair, p) for p in POLICIES} for pair in scenarios}
    report: dict[str, Any] = {"source": "simulated", "seeds": seeds}
    report["pairs"] = {"/".join(pair): _json(of) for pair, of in ratios.items()}

    def means(gpu: str) -> dict[str, dict[str, list[float]]]:
        here = [ratios[pair] for pair in scenarios if pair[1] == gpu]
        return _json({p: {n: geomean_of(r[p][n] for r in here) for n in FIGURES} for p in POLICIES})

    def papers(gpu: str, **how: Any) -> dict[str, dict[str, list[float]]]:
        return _json({p: against(found, (PAPERS, gpu), p, **how) for p in POLICIES})

    measured = [gpu for gpu in gpus if (PAPERS, gpu) in scenarios]
    report["geomean"] = {gpu: means(gpu) for gpu in gpus}
    report["variants"] = {gpu: {v: papers(gpu, variant=v) for v in POLLUX} for gpu in measured}
    report["eta"] = {gpu: {f"{eta:g}": papers(gpu, eta=eta) for eta in ETAS} for gpu in measured}
    report["choices"] = {
        "/".join(pair): {
            "default": scenario.pair.default_batch_size,
            "best": scenario.best,
            "pollux": {
                name: [b for b, _ in groupby(sizes_by_progress(scenario, of))]
                for name, of in POLLUX.items()
            },
        }
        for pair, scenario in scenarios.items()
    }
    return report


def _json(of: Mapping[str, Mapping[str, Ratio]]) -> dict[str, dict[str, list[float]]]:
    return {
        policy: {name: ratio.to_json() for name, ratio in row.items()} for policy, row in of.items()
    }


def markdown_of(report: Mapping[str, Any]) -> str:
    """``report.md``: the tables of the page."""
    said = (
        f"{report['seeds']} seeds, common random numbers; simulated. Changes against Pollux, with"
        " 95 % intervals."
    )
    return (
        "\n".join(
            ["# Pollux", "", said, "", *pollux_page.papers(report), "", *pollux_page.pairs(report)]
        )
        + "\n"
    )


def draw(report: Mapping[str, Any], path: Path) -> Path:
    """Energy over time against Pollux: one panel per GPU, one mark per workload and policy."""
    gpus = list(report["geomean"])
    every = [of for row in report["pairs"].values() for of in row.values()]
    figure, axes = panels(len(gpus), width=3.6, height=3.4)
    for ax, gpu in zip(axes, gpus, strict=True):
        ax.axhline(1, color="#9a9a9a", lw=1)
        ax.axvline(1, color="#9a9a9a", lw=1)
        here = {pair: of for pair, of in report["pairs"].items() if pair.endswith(f"/{gpu}")}
        at = {
            pair: (list(of.values())[-1]["time"][0], list(of.values())[-1]["energy"][0])
            for pair, of in here.items()
        }
        for pair, policies in here.items():
            x, y = at[pair]
            crowded = any(
                abs(t - x) < 0.2 and 0 < e - y < 0.06
                for p, (t, e) in at.items()
                if not p.startswith(PAPERS)
            )
            _marks(ax, pair.partition("/")[0], policies, above=not crowded)
        ax.set(title=short(gpu), xlabel="time (Pollux = 1)")
        ax.set_xlim(
            min([*(of["time"][0] for of in every), 1.0]) - 0.05,
            max(of["time"][0] for of in every) + 0.12,
        )
        ax.set_ylim(
            min(of["energy"][0] for of in every) - 0.05,
            max([*(of["energy"][0] for of in every), 1.0]) + 0.05,
        )
    energy, time_ = PAPERS_RATIOS
    named = {"marker": "*", "facecolor": "none", "edgecolor": "#c0392b", "zorder": 3}
    axes[-1].scatter(time_, energy, s=70, label="the paper, DeepSpeech2 on four A40", **named)
    axes[0].set_ylabel("energy (Pollux = 1)")
    handles, names = axes[-1].get_legend_handles_labels()
    unique = dict(zip(names, handles, strict=True))
    title = "Last five recurrences against Pollux (section 6.6); a star is DeepSpeech2"
    return save(figure, path, title, list(unique.values()))


def _marks(
    ax: Any, workload: str, policies: Mapping[str, Mapping[str, Sequence[float]]], *, above: bool
) -> None:
    """Both policies on one workload; its name to the right, above or below."""
    size, shape = (70, "*") if workload == PAPERS else (22, "o")
    for policy, of in policies.items():
        name, colour = POLICY[policy]
        ax.scatter(
            of["time"][0], of["energy"][0], s=size, marker=shape, color=colour, label=name, zorder=3
        )
    if workload == PAPERS:  # the title says so
        return
    last = list(policies.values())[-1]
    ax.annotate(
        name_of(workload),
        (last["time"][0], last["energy"][0]),
        xytext=(4, 4 if above else -9),
        textcoords="offset points",
        fontsize=7,
    )


def pairs_of(traces: Traces, args: argparse.Namespace) -> dict[tuple[str, str], Scenario]:
    """What is replayed: the named workloads that have published noise scales, on the named GPUs."""
    several = [SEVERAL] if SEVERAL.partition("x")[2] in traces.gpus else []
    workloads = [
        w for w in args.workloads or traces.workloads if w in noise_scales() or args.workloads
    ]
    return {
        (w, gpu): Scenario(pair_on(traces, w, gpu))
        for gpu in args.gpus or [*traces.gpus, *several]
        for w in workloads
    }


@command(
    SELECTION,
    option(
        "--page",
        type=Path,
        metavar="FILE",
        help="write docs/evidence/pollux.md there too, and its picture",
    ),
    seeds=40,
    out=Path("pollux-report"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    needs("matplotlib")
    scenarios = pairs_of(chosen_traces(args), args)
    if not scenarios:
        remedy = f"Use {', '.join(noise_scales())}"
        raise JobSpecError.of("workloads", None, "none has published noise scales", remedy)
    found = run_tasks(args.traces, tasks_of(list(scenarios), range(args.seeds)), args.jobs)
    report = report_of(found, scenarios, args.seeds)
    write_report(args.out, report, markdown_of(report))
    draw(report, args.out / "pollux.png")
    if args.page is not None:
        page = pollux_page.page_of(report)
        (args.page.parent / "images").mkdir(parents=True, exist_ok=True)
        draw(report, args.page.parent / "images" / "pollux.png")
        args.page.write_text(page, encoding="utf-8")
    print(markdown_of(report), end="")
    print(f"\n{args.out / 'report.md'} after {took(args)}")
