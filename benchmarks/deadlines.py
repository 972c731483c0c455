"""How often a job with ``finish_by`` is late, and what it saves:
``python -m benchmarks.deadlines --traces DIR``.

Replays every workload of the folder on every GPU, ``--recurrences`` runs per seed, through the
product's own ``learn`` and ``choose``, and the limit of each epoch through the product's own
:class:`InTime`. The deadline is ``--factors`` times the expected time of the fastest training (the
best fixed batch size at full power). Beside it: that training itself, which knows the answer; the
same job without a deadline; and the paper's policy, which knows none. A run whose attempts end
after the deadline is late. Energy is that of all attempts, profiling included. The first epoch of a
batch size profiles: an equal part of it at every limit. With ``--pace 1.3`` each epoch takes 1.3
times as long as its profile says. Simulated from measured epochs, times and powers.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import Decision, Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.optimizer.policy import choose
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.command import SELECTION, chosen_traces, command, on_all_cores, option, took
from benchmarks.report import table_of, write_report
from benchmarks.simulation.driver import SLICE, replay
from benchmarks.simulation.environment import NOTHING, Environment, Log, Run
from benchmarks.simulation.scenario import Epoch, Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement

FASTEST = "always fastest"
OURS = "finish_by"
FREE = "no deadline"
PAPER = "the paper's policy"
ETA = 1.0
WHO = (FASTEST, OURS, FREE, PAPER)
# recurrences after which a job knows its machine, and its batch sizes
FIRST = 2
SETTLED = 10


class Host(Environment):
    """Trainings of one scenario and seed, each with a deadline.

    :param pace: how many times as long as its profile says an epoch takes.
    """

    def __init__(self, scenario: Scenario, seed: int, pace: float = 1.0) -> None:
        super().__init__(scenario, seed)
        self._pace = pace
        self.profiles: dict[int, list[ProfileSample]] = {}  # by batch size
        self.now_s = 0.0  # of the recurrence

    def limit(self, b: int, slowdown: float | None) -> PowerMeasurement:
        """The best limit of a known profile that is fast enough."""
        points = self.scenario.pair.points[b]
        most_s = math.inf if slowdown is None else max(slowdown, 1.0) * points[-1].time_s
        allowed = [p for p in points if p.time_s <= most_s * (1 + 1e-9)] or [points[-1]]
        return min(allowed, key=lambda p: (self.scenario.epoch(p).cost, p.limit_w))

    def profile(self, b: int) -> Epoch:
        """Measure the profile of b in one epoch; what that epoch took."""
        points = self.scenario.pair.points[b]
        part = SLICE // len(points)
        self.profiles[b] = [
            ProfileSample(
                batch_size=b,
                limit_w=p.limit_w,
                samples=part,
                energy_j=p.energy_j / len(points),
                time_s=p.time_s / len(points),
                steps=part,
            )
            for p in points
        ]
        return self.scenario.arms[b].profiling

    def attempt(self, planned: PlannedAttempt) -> Run:
        """Run one attempt from ``now_s`` on, epoch by epoch, as :class:`LiveAttempt` does."""
        now_s = self.now_s
        b = planned.batch_size
        in_time = planned.in_time
        points = self.scenario.pair.points[b]
        most = float(self.scenario.pair.max_epochs)
        needed = self.needs(b)
        epochs = 0.0
        energy_j = time_s = 0.0
        excess = NOTHING
        point = points[-1]
        hurried = in_time is not None and in_time.hurry
        at_full_power = hurried or (in_time is not None and in_time.slowdown == 1)
        weights = self.scenario.weights.hurried() if hurried else self.scenario.weights
        cost = 0.0
        while epochs < min(needed, most) and not self._ends(
            planned, in_time, epochs, cost, now_s + time_s
        ):
            slowdown = None
            if in_time is not None:
                slowdown = in_time.slowdown_at(now_s + time_s, epochs, most, points[-1].time_s)
            point = self.limit(b, slowdown)
            part = min(1.0, min(needed, most) - epochs)
            epoch = self.scenario.epoch(point)
            if b not in self.profiles and not at_full_power:
                seen = self.profile(b)
                excess = Epoch(
                    seen.energy_j - epoch.energy_j,
                    seen.time_s - epoch.time_s,
                    seen.cost - epoch.cost,
                )
                energy_j = energy_j + excess.energy_j
                time_s = time_s + excess.time_s
            energy_j = energy_j + part * epoch.energy_j
            time_s = time_s + part * epoch.time_s * self._pace
            epochs = epochs + part
            cost = cost + part * weights.cost(epoch.energy_j, epoch.time_s)
        self.now_s += time_s
        return Run(
            b,
            point.limit_w,
            epochs,
            epochs >= needed,
            energy_j,
            time_s,
            self.scenario.weights.cost(energy_j, time_s),
            self.scenario.epoch(point).cost,
            excess,
            math.nan,
            math.nan,
        )

    def _ends(
        self,
        planned: PlannedAttempt,
        in_time: InTime | None,
        epochs: float,
        cost: float,
        now_s: float,
    ) -> bool:
        """Whether the attempt is given up before its next epoch
        (``training/attempt_checks.py``).
        """
        if not planned.bounded:
            return False
        if (
            in_time is not None
            and in_time.reserve_s
            and now_s > in_time.finish_by_s - in_time.reserve_s
        ):
            return True
        dear = (
            planned.max_epoch_cost is not None
            and epochs > 0
            and cost / epochs > planned.max_epoch_cost
        )
        bound = math.inf if planned.bound_cost is None else planned.bound_cost
        most = math.inf if planned.bound_epochs is None else planned.bound_epochs
        return dear or epochs + 1 > most + 1e-9 or (epochs > 0 and cost + cost / epochs > bound)


def fastest(scenario: Scenario) -> int:
    """The batch size whose training at full power is the fastest in expectation."""
    return min(
        scenario.arms, key=lambda b: scenario.success_epochs(b) * scenario.full_power(b).time_s
    )


def play(task: tuple[Pair, float, str, int, int, float]) -> dict[str, Any]:
    """Lateness, energy and time of one policy on one pair and seed."""
    pair, factor, who, recurrences, seed, pace = task
    scenario = Scenario(pair, ETA)
    b = fastest(scenario)
    fastest_s = scenario.success_epochs(b) * scenario.full_power(b).time_s * pace
    ends_s = factor * fastest_s
    log = _replayed(Host(scenario, seed, pace), who, recurrences, ends_s)
    late = [spent_s > ends_s for spent_s in log.time_s]
    return {
        "pair": pair.name,
        "factor": factor,
        "who": who,
        "late": fmean(late),
        "late_first": fmean(late[FIRST:]),
        "late_settled": fmean(late[SETTLED:]),
        "energy_j": math.fsum(log.energy_j),
        "energy_settled_j": math.fsum(log.energy_j[SETTLED:]),
        "time": fmean(spent_s / fastest_s for spent_s in log.time_s),
        "missed": sum(not runs[-1].reached for runs in log.runs),
    }


def _replayed(host: Host, who: str, recurrences: int, ends_s: float) -> Log:
    """The runs of one policy.

    Always the fastest: the same training again and again, ten times at most.
    """
    if who == FASTEST:
        always_late = InTime(finish_by_s=0.0, slowdown=1.0)  # so it trains at full power
        b = fastest(host.scenario)
        attempt = PlannedAttempt(batch_size=b, phase=Phase.INCUMBENT, why="", in_time=always_late)
        log = Log()
        for _ in range(recurrences):
            runs = [host.attempt(attempt)]
            while not runs[-1].reached and len(runs) < 10:
                runs.append(host.attempt(attempt))
            log.add(host.scenario, runs)
        return log
    job = host.scenario.job(policy="zeus" if who == PAPER else "knowledge_gradient")

    def choose_in_time(situation: Situation) -> Decision:
        host.now_s = 0.0
        profiles = (
            [s for samples in host.profiles.values() for s in samples] if who != PAPER else ()
        )
        finish_by_s = ends_s if who == OURS else None
        return choose(situation._replace(profiles=profiles, finish_by_s=finish_by_s))

    return replay(host.scenario, job, recurrences, host.seed, env=host, choose=choose_in_time)


def report_of(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per factor and policy: over pairs and seeds, and the worst pair's lateness."""
    rows = []
    for factor, who in dict.fromkeys((f["factor"], f["who"]) for f in found):
        pairs = list(dict.fromkeys(f["pair"] for f in found))
        mine = {
            p: [f for f in found if (f["pair"], f["factor"], f["who"]) == (p, factor, who)]
            for p in pairs
        }
        base = {
            p: [f for f in found if (f["pair"], f["factor"], f["who"]) == (p, factor, FASTEST)]
            for p in pairs
        }

        def ratio(name: str, mine: Any = mine, base: Any = base) -> float:
            """Geometric mean over the pairs, against always the fastest."""
            each = [
                (math.fsum(f[name] for f in mine[p]), math.fsum(f[name] for f in base[p]))
                for p in mine
            ]
            return math.exp(fmean(math.log(ours / fastest) for ours, fastest in each))

        every = [f for p in pairs for f in mine[p]]
        late = {p: fmean(f["late_settled"] for f in mine[p]) for p in pairs}
        worst = max(late, key=lambda p: late[p])
        means = {name: fmean(f[name] for f in every) for name in ("late", "late_first", "time")}
        rows.append(
            {
                "factor": factor,
                "who": who,
                **means,
                "late_settled": fmean(late.values()),
                "worst_late_settled": late[worst],
                "worst_pair": worst,
                "energy": ratio("energy_j"),
                "energy_settled": ratio("energy_settled_j"),
                "below_target": sum(f["missed"] for f in every),
            }
        )
    return rows


