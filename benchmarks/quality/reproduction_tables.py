"""Tables of ``docs/reproduction.md`` in which nothing is held against a published number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from benchmarks.parts import profiler_overhead
from benchmarks.plots import name_of
from benchmarks.quality import reproduction_figures as figures
from benchmarks.quality import tradeoff
from benchmarks.quality.claims import POLICIES
from benchmarks.quality.drifts import reaching
from benchmarks.quality.reproduction_figures import Results
from benchmarks.quality.sweeps import BETAS, ETAS, against_default
from benchmarks.quality.tradeoff import potentials
from benchmarks.report import Ratio, geomean_of, plus_minus, table
from benchmarks.simulation.traces import WORKLOADS

OURS = "knowledge_gradient"
WITH_GRID = {**POLICIES, "grid_search": "grid search"}
PART = {"early_stopping": "no early stopping", "pruning": "no pruning", "jit_profiling": "no JIT profiling"}
PROFILING = {"deepspeech2": "+0.01 % / +0.03 %", "shufflenet": "−2.8 % / +0.6 %"}  # section 6.5: energy, time


def gpus_of(found: Results) -> list[str]:
    """The GPUs of the traces."""
    return list(dict.fromkeys(s.pair.gpu for s in found.scenarios))


def ratio(figure: Sequence[float], digits: int = 3) -> str:
    """[ratio, low, high]."""
    value, low, high = figure
    digits = 0 if value >= 100 else digits
    if high - low < 1e-9:
        return f"{value:,.{digits}f}"
    return f"{value:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def savings(found: Results) -> list[str]:
    """Figures 6 and 23."""
    rows = []
    for pair, of in found.report["pairs"].items():
        workload, _, gpu = pair.partition("/")
        energy = [plus_minus(of[p]["eta_last5"], ".3f") for p in WITH_GRID]
        time = [plus_minus(of[p]["tta_last5"], ".3f") for p in WITH_GRID]
        rows += [[name_of(workload), gpu.upper(), "energy", *energy], ["", "", "time", *time]]
    return table(["workload", "GPU", "", *WITH_GRID.values()], rows)


def regret(found: Results) -> list[str]:
    """Figures 7 and 19: at the end; Figure 8: how often the cheapest size is where it ends."""
    rows = []
    for pair, of in found.report["pairs"].items():
        scenario, cells = found.scenario(pair), []
        for policy in WITH_GRID:
            kept = found.replays_of(pair, policy).batch_sizes
            share = sum(scenario is not None and sizes[-1] == scenario.best for sizes in kept) / len(kept)
            mean, half = of[policy]["expected_regret_end"]
            digits = 2 if mean < 1000 else 0
            cells.append(f"{mean:,.{digits}f} ± {half:,.{digits}f}, {100 * share:.0f} %")
        rows.append([pair, *cells])
    return table(["pair", *WITH_GRID.values()], rows)


def potential(found: Results) -> list[str]:
    """Figures 1 and 15."""
    rows = []
    for s in found.scenarios:
        cells = [f"{p.value:.3f} ({p.batch_size}, {p.limit_w:g} W)" for p in potentials(s).values()]
        rows.append([name_of(s.pair.workload), s.pair.gpu.upper(), *cells])
    return table(["workload", "GPU", "best batch size", "best power limit", "best of both"], rows)


def bounds(found: Results) -> list[str]:
    """Figure 2."""
    scenario = found.example
    points = tradeoff.configurations(scenario)
    least = {name: min(points, key=attrgetter(name)) for name in ("energy_j", "time_s", "power_w")}
    most_w = max(p.power_w for p in points)
    energy, time = (f"{p.batch_size}, {p.limit_w:g} W" for p in (least["energy_j"], least["time_s"]))
    power = f"{least['power_w'].power_w:.0f} W and {most_w:.0f} W"
    rows = [
        ["2.3, Figure 2b", "least energy at batch size and limit", "32, 100 W", energy],
        ["2.3, Figure 2b", "least time at", "48, 250 W", time],
        ["2.3, Figure 2a", "average power between", "90 W and 210 W", power],
    ]
    return table(["in the paper", "figure", "published", "here"], rows)


def clusters(found: Results) -> list[str]:
    """Figure 9."""
    shown = ("zeus", OURS, "grid_search")
    rows = []
    for workload, row in found.clusters.items():
        for name in ("energy", "time", "cost"):
            title = name_of(workload) if name == "energy" else ""
            rows.append([title, name, *(plus_minus(row[p][name], ".3f") for p in shown)])
    return table(["workload", "", *(WITH_GRID[p] for p in shown)], rows)


def profiling_extras(found: Results) -> dict[str, tuple[profiler_overhead.Extra, ...]]:
    """By workload: the paper's way against full power and against the best limit, and our search."""
    extras = {}
    for scenario in found.on(found.gpu):
        theirs = [profiler_overhead.papers_way(scenario, full_power=full) for full in (True, False)]
        extras[scenario.pair.workload] = (*theirs, profiler_overhead.our_way(scenario))
    return extras


