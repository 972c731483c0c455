"""Starts by the log: the epochs that each needs, how its models served, when to start cold.

Cold starts teach Epochs of the batch sizes as the runs of any job do (:mod:`.learn`); warm and
shrunk ones are kept apart here, so that they move nothing of that. Pure, standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import WHY_COLD, Lineage, State, Trial
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import SliceRun, most_epochs, slice_name

RUNS_KEPT = 60  # what a start is worth changes with the data
# A cold run costs what a start saves, so one is due only when it is paid for several times.
PAYS_TIMES = 5.0
# A start that serves worse by more than chance is no saving.
START_TOLERANCE = 0.03
COLD_EVERY = 50  # models that are trained on for ever learn new data worse
Z_SURE = 1.645
# With few runs their own spread would be chance.
RATIO_SD = 0.1
RATIO_RUNS = 2.0
LONGEST_PAUSE = 12  # a start that fails may be mended, so it is asked again


class StartRun(NamedTuple):
    """One run that taught Epochs, or raised an error from a planned start other than cold.

    ``epochs``: a lower bound if it did not reach its target.
    """

    number: int
    batch_size: int
    epochs: float
    reached: bool
    most: float | None
    slice: str
    planned: Start
    start: Start | None
    able: bool  # a start that could not be taken says nothing of its worth
    age: int  # an older model helps less

    @property
    def run(self) -> SliceRun:
        """As the filter takes it."""
        return SliceRun(self.number, self.batch_size, self.epochs, self.reached, self.most)


class Served(NamedTuple):
    """How a model served: ln of its error on the next data over that of the model trained there.

    Above 0: worse. For example, .5 there and .4 for the newer model is ln 1.25.
    """

    number: int  # of the trial that showed it, which is later than the one that trained it
    start: Start
    log_ratio: float


def start_run(trial: Trial) -> StartRun | None:
    """The run of a trial for its start; None if it has none, or went on from a checkpoint."""
    observation = trial.observation
    planned = trial.planned.start
    raised = trial.state is State.FAILED and not observation.out_of_memory
    teaches = planned not in (None, Start.COLD)
    if not raised:
        trained = trial.state.conclusive and bool(observation.epochs)
        teaches = trained and observation.start is not None
    if not teaches:
        return None
    return StartRun(
        number=trial.number,
        batch_size=trial.batch_size,
        epochs=observation.epochs or 0.0,
        reached=trial.state is State.CONVERGED,
        most=most_epochs(trial),
        slice=slice_name(trial),
        planned=planned or Start.COLD,
        start=None if raised else observation.start,
        able=raised or WHY_COLD not in observation.reasons,
        age=trial.lineage.from_age or 0,
    )


def start_of(trial: Trial) -> Start | None:
    """The start of its epochs: cold in a job without starts; None if its models differ in it."""
    observation = trial.observation
    if observation.start is not None:
        return Start(observation.start)
    return None if "start" in observation.reasons else Start.COLD


def is_cold(trial: Trial) -> bool:
    """Whether its epochs are those of a cold start."""
    return start_of(trial) == Start.COLD


def served(trial: Trial, job: ZeusJob) -> Served | None:
    """How the earlier model served on the data of a trial that kept a model; None: unknown."""
    before = trial.observation.served
    after = trial.observation.metric
    lineage = trial.lineage
    if not trial.state.kept_model or lineage.from_age is None:
        return None
    if before is None or after is None:
        return None
    if min(before, after) <= 0:
        return None
    log_ratio = math.log(before) - math.log(after)
    if job.parsed_target.higher_is_better:
        log_ratio = -log_ratio
    return Served(trial.number, lineage.from_start or Start.COLD, log_ratio)


def possible(
    job: ZeusJob, runs: Sequence[StartRun], models: Sequence[Served], lineage: Lineage | None
) -> tuple[list[Start], str]:
    """(The starts besides cold that the next run may take, why there are none or fewer)."""
    if lineage is None or lineage.from_age is None:
        return [], Why.NO_MODEL.of()
    if paused(runs):
        return [], Why.NOT_TAKEN.of()
    starts = [Start(start) for start in job.starts if start != Start.COLD]
    raising = [start for start in starts if keeps_raising(runs, start)]
    bad = [start for start in starts if serves_worse(models, start)]
    usable = [start for start in starts if start not in (*raising, *bad)]
    whys = ((Why.KEEPS_RAISING, raising), (Why.SERVES_WORSE, bad))
    return usable, " ".join(why.of(starts=" and ".join(named)) for why, named in whys if named)


def paused(runs: Sequence[StartRun]) -> bool:
    """Whether the newest runs could not take their planned start: tried again after 1, 2, 4,
    8, then 12 cold runs.
    """
    if runs and not runs[-1].able:
        return True
    failed = {i: not run.able for i, run in enumerate(runs) if run.planned != Start.COLD}
    return _rests(failed, len(runs) - 1, least=1)


def keeps_raising(runs: Sequence[StartRun], start: Start) -> bool:
    """Whether a start pauses since its two newest runs, or more, raised an error."""
    raised = {i: run.start is None for i, run in enumerate(runs) if run.planned == start}
    return _rests(raised, len(runs) - 1, least=2)


def _rests(failed: dict[int, bool], newest: int, least: int) -> bool:
    """Whether a start rests after at least so many failures in a row.

    :param failed: by index of the run, ascending.
    :param newest: index of the newest run.
    """
    times = len(list(takewhile(bool, reversed(failed.values()))))
    if times < least:
        return False
    return newest - max(failed) < min(1 << times - 1, LONGEST_PAUSE)


def serves_worse(models: Sequence[Served], start: Start) -> bool:
    """Whether the models of a start have surely served worse than cold ones' by more than
    :data:`START_TOLERANCE`.
    """
    ours = [model.log_ratio for model in models if model.start == start]
    cold = [model.log_ratio for model in models if model.start == Start.COLD]
    if len(ours) < 2 or not cold:
        return False
    own_mean = math.fsum(ours) / len(ours)
    cold_mean = math.fsum(cold) / len(cold)
    off = [ratio - own_mean for ratio in ours] + [ratio - cold_mean for ratio in cold]
    squares = math.fsum(deviation**2 for deviation in off)
    variance = (squares + RATIO_RUNS * RATIO_SD**2) / (len(off) - 2 + RATIO_RUNS)
    sd = math.sqrt(variance * (1 / len(ours) + 1 / len(cold)))
    surely_worse: bool = own_mean - cold_mean - math.log1p(START_TOLERANCE) > Z_SURE * sd
    return surely_worse


def cold_is_due(
    job: ZeusJob,
    runs: Sequence[StartRun],
    lineage: Lineage,
    cold_cost: float,
    epoch_costs: dict[int, float],
) -> str | None:
    """Why the next run has to start cold, so that no chain of models grows too long; else None.

    :param cold_cost: expected of a cold run [J].
    :param epoch_costs: by batch size [J].
    """
    generations = (lineage.from_generations or 0) + 1
    if generations > COLD_EVERY:
        return Why.COLD_EVERY.of(generations=generations - 1, most=COLD_EVERY)
    saved = 0.0
    for run in reversed(runs):
        is_kept = run.run.ended(float(job.max_epochs or 1))
        if run.start == Start.COLD and is_kept:
            break
        saved += (cold_cost if is_kept else 0.0) - run.epochs * epoch_costs.get(run.batch_size, 0.0)
    if saved < PAYS_TIMES * cold_cost:
        return None
    return Why.COLD_PAID.of(times=saved / cold_cost)