def markdown_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the docs."""
    columns = {
        "deadline": "{factor:g} x",
        "": "{who}",
        "late": "{late:.1%}",
        f"late after {FIRST} runs": "{late_first:.1%}",
        f"after {SETTLED}": "{late_settled:.1%}",
        "worst pair": "{worst_late_settled:.1%} {worst_pair}",
        "energy": "{energy:+.1%}",
        f"energy after {SETTLED}": "{energy_settled:+.1%}",
        "time": "{time:.2f} x",
    }
    changes = [{**r, **{name: r[name] - 1 for name in ("energy", "energy_settled")}} for r in rows]
    return "\n".join(table_of(columns, changes)) + "\n"


@command(
    SELECTION,
    option("--factors", type=float, nargs="+", default=[1.1, 1.5, 2.0]),
    option("--recurrences", type=int, default=60),
    option("--pace", type=float, default=1.0),
    seeds=8,
    out=Path("deadlines-report"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    cases = product(args.factors, WHO, pairs, range(args.seeds))
    tasks = [
        (pair, factor, who, args.recurrences, seed, args.pace) for factor, who, pair, seed in cases
    ]
    rows = report_of(list(on_all_cores(play, tasks, args.jobs)))
    text = markdown_of(rows)
    write_report(args.out, {"source": "simulated", "rows": rows}, text, "deadlines")
    print(text, end="")
    what = f"{len(pairs)} pairs, {args.seeds} seeds, eta {ETA:g}, pace {args.pace:g}"
    print(f"{what}: {took(args)}")
