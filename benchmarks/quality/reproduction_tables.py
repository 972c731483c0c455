"""Tables of ``docs/evidence/reproduction.md`` in which nothing is held against a published
number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

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
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import WORKLOADS

OURS = "knowledge_gradient"
WITH_GRID = {**POLICIES, "grid_search": "grid search"}
PART = {
    "early_stopping": "no early stopping",
    "pruning": "no pruning",
    "jit_profiling": "no JIT profiling",
}
# section 6.5: energy, time
PROFILING = {"deepspeech2": "+0.01, +0.03", "shufflenet": "−2.8, +0.6"}
PAIRS_HEAD = (
    "pair",
    "way",
    "energy",
    "energy_half",
    "time",
    "time_half",
    "regret",
    "regret_half",
    "ends_at_cheapest",
    "batch_size",
    "limit_w",
)


def gpus_of(found: Results) -> list[str]:
    """The GPUs of the traces."""
    return list(dict.fromkeys(s.pair.gpu for s in found.scenarios))


def ratio(figure: Sequence[float], digits: int = 3) -> str:
    """[ratio, low, high]."""
    value, low, high = figure
    form = ",.0f" if value >= 100 else f",.{digits}f"
    ends = [f"{end:{form}}" for end in (low, high)]
    return f"{value:{form}}" if ends[0] == ends[1] else f"{value:{form}} [{', '.join(ends)}]"


def _policies_on(found: Results, gpu: str) -> list[tuple[str, Any]]:
    """The figures of each policy by workload, on one GPU."""
    pairs = (s.pair for s in found.on(gpu))
    return [(name_of(pair.workload), found.report["pairs"][pair.name]) for pair in pairs]


def savings(found: Results) -> list[str]:
    """Figure 6: energy, time."""
    rows = []
    for workload, of in _policies_on(found, found.gpu):
        cells = [
            f"{plus_minus(of[p]['eta_last5'], '.3f')}, {plus_minus(of[p]['tta_last5'], '.3f')}"
            for p in WITH_GRID
        ]
        rows.append([workload, *cells])
    return table(["workload", *WITH_GRID.values()], rows)


def ends_at_cheapest(found: Results, scenario: Scenario, policy: str) -> float:
    """The share of seeds whose last run has the cheapest batch size."""
    kept = found.replays_of(scenario.pair.name, policy).batch_sizes
    return sum(sizes[-1] == scenario.best for sizes in kept) / len(kept)


def potential(found: Results) -> list[str]:
    """Figure 1."""
    rows = []
    for s in found.on(found.gpu):
        cells = [f"{p.value:.3f} ({p.batch_size}, {p.limit_w:g})" for p in potentials(s).values()]
        rows.append([name_of(s.pair.workload), *cells])
    return table(["workload", "best batch size", "best power limit", "best of both"], rows)


def pairs_csv(found: Results) -> list[str]:
    """Figures 1, 6 to 8, 15 to 17, 19, 22 and 23 of every pair: lines of a CSV file.

    ``_half``: of the interval.
    """
    rows: list[tuple[str, ...]] = [PAIRS_HEAD]
    for scenario in found.scenarios:
        pair = scenario.pair.name
        for kind, best in potentials(scenario).items():
            way = f"best {'of both' if kind == 'both' else kind}"
            configuration = (str(best.batch_size), f"{best.limit_w:g}")
            rows.append((pair, way, f"{best.value:.3f}", *[""] * 6, *configuration))
        for policy, title in WITH_GRID.items():
            of = found.report["pairs"][pair][policy]
            measured = [*of["eta_last5"], *of["tta_last5"], *of["expected_regret_end"]]
            share = ends_at_cheapest(found, scenario, policy)
            rows.append((pair, title, *(f"{x:.3f}" for x in [*measured, share]), "", ""))
    return [",".join(row) for row in [*rows, *_etas_of_every_gpu(found)]]


def _etas_of_every_gpu(found: Results) -> list[tuple[str, ...]]:
    """Figures 16 and 22: the geometric mean over the workloads of each GPU."""
    rows: list[tuple[str, ...]] = []
    for policy, swept in found.report["sweeps"]["eta"].items():
        for eta in ETAS:
            for gpu, energy in swept["energy"][eta].items():
                cells = []
                for value, low, high in (energy, swept["time"][eta][gpu]):
                    cells += [f"{value:.3f}", f"{(high - low) / 2:.3f}"]
                way = f"{POLICIES[policy]} at eta {eta:g}"
                rows.append((f"all/{gpu}", way, *cells, *[""] * 5))
    return rows


def bounds(found: Results) -> str:
    """Figure 2."""
    points = tradeoff.configurations(found.example)
    energy = min(points, key=attrgetter("energy_j"))
    time = min(points, key=attrgetter("time_s"))
    watts = [p.power_w for p in points]
    return (
        f"least energy at {energy.batch_size}, {energy.limit_w:g} W (published: 32, 100 W), least"
        f" time at {time.batch_size}, {time.limit_w:g} W (48, 250 W), average power"
        f" {min(watts):.0f} to {max(watts):.0f} W (90 to 210 W: round numbers that enclose most"
        " points)."
    )


def clusters(found: Results) -> list[str]:
    """Figure 9: energy, time, cost."""
    shown = ("zeus", OURS, "grid_search")
    rows = []
    for workload, row in found.clusters.items():
        cells = [
            ", ".join(plus_minus(row[policy][name], ".3f") for name in ("energy", "time", "cost"))
            for policy in shown
        ]
        rows.append([name_of(workload), *cells])
    return table(["workload", *(WITH_GRID[policy] for policy in shown)], rows)


def profiling_extras(found: Results) -> dict[str, tuple[profiler_overhead.Extra, ...]]:
    """By workload: the paper's way against full power and against the best limit,
    and our search.
    """
    extras = {}
    for scenario in found.on(found.gpu):
        theirs = [profiler_overhead.papers_way(scenario, full_power=full) for full in (True, False)]
        extras[scenario.pair.workload] = (*theirs, profiler_overhead.our_way(scenario))
    return extras


def profiling(extras: Mapping[str, Sequence[profiler_overhead.Extra]]) -> list[str]:
    """Section 6.5: extra energy and extra time, in %."""
    rows = []
    for workload, of in extras.items():
        cells = [f"{tiny(extra.energy)}, {tiny(extra.time)}" for extra in of]
        rows.append([name_of(workload), PROFILING.get(workload, ""), *cells])
    head = ["workload", "published", "paper's way, against full power"]
    return table([*head, "against the best limit", "our search, against the best limit"], rows)


def tiny(figure: Sequence[float]) -> str:
    """[value, low, high] of a relative extra, in percent."""
    value, low, high = (100 * x for x in figure)
    text = f"{value:+.3f}" if high - low < 1e-9 else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
    return text.replace("-", "−")


def etas(found: Results) -> list[str]:
    """Figure 22: energy, time."""
    rows = []
    for policy, swept in found.report["sweeps"]["eta"].items():
        cells = [
            f"{ratio(swept['energy'][eta][found.gpu])}, {ratio(swept['time'][eta][found.gpu])}"
            for eta in ETAS
        ]
        rows.append([POLICIES[policy], *cells])
    return table(["policy", *(f"eta {eta:g}" for eta in ETAS)], rows)


def betas(found: Results) -> list[str]:
    """Figure 12."""
    sweep = found.report["sweeps"]["beta"]
    rows = [
        [name, *(ratio(sweep[policy][beta][found.gpu]) for beta in BETAS)]
        for policy, name in POLICIES.items()
    ]
    return table(["policy", *(f"beta {beta:g}" for beta in BETAS)], rows)


def parts(found: Results) -> list[str]:
    """Figure 13."""
    rows = [
        [
            POLICIES[policy],
            PART[part.partition("no_")[2]],
            *(ratio(parts[part][found.gpu], 2) for parts in of.values()),
        ]
        for policy, of in found.report["sweeps"]["parts"].items()
        for part in of["time"]
    ]
    return table(["policy", "", "time", "cost"], rows)


def gpus(found: Results) -> list[str]:
    """Figure 14: energy, time."""
    rows = []
    for gpu in gpus_of(found):
        cells = []
        for policy in WITH_GRID:
            energy = energy_on(found, gpu, policy)
            time = energy_on(found, gpu, policy, "tta_last5")
            cells.append(f"{energy.value:.3f}, {time.value:.3f}")
        rows.append([gpu.upper(), *cells])
    return table(["GPU", *WITH_GRID.values()], rows)


def energy_on(found: Results, gpu: str, policy: str, figure: str = "eta_last5") -> Ratio:
    """Geometric mean over the workloads of a GPU: energy of the last five recurrences,
    or another figure of them.
    """
    here = [r for t, r in found.replays.items() if (t.policy, t.gpu) == (policy, gpu)]
    return geomean_of(against_default(getattr(r, figure)) for r in here)


def workloads(found: Results) -> list[str]:
    """Table 1: a row for each workload, and what was measured of it on the paper's GPU."""
    rows = []
    for scenario in found.on(found.gpu):
        pair = scenario.pair
        rows.append(
            [
                name_of(pair.workload),
                *_of_the_paper(pair.workload, pair.max_epochs),
                *_measured(scenario),
            ]
        )
    head = ["workload", "data, optimizer", "target", "default"]
    measured = ["default here", "sizes that reach it", "trainings per size", "scatter, %"]
    return table([*head, *measured], rows)