def profiling(extras: Mapping[str, Sequence[profiler_overhead.Extra]]) -> list[str]:
    """Section 6.5."""
    rows = [[name_of(w), PROFILING.get(w, ""), *map(tiny_pair, of)] for w, of in extras.items()]
    head = ["workload", "published", "paper's way, against full power", "paper's way, against the best limit"]
    return table([*head, "our search, against the best limit"], rows)


def tiny_pair(extra: profiler_overhead.Extra) -> str:
    """Extra energy / extra time."""
    return f"{tiny(extra.energy)} / {tiny(extra.time)}"


def tiny(figure: Sequence[float]) -> str:
    """[value, low, high] of a relative extra."""
    value, low, high = (100 * x for x in figure)
    text = f"{value:+.3f} %" if high - low < 1e-9 else f"{value:+.3f} % [{low:+.3f}, {high:+.3f}]"
    return text.replace("-", "−")


def etas(found: Results) -> list[str]:
    """Figure 22."""
    rows = [
        [gpu.upper(), POLICIES[policy], name, *(ratio(swept[eta][gpu]) for eta in ETAS)]
        for gpu in gpus_of(found)
        for policy in POLICIES
        for name, swept in found.report["sweeps"]["eta"][policy].items()
        if gpu in swept[ETAS[0]]
    ]
    return table(["GPU", "policy", "", *(f"eta {eta:g}" for eta in ETAS)], rows)


def betas(found: Results) -> list[str]:
    """Figure 12."""
    sweep = found.report["sweeps"]["beta"]
    rows = [[name, *(ratio(sweep[policy][beta][found.gpu]) for beta in BETAS)] for policy, name in POLICIES.items()]
    return table(["policy", *(f"beta {beta:g}" for beta in BETAS)], rows)


def parts(found: Results) -> list[str]:
    """Figure 13."""
    rows = [
        [POLICIES[policy], PART[part.partition("no_")[2]], *(ratio(parts[part][found.gpu], 2) for parts in of.values())]
        for policy, of in found.report["sweeps"]["parts"].items()
        for part in of["time"]
    ]
    return table(["policy", "", "time", "cost"], rows)


def gpus(found: Results) -> list[str]:
    """Figure 14."""
    rows = []
    for gpu in gpus_of(found):
        for name, figure in (("energy", "eta_last5"), ("time", "tta_last5")):
            cells = [ratio(energy_on(found, gpu, policy, figure).to_json()) for policy in WITH_GRID]
            rows.append([gpu.upper(), name, *cells])
    return table(["GPU", "", *WITH_GRID.values()], rows)


def energy_on(found: Results, gpu: str, policy: str, figure: str = "eta_last5") -> Ratio:
    """Geometric mean over the workloads of a GPU: energy of the last five recurrences, or another figure of them."""
    here = [r for t, r in found.replays.items() if (t.policy, t.gpu) == (policy, gpu)]
    return geomean_of(against_default(getattr(r, figure)) for r in here)


def workloads(found: Results) -> list[str]:
    """Table 1."""
    head = "workload | data, optimizer | target | default: published / here | GPU | sizes | always reach | limits | "
    rows = []
    for scenario in found.scenarios:
        pair = scenario.pair
        w = next((w for w in WORKLOADS if w.name == pair.workload), None)
        fewest, most = figures.runs_per_size(scenario)
        published = w.default_batch_size if w else "none"
        rows.append(
            [
                name_of(pair.workload),
                f"{w.training.dataset}, {w.training.optimizer}" if w else "",
                f"{w.target:g} in {pair.max_epochs} epochs" if w else f"in {pair.max_epochs} epochs",
                f"{published} / {pair.default_batch_size}",
                pair.gpu.upper(),
                f"{len(pair.batch_sizes)}, {pair.batch_sizes[0]} to {pair.batch_sizes[-1]}",
                str(sum(reaching(pair, b) == 1 for b in pair.batch_sizes)),
                f"{len(pair.limits_w)}, {pair.limits_w[0]:g} to {pair.limits_w[-1]:g} W",
                f"{fewest} to {most}" if fewest < most else str(most),
                f"{100 * figures.spread_of_epochs(scenario):.1f} %",
            ]
        )
    return table(head + "trainings per size | scatter", rows)
