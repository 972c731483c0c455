"""``airflow zeus simulate``: replays measured trainings through policies and compares costs. Reads no trial log."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from airflow_provider_zeus.cli.shell import command, number_text, print_data, say, show
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.simulation.driver import default, grid_search, replay
from airflow_provider_zeus.simulation.environment import Log
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces
from airflow_provider_zeus.units import energy_text, time_text


@command
def simulate(args: Namespace) -> None:
    """Replay traces through policies and print what each would have cost."""
    policies = list(dict.fromkeys(args.policy or POLICIES))
    summaries: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    gpus, workloads = ([] if name is None else [name] for name in (args.gpu, args.workload))
    for pair in Traces(Path(args.traces)).pairs(gpus, workloads):
        start = args.default_batch_size
        scenario = Scenario(pair if start is None else pair.starting_at(start), args.eta)
        for policy in policies:
            logs = [_replay(policy, scenario, args.recurrences or pair.recurrences, n) for n in range(args.seeds)]
            head = {"workload": pair.workload, "gpu": pair.gpu, "policy": policy}
            summaries.append(head | _summary(scenario, logs))
            lines += [head | line for line in _recurrences(logs)] if args.verbose else []
    data = {"source": "simulated", "eta": args.eta, "summaries": summaries, "recurrences": lines}
    if print_data(data, args.output):
        return
    plain = args.output == "plain"
    if args.verbose:
        show([_line_cells(line) for line in lines], empty="", plain=plain)
    show([_summary_cells(s) for s in summaries], empty="Nothing to replay.", plain=plain)
    if plain:
        return
    print(
        f"Simulated; means over {args.seeds} replays. Regret is in C*, the expected cost of the best choice; energy "
        'and time are multiples\nof the default batch size at full power; "pays from run": from there on all runs '
        "together cost less than the default's.\n"
    )
    for summary in summaries:
        if summary["policy"] != "default":  # the others are compared with it
            say(_sentence(summary))


def _replay(policy: str, scenario: Scenario, recurrences: int, seed: int) -> Log:
    scenario.job()  # raises JobSpecError for an invalid eta
    baselines = {"default": default, "grid_search": grid_search}
    if policy in baselines:
        return baselines[policy](scenario, recurrences, seed)
    try:
        job = scenario.job(policy=policy)
    except JobSpecError as error:
        raise JobSpecError(f"{error} Baselines are {', '.join(baselines)}.") from None
    return replay(scenario, job, recurrences, seed)


def _summary(scenario: Scenario, logs: Sequence[Log]) -> dict[str, Any]:
    """Means over seeds. Energy and time are multiples of the expectation for the default batch size at full power.

    ``energy`` and ``time`` are of all recurrences, exploration included.
    """
    default, last = scenario.default_run, 5  # newest recurrences, as in Figure 6 of the paper
    recurrences = sum(len(log) for log in logs)
    energy_j, time_s = (math.fsum(map(math.fsum, (getattr(log, n) for log in logs))) for n in ("energy_j", "time_s"))
    return {
        "seeds": len(logs),
        "recurrences": recurrences,
        "regret": statistics.fmean(log.regret()[-1] for log in logs),
        "default_batch_size": scenario.pair.default_batch_size,
        "energy": energy_j / recurrences / default.energy_j,
        "time": time_s / recurrences / default.time_s,
        "saved_energy_j": default.energy_j - energy_j / recurrences,
        "saved_time_s": default.time_s - time_s / recurrences,
        "paid_back_at": _paid_back_at(default.cost, [log.cost for log in logs]),
        "energy_last5": statistics.fmean(statistics.fmean(log.energy_j[-last:]) for log in logs) / default.energy_j,
        "time_last5": statistics.fmean(statistics.fmean(log.time_s[-last:]) for log in logs) / default.time_s,
        "attempts": sum(sum(log.attempts) for log in logs),
        "runs_below_target": sum(log.runs_below_target for log in logs),
        "runs_without_model": sum(log.runs_without_model for log in logs),
    }


def _paid_back_at(default_cost: float, costs: Sequence[Sequence[float]]) -> int | None:
    """First recurrence from which on the mean sum of costs stays below Default's; None where it never does."""
    sums = accumulate(default_cost - statistics.fmean(at) for at in zip(*costs, strict=True))
    above = [t for t, saved in enumerate(sums, 1) if saved <= 1e-9 * default_cost]
    first = above[-1] + 1 if above else 1
    return first if first <= len(costs[0]) else None


def _recurrences(logs: Sequence[Log]) -> Iterator[dict[str, Any]]:
    for seed, log in enumerate(logs):
        for t, regret in enumerate(log.regret()):
            ran = log.runs[t][: log.attempts[t]]
            yield {
                "seed": seed,
                "recurrence": t + 1,
                "batch_sizes": [run.batch_size for run in ran],
                "power_limit_w": log.limit_w[t],
                "epochs": math.fsum(run.epochs for run in ran),
                "energy_j": log.energy_j[t],
                "time_s": log.time_s[t],
                "reached": ran[-1].reached,
                "regret": regret,
            }


def _summary_cells(s: dict[str, Any]) -> dict[str, str]:
    return {
        "workload": s["workload"],
        "gpu": s["gpu"],
        "policy": s["policy"],
        "recurrences": str(s["recurrences"] // s["seeds"]),
        "regret [C*]": f"{s['regret']:.2f}",
        "energy": f"{s['energy']:.3f}",
        "time": f"{s['time']:.3f}",
        "energy, last 5": f"{s['energy_last5']:.3f}",
        "time, last 5": f"{s['time_last5']:.3f}",
        "pays from run": number_text(s["paid_back_at"]),
        "below target": str(s["runs_below_target"]),
    }


def _sentence(s: dict[str, Any]) -> str:
    """A sentence on what a policy would have saved."""
    spent = [
        f"{abs(1 - s[name]):.1%} {less if s[name] <= 1 else more} ({text(abs(s[saved]))} a run)"
        for name, saved, text, less, more in (
            ("energy", "saved_energy_j", energy_text, "less energy", "more energy"),
            ("time", "saved_time_s", time_text, "less time", "more time"),
        )
    ]
    runs = s["recurrences"] // s["seeds"]
    return (
        f"{s['workload']} on {s['gpu']}: over {runs} run{'s' if runs > 1 else ''} {s['policy']} takes "
        f"{' and '.join(spent)} than batch size {s['default_batch_size']} at full power, exploration included."
    )


def _line_cells(line: dict[str, Any]) -> dict[str, str]:
    return {
        "workload": line["workload"],
        "gpu": line["gpu"],
        "policy": line["policy"],
        "seed": str(line["seed"]),
        "run": str(line["recurrence"]),
        "batch size": ", ".join(map(str, line["batch_sizes"])),
        "epochs": number_text(line["epochs"]),
        "energy": energy_text(line["energy_j"]),
        "time": time_text(line["time_s"]),
        "limit": number_text(line["power_limit_w"], " W"),
        "target": "reached" if line["reached"] else "missed",
        "regret [C*]": f"{line['regret']:.2f}",
    }