def _of_the_paper(workload: str, max_epochs: int) -> list[str]:
    """Data and optimizer, target and default as the paper has them."""
    w = next((w for w in WORKLOADS if w.name == workload), None)
    if w is None:
        return ["", f"in {max_epochs} epochs", "none"]
    training = f"{w.training.dataset}, {w.training.optimizer}"
    return [training, f"{w.target:g} in {max_epochs} epochs", str(w.default_batch_size)]


def _measured(scenario: Scenario) -> list[str]:
    """Default here; sizes that always reach the target of all, least to greatest;
    trainings per size; scatter.
    """
    pair = scenario.pair
    fewest, most = figures.runs_per_size(scenario)
    trainings = f"{fewest}–{most}" if fewest < most else str(most)
    sizes = pair.batch_sizes
    sure = sum(reaching(pair, b) == 1 for b in sizes)
    scatter = f"{100 * figures.spread_of_epochs(scenario):.1f}"
    reach = f"{sure}/{len(sizes)}, {sizes[0]}–{sizes[-1]}"
    return [str(pair.default_batch_size), reach, trainings, scatter]


def limits(found: Results) -> dict[str, str]:
    """The power limits of each GPU's traces: how many, and from which to which."""
    by_gpu: dict[str, set[float]] = {}
    for scenario in found.scenarios:
        by_gpu.setdefault(scenario.pair.gpu, set()).update(scenario.pair.limits_w)
    return {gpu: f"{len(of)}, {min(of):g}–{max(of):g} W" for gpu, of in by_gpu.items()}
