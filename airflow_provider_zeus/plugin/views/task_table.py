"""The costs of all tasks of a run or of a DAG together, and of each of them, by source. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from airflow_provider_zeus.model.groups import grouped, known_sum
from airflow_provider_zeus.model.job_ids import names_in
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import Observation, State, Trial, timed
from airflow_provider_zeus.plugin.answer_parts import Figure, Short, Source
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.reports.dataset import gpu_s_of
from airflow_provider_zeus.reports.months import Spent
from airflow_provider_zeus.units import ESTIMATE, SHORT_TASKS, at_least, counted

SMALL = 0.01  # hundreds of small tasks would hide the large ones


class TaskLine(BaseModel):
    """The cost of a task, or of all of them, by one energy source."""

    name: Short
    job_id: str | None = None
    runs: int  # one for each index of a mapped task, whose cost they explain
    share: Figure = Figure()  # of this source alone: figures of two sources do not compare
    energy: Figure
    time: Figure
    money: Figure | None
    co2e: Figure | None
    source: Source
    state_text: str = ""


class TaskTable(BaseModel):
    """All tasks together, then each of them."""

    caption: str
    totals: list[TaskLine]
    tasks: list[TaskLine]
    small: list[TaskLine]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpent:
    """The cost of a task by one source.

    :param job_id: None: these are several tasks.
    :param drawn: the energy, by the price of its hours.
    """

    name: str
    job_id: str | None
    source: str | None
    runs: int
    energy_j: float | None
    time_s: float | None
    gpu_s: float
    is_part: bool  # a part must not read as the whole
    drawn: tuple[Observation, ...]
    state_text: str = ""

    @property
    def size(self) -> float | None:
        """The figure of its share: energy [J], or time [s] if nothing measures energy."""
        if self.source is None:
            return self.time_s
        return self.energy_j

    @property
    def rank(self) -> tuple[float, float]:
        """The costliest comes first."""
        return -(self.energy_j or 0.0), -(self.time_s or 0.0)


def of_dag(sums: Iterable[PeriodSum], dag_id: str, factors: Factors, caption: str) -> TaskTable:
    """The tasks of a DAG, the costliest first. ``sums``: of its jobs."""
    # A task that is still in its first run has taken nothing that is known.
    measured = [part for part in sums if part.time_s is not None]
    tasks = [_of_sums([part], _task_of(part.job_id, dag_id), part.job_id) for part in measured]
    tasks.sort(key=lambda task: (*task.rank, task.name))
    return _table(tasks, factors, caption, outside=any(part.outside for part in measured))


def costliest(sums: Iterable[PeriodSum], jobs: Sequence[str]) -> list[str]:
    """The jobs of a DAG by the energy they took, then by their time."""
    energy_j = dict.fromkeys(jobs, 0.0)
    time_s = dict.fromkeys(jobs, 0.0)
    for part in sums:
        if part.job_id in energy_j:
            energy_j[part.job_id] += part.energy_j or 0.0
            time_s[part.job_id] += part.time_s or 0.0
    return sorted(jobs, key=lambda job: (energy_j[job], time_s[job], job), reverse=True)


def dag_lines(sums: Sequence[PeriodSum], factors: Factors) -> list[TaskLine]:
    """All tasks of one DAG together: a line for each source."""
    measured = (part for part in sums if part.time_s is not None)
    by_source = grouped(measured, lambda part: part.source)
    tasks = [_of_sums(of_source, of_source[0].dag_id) for of_source in by_source.values()]
    tasks.sort(key=lambda task: task.rank)
    return [_line(task, factors) for task in tasks]


def of_run(trials: Iterable[Trial], order: Mapping[str, int], factors: Factors) -> TaskTable | None:
    """The tasks of a run in the order of its graph; None if there is one alone.

    A mapped task is one line.

    :param order: position of each task in the graph; a task that it lacks comes last, by when it
        began.
    """
    # Numbers are of each job: between jobs only the clock orders.
    oldest_first = sorted(trials, key=lambda trial: trial.opened_at)
    instances = {trial.recurrence for trial in oldest_first}
    # A table of one line would repeat the card above it.
    if len(instances) < 2:
        return None
    by_task = grouped(oldest_first, lambda trial: (trial.origin.task_id, trial.job_id))
    last = len(order)
    tasks = list[TaskSpent]()
    for own in sorted(by_task.values(), key=lambda own: order.get(own[0].origin.task_id, last)):
        tasks += _of_trials(own)
    outside = any(trial.is_outside for trial in oldest_first)
    return _table(tasks, factors, "Tasks of this run", outside=outside)


def graph_order(after: Mapping[str, Collection[str]]) -> dict[str, int]:
    """The position of each task if none comes before one that it waits for.

    :param after: the tasks that follow each task, as the DAG names them.
    """
    waits = dict.fromkeys(after, 0)
    for following in after.values():
        for task in following:
            waits[task] = waits.get(task, 0) + 1
    # Each task after those that it waits for: a circle is left out, which Airflow refuses anyhow.
    ready = [task for task, count in waits.items() if count == 0]
    order: dict[str, int] = {}
    while ready:
        task = ready.pop(0)
        order[task] = len(order)
        # Sorted: the order of a set of names differs between processes.
        for following_task in sorted(after.get(task, ())):
            waits[following_task] -= 1
            if waits[following_task] == 0:
                ready.append(following_task)
    return order


def _of_sums(sums: Sequence[PeriodSum], name: str, job_id: str | None = None) -> TaskSpent:
    """``sums``: of one source."""
    spent = Spent.of(sums)
    return TaskSpent(
        name=name,
        job_id=job_id,
        source=sums[0].source,
        runs=spent.runs,
        energy_j=spent.energy_j,
        time_s=spent.time_s,
        gpu_s=spent.gpu_s,
        is_part=spent.without_energy > 0,
        drawn=spent.drawn,
    )


def _task_of(job_id: str, dag_id: str) -> str:
    """The task of a job as its DAG names it; a job of another name keeps that."""
    first, *rest = names_in(job_id)
    # A job may have a name of its own, which its author knows better.
    if first != dag_id or not rest:
        return job_id
    return ".".join(rest)


def _of_trials(own: Sequence[Trial]) -> list[TaskSpent]:
    """The cost of one task of a run with all its map indexes and tries, by source."""
    measured = timed(own)
    if not measured:
        return [_of_source(own, None, is_part=False)]
    is_part = len(measured) < len(own)
    # A cleared try may have another meter than the one after it.
    by_source = grouped(measured, lambda trial: trial.observation.energy_source)
    return [
        _of_source(of_source, source, is_part=is_part or any(map(_is_part, of_source)))
        for source, of_source in by_source.items()
    ]


def _of_source(own: Sequence[Trial], source: str | None, *, is_part: bool) -> TaskSpent:
    """The cost of a task of a run, as one source tells it. ``own``: the trials that it measured."""
    first = own[0]
    observations = tuple(trial.observation for trial in own)
    instances = {trial.origin.map_index for trial in own}
    name = first.origin.task_id
    if len(instances) > 1:
        name += f", {len(instances)} mapped"
    return TaskSpent(
        name=name,
        job_id=first.job_id,
        source=source,
        runs=len(instances),
        energy_j=known_sum(observation.energy_j for observation in observations),
        time_s=known_sum(observation.time_s for observation in observations),
        gpu_s=gpu_s_of(observations),
        is_part=is_part,
        drawn=observations,
        state_text=_states(own),
    )


def _is_part(trial: Trial) -> bool:
    """Whether a trial took more than its figures tell."""
    if trial.state is State.RUNNING:
        return True
    observation = trial.observation
    return observation.energy_source is not None and observation.energy_j is None


def _states(trials: Sequence[Trial]) -> str:
    """How the map indexes of a task ended, each with its last try."""
    by_number = sorted(trials, key=lambda trial: trial.number)
    newest = {trial.recurrence: words.state(trial.state) for trial in by_number}
    counts = Counter(newest.values())
    if len(counts) == 1:
        (state,) = counts
        return state
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _table(
    tasks: Sequence[TaskSpent], factors: Factors, caption: str, *, outside: bool
) -> TaskTable:
    by_source = grouped(tasks, lambda task: task.source)
    sums = [_together(own, is_all=len(by_source) == 1) for own in by_source.values()]
    sums.sort(key=lambda together: together.rank)
    size_of = {together.source: together.size for together in sums}
    table = TaskTable(
        caption=caption,
        totals=[_line(together, factors) for together in sums],
        tasks=[],
        small=[],
    )
    if outside:
        table.note = SHORT_TASKS
    for task in tasks:
        line = _line(task, factors)
        line.share = words.missing("not known")
        size = task.size
        whole = size_of[task.source]
        if size is not None and whole:
            line.share = words.share(size / whole)
        # A task whose share is not known may be a large one.
        if line.share.value is not None and line.share.value < SMALL:
            table.small.append(line)
        else:
            table.tasks.append(line)
    return table


def _together(own: Sequence[TaskSpent], *, is_all: bool) -> TaskSpent:
    """The tasks of one source. ``is_all``: there is no other source."""
    name = counted(len(own), "task")
    if is_all and len(own) > 1:
        name = f"All {name}"
    return TaskSpent(
        name=name,
        job_id=None,
        source=own[0].source,
        runs=sum(task.runs for task in own),
        energy_j=known_sum(task.energy_j for task in own),
        time_s=known_sum(task.time_s for task in own),
        gpu_s=sum(task.gpu_s for task in own),
        is_part=any(task.is_part for task in own),
        drawn=tuple(part for task in own for part in task.drawn),
    )


def _line(task: TaskSpent, factors: Factors) -> TaskLine:
    factors = factors.at_the_time(task.drawn)
    energy = words.missing("nothing measures its energy")
    if task.energy_j is not None:
        energy = words.energy(task.energy_j)
    time = words.missing("not measured yet")
    if task.time_s is not None:
        time = words.duration(task.time_s)
    line = TaskLine(
        name=task.name,
        job_id=task.job_id,
        runs=task.runs,
        energy=energy,
        time=time,
        money=factors.money(task.energy_j, task.gpu_s),
        co2e=factors.carbon(task.energy_j),
        source=words.badge([task.source]),
        state_text=task.state_text,
    )
    if task.is_part:
        for figure in (line.energy, line.time, line.money, line.co2e):
            _mark(figure, "and more that is not known", sep=", ", is_part=True)
    # Money looks exact with two decimals, so the doubt is repeated beside it.
    if task.source == "estimate":
        for figure in (line.money, line.co2e):
            _mark(figure, ESTIMATE, sep="; ")
    return line


def _mark(figure: Figure | None, text: str, *, sep: str, is_part: bool = False) -> None:
    """Say more of a figure that is known. ``is_part``: it is at least so high."""
    if figure is None or figure.value is None:
        return
    figure.exact += f"{sep}{text}"
    if is_part:
        figure.text = at_least(figure.text)
