"""What the log teaches about starts: how many epochs a start needs, how its models served, when to start cold.

Cold starts teach Epochs of the batch sizes as the runs of any job do (:mod:`.learn`); warm and shrunk ones are kept
apart here, so that they move nothing of that. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import WHY_COLD, Lineage, State, Trial
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import SliceRun, most_epochs, slice_name

RUNS_KEPT = 60  # newest runs of each start that teach it
PAYS_TIMES = 5.0  # a cold run is due when what other starts have saved since the last one would pay for so many
START_TOLERANCE = 0.03  # share of the metric by which a start may serve worse than cold ones before it is not used
COLD_EVERY = 50  # generations of models after which a run starts cold at the latest
Z_SURE = 1.645  # one-sided 95 %
RATIO_SD, RATIO_RUNS = 0.1, 2.0  # spread of the log ratios where few are known, and how many runs that counts as
LONGEST_PAUSE = 12  # runs that start cold after starts that could not be taken


class StartRun(NamedTuple):
    """One run that taught Epochs, or raised an error from a planned start other than cold.

    ``epochs``: a lower bound where it did not reach its target.
    """

    number: int  # of its trial
    batch_size: int
    epochs: float
    reached: bool
    most: float | None  # see optimizer.slices.SliceRun
    slice: str
    planned: Start
    taken: Start | None  # None: it raised an error
    able: bool  # whether nothing kept it from the planned start
    age: int  # of the earlier model [runs]; 0: there was none

    @property
    def run(self) -> SliceRun:
        """As the filter takes it."""
        return SliceRun(self.number, self.batch_size, self.epochs, self.reached, self.most)


class Served(NamedTuple):
    """How a model served: ln of its error on the next data over that of the model trained there; above 0: worse."""

    number: int  # of the trial that showed it
    start: Start  # of the model
    log_ratio: float


def start_run(trial: Trial) -> StartRun | None:
    """What a trial teaches about its start; None where it tells none, or went on from a checkpoint."""
    seen, planned = trial.observation, trial.planned.start
    raised = trial.state is State.FAILED and not seen.out_of_memory
    if planned in (None, Start.COLD) if raised else not trial.state.conclusive or seen.start is None or not seen.epochs:
        return None
    return StartRun(
        trial.number,
        trial.batch_size,
        seen.epochs or 0.0,
        trial.state is State.CONVERGED,
        most_epochs(trial),
        slice_name(trial),
        planned or Start.COLD,
        None if raised else seen.start,
        raised or WHY_COLD not in seen.reasons,
        trial.lineage.from_age or 0,
    )


def start_of(trial: Trial) -> Start | None:
    """The start of its epochs: cold in a job without starts; None where its models started differently."""
    seen = trial.observation
    if seen.start is not None:
        return Start(seen.start)
    return None if "start" in seen.reasons else Start.COLD


def is_cold(trial: Trial) -> bool:
    """Whether its epochs are those of a cold start."""
    return start_of(trial) == Start.COLD


def served(trial: Trial, job: ZeusJob) -> Served | None:
    """How the earlier model served by the data of a trial that trained on them to its end; None: it is not known."""
    before, after, held = trial.observation.served, trial.observation.metric, trial.lineage
    if not trial.state.kept_model or before is None or after is None or held.from_age is None:
        return None
    worse, better = (after, before) if job.parsed_target.higher_is_better else (before, after)
    if worse <= 0 or better <= 0:
        return None
    return Served(trial.number, held.from_start or Start.COLD, math.log(worse) - math.log(better))


def possible(
    job: ZeusJob, runs: Sequence[StartRun], known: Sequence[Served], lineage: Lineage | None
) -> tuple[list[Start], str]:
    """(The starts besides cold that the next run may take, why there are none or fewer)."""
    if lineage is None or lineage.from_age is None:
        return [], Why.NO_MODEL.of()
    if paused(runs):
        return [], Why.NOT_TAKEN.of()
    starts = [Start(start) for start in job.starts if start != Start.COLD]
    raising = [start for start in starts if keeps_raising(runs, start)]
    bad = [start for start in starts if serves_worse(known, start)]
    left = [start for start in starts if start not in (*raising, *bad)]
    whys = ((Why.KEEPS_RAISING, raising), (Why.SERVES_WORSE, bad))
    return left, " ".join(why.of(starts=" and ".join(named)) for why, named in whys if named)


def paused(runs: Sequence[StartRun]) -> bool:
    """Whether the newest runs could not take their planned start: tried again after 1, 2, 4, 8, then 12 cold runs."""
    if runs and not runs[-1].able:
        return True
    at = next((i for i in range(len(runs) - 1, -1, -1) if runs[i].planned != Start.COLD), None)
    if at is None or runs[at].able:
        return False
    failed = 0
    for run in reversed([run for run in runs if run.planned != Start.COLD]):
        if run.able:
            break
        failed += 1
    return len(runs) - 1 - at < min(1 << failed - 1, LONGEST_PAUSE)


def keeps_raising(runs: Sequence[StartRun], start: Start) -> bool:
    """Whether the two newest runs from a start raised an error, or more: then it pauses as one that cannot be taken."""
    at = [i for i, run in enumerate(runs) if run.planned == start]
    raised = 0
    for i in reversed(at):
        if runs[i].taken is not None:
            break
        raised += 1
    return raised > 1 and len(runs) - 1 - at[-1] < min(1 << raised - 1, LONGEST_PAUSE)


def serves_worse(known: Sequence[Served], start: Start) -> bool:
    """Whether the models of a start have surely served worse than cold ones' by more than :data:`START_TOLERANCE`."""
    ours, cold = ([s.log_ratio for s in known if s.start == which] for which in (start, Start.COLD))
    if len(ours) < 2 or not cold:
        return False
    means = [math.fsum(each) / len(each) for each in (ours, cold)]
    squares = math.fsum((r - mean) ** 2 for each, mean in zip((ours, cold), means, strict=True) for r in each)
    variance = (squares + RATIO_RUNS * RATIO_SD**2) / (len(ours) + len(cold) - 2 + RATIO_RUNS)
    sd = math.sqrt(variance * (1 / len(ours) + 1 / len(cold)))
    surely_worse: bool = means[0] - means[1] - math.log1p(START_TOLERANCE) > Z_SURE * sd
    return surely_worse


def cold_is_due(
    job: ZeusJob, runs: Sequence[StartRun], lineage: Lineage, cold_cost: float, epoch_costs: dict[int, float]
) -> str | None:
    """Why the next run has to start cold, so that no chain of models grows too long; None: it has not.

    :param cold_cost: expected of a cold run [J].
    :param epoch_costs: by batch size [J].
    """
    generations = (lineage.from_generations or 0) + 1
    if generations > COLD_EVERY:
        return Why.COLD_EVERY.of(generations=generations - 1, most=COLD_EVERY)
    saved = 0.0
    for run in reversed(runs):
        is_kept = run.run.ended(float(job.max_epochs or 1))
        if run.taken == Start.COLD and is_kept:
            break
        saved += (cold_cost if is_kept else 0.0) - run.epochs * epoch_costs.get(run.batch_size, 0.0)
    return Why.COLD_PAID.of(times=saved / cold_cost) if saved >= PAYS_TIMES * cold_cost else None
