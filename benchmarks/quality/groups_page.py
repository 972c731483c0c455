"""``docs/groups.md`` from ``data/groups.md``, its text: means over draws with intervals, and what is said of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.group_shape import Shape
from benchmarks.plots import name_of
from benchmarks.report import cell, fill_in, interval, mean_ci, over_draws, plus_minus, table

POLICIES = ("zeus", "knowledge_gradient")
CHANGED = (("gap_median", (0.25, 4.0)), ("gap_spread", (0.75, 3.0)), ("run_spread", (0.2, 0.8)))
CHANGED_SAID = {"gap_median": "median gap", "gap_spread": "spread of gaps", "run_spread": "spread within a group"}
NOTHING = "nothing"

Report = Mapping[str, Any]


def shapes_of(shape: Shape) -> dict[str, Shape]:
    """The shape, and with one assumed number changed at a time."""
    changes: list[tuple[str, dict[str, Any]]] = [(f"{CHANGED_SAID[n]} {x:g}", {n: x}) for n, of in CHANGED for x in of]
    others = {name: replace(shape, **change) for name, change in changes}
    return {NOTHING: shape, **others}


def page_of(reports: Sequence[Report], changed: Mapping[str, Sequence[Report]], args: argparse.Namespace) -> str:
    """The whole page."""
    whole = over_draws(reports)
    together = [r["workloads"].get("all") or next(iter(r["workloads"].values())) for r in reports]
    default = [of["default"] for of in together]
    below, lost = (
        sum(f[f"runs_{n}"] for of in together for f in of.values()) for n in ("below_target", "without_model")
    )
    words = {
        "gpu": args.gpu,
        "GPU": args.gpu.upper(),
        "jobs": str(args.jobs),
        "runs_said": f"{args.jobs:,}",
        "draws": str(args.draws),
        "loads": " ".join(f"{load:g}" for load in args.loads),
        "in_groups_of_5": f"{100 * whole['in_groups_of_5'][0]:.0f}",
        "by_workload": _runs_said(reports),
        "beside": f"{100 * mean_ci([f['concurrent'] / f['submissions'] for f in default])[0]:.0f}",
        "wrong": f"Below its target ended {below:,}, without a model {lost:,} of all runs of all policies",
        "load": _load(max(args.loads)),
    }
    lines = {
        "workloads": workloads(reports),
        "queue": queue(whole),
        "queue_said": queue_said(reports),
        "by_size": by_size(whole),
        "by_size_said": by_size_said(reports),
        "changed": changes(changed),
        "changed_said": changes_said(changed),
    }
    return fill_in("groups", words, lines)


def _runs_said(reports: Sequence[Report]) -> str:
    """Mean number of runs by workload, most first."""
    names = list(dict.fromkeys(w for r in reports for w in r["workloads"] if w != "all"))
    jobs = {
        w: sum(r["workloads"][w]["default"]["submissions"] for r in reports if w in r["workloads"]) / len(reports)
        for w in names
    }
    return ", ".join(f"{name_of(w)} {jobs[w]:,.0f}" for w in sorted(names, key=lambda w: -jobs[w]))


def workloads(reports: Sequence[Report]) -> list[str]:
    """Figure 9, without a queue."""
    rows = []
    shown = (*POLICIES, "grid_search")
    for workload, row in over_draws(reports)["workloads"].items():
        here = sum(workload in r["workloads"] for r in reports)
        jobs = sum(r["workloads"][workload]["default"]["submissions"] for r in reports if workload in r["workloads"])
        figures = [row[p][what] for p in shown for what in ("energy", "time")]
        cells = [plus_minus(f, ".3f" if f[0] < 10 else ",.0f") for f in figures]
        rows.append([name_of(workload), str(here), f"{jobs / len(reports):,.0f}", *cells])
    head = [f"{p.replace('_', ' ') if p == 'grid_search' else p}: {w}" for p in shown for w in ("energy", "time")]
    return table(["workload", "draws with it", "runs", *head], sorted(rows, key=lambda row: row[0] == "all"))


def queue(whole: Report) -> list[str]:
    """The cluster, by load and policy."""
    rows = []
    for load, policies in whole["cluster"].items():
        for policy, f in policies.items():
            energy_time = [plus_minus(f[n], ",.0f") for n in ("energy_kwh", "gpu_h")]
            waits = [plus_minus(f[n]) for n in ("mean_wait_h", "wait_95_h", "mean_end_h")]
            rows.append([_load(load), f"{f['gpus'][0]:.1f}", policy, *energy_time, *waits])
    head = "load | GPUs | policy | energy [kWh] | GPU time [h] | mean wait [h] | 95 % wait at most [h]"
    return table(f"{head} | mean time to the model [h]", rows)


def queue_said(reports: Sequence[Report]) -> list[str]:
    """Each policy against Default, draw by draw."""
    load = max(reports[0]["cluster"], key=float)
    said = []
    for policy in POLICIES:
        of = [(r["cluster"][load][policy], r["cluster"][load]["default"]) for r in reports]
        energy, time = (_percent([f[n] for f, _ in of]) for n in ("energy", "time"))
        less = cell(interval([f["mean_wait_h"] - base["mean_wait_h"] for f, base in of]), "+.2f")
        shorter = sum(f["mean_wait_h"] < base["mean_wait_h"] for f, base in of)
        said.append(
            f"- `{policy}` at {_load(load)} load: energy {energy}, GPU time {time}, mean wait {less} hours; the "
            f"wait is the shorter one in {shorter} of {len(of)} draws."
        )
    return said


def by_size(whole: Report) -> list[str]:
    """Energy by the number of runs in a group, at the first load."""
    of = next(iter(whole["cluster"].values()))
    sizes = list(of["default"]["energy_by_size"])
    return table(
        ["policy", *sizes], [[p, *(plus_minus(of[p]["energy_by_size"][s], ".3f") for s in sizes)] for p in POLICIES]
    )


def by_size_said(reports: Sequence[Report]) -> list[str]:
    """Whether what a policy saves grows with the size of a group, draw by draw."""
    load, said = next(iter(reports[0]["cluster"])), []
    for policy in POLICIES:
        of = [r["cluster"][load][policy]["energy_by_size"] for r in reports]
        names = list(dict.fromkeys(size for row in of for size in row))
        small, large = names[0], names[-1]
        both = [(row[small], row[large]) for row in of if small in row and large in row]
        more = cell(interval([100 * (b - a) for a, b in both]), "+.1f")
        said.append(f"- `{policy}`, groups of {large} against groups of {small}: energy {more} points.")
    return said


def changes(changed: Mapping[str, Sequence[Report]]) -> list[str]:
    """``zeus`` against Default with one number of the shape changed."""
    rows = []
    for name, reports in changed.items():
        energy, time = (_percent([r["zeus"][n] for r in reports]) for n in ("energy", "time"))
        waits = [plus_minus(mean_ci([r[p]["mean_wait_h"] for r in reports])) for p in ("default", "zeus")]
        beside = f"{100 * mean_ci([r['beside'] for r in reports])[0]:.0f} %"
        rows.append([name, energy, time, *waits, beside])
    head = "changed | energy | GPU time | mean wait, default [h] | mean wait, zeus [h]"
    return table(f"{head} | begin beside another of their group", rows)


def changes_said(changed: Mapping[str, Sequence[Report]]) -> list[str]:
    """Which figure hangs most on the assumed numbers: the greatest surely known change of each, draw by draw."""
    as_assumed, said = changed[NOTHING], []
    for what, of, form in _HANGS:
        found = {}
        for name, reports in changed.items():
            if name != NOTHING:
                found[name] = interval([of(r) - of(base) for r, base in zip(reports, as_assumed, strict=True)])
        name = max(found, key=lambda n: abs(found[n][0]))
        _, low, high = found[name]
        sure = "" if low * high > 0 else ", which may be chance"
        said.append(f"- {what}: at most {cell(found[name], form)}, with {name}{sure}.")
    return said


_HANGS: tuple[tuple[str, Callable[[Report], float], str], ...] = (
    ("Energy against Default, points", lambda r: 100 * float(r["zeus"]["energy"]), "+.1f"),
    ("GPU time against Default, points", lambda r: 100 * float(r["zeus"]["time"]), "+.1f"),
    ("Mean wait under Default, hours", lambda r: float(r["default"]["mean_wait_h"]), "+.2f"),
    ("Mean wait under `zeus`, hours", lambda r: float(r["zeus"]["mean_wait_h"]), "+.2f"),
)


def _load(load: float | str) -> str:
    return f"{100 * float(load):.0f} %"


def _percent(ratios: Sequence[float]) -> str:
    return cell(interval([100 * (r - 1) for r in ratios]), "+.1f", " %")
