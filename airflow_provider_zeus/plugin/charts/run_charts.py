"""Charts of the power of a run's attempts over time, and of the energy of each of its GPUs.

Pure: plain data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from airflow_provider_zeus.model.trial import UNCAPPED, PowerPoint, State, Trial, timed
from airflow_provider_zeus.plugin.answer_parts import LONGEST, Chart, Table
from airflow_provider_zeus.plugin.charts.chart_parts import (
    COLOURS,
    LEGEND,
    SHADE,
    Option,
    bars,
    base,
    colours_of,
    grid,
    line,
    mark_lines,
    number,
    plain,
    scale,
    value_axis,
    watts,
)
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.units import UNKNOWN, counted, energy_text, time_text

POWER = "power drawn"
LIMIT = "power limit in force"
CHOSEN = "chosen limit"
PHASES = {"profile": "profiling", "train": "training", "validate": "validation"}


@dataclass(frozen=True, slots=True)
class _Span:
    """A power point, and the time that it covers in the training time of all attempts."""

    attempt: int
    trial: Trial
    start_s: float
    end_s: float
    point: PowerPoint

    @property
    def limit_w(self) -> float | None:
        """The limit of all GPUs together, comparable with their power."""
        return self.of_all_gpus(self.point.limit_w)

    def of_all_gpus(self, limit_w: float | None) -> float | None:
        """The limit of one GPU, times their number."""
        if limit_w is None:
            return None
        return limit_w * self.trial.observation.devices


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Spans in a row of one attempt and phase."""

    spans: Sequence[_Span]

    @property
    def first(self) -> _Span:
        return self.spans[0]

    @property
    def end_s(self) -> float:
        return self.spans[-1].end_s

    @property
    def is_profiling(self) -> bool:
        return self.first.point.phase == "profile"


def _stretches(spans: Sequence[_Span], *, by_limit: bool = False) -> list[_Stretch]:
    """``by_limit``: a change of the power limit ends one, too."""

    def key(span: _Span) -> tuple[object, ...]:
        if not by_limit:
            return span.attempt, span.point.phase
        return span.attempt, span.point.phase, span.point.limit_w

    return [_Stretch(list(group)) for _, group in groupby(spans, key=key)]


def power(drawn: Sequence[tuple[Trial, Sequence[PowerPoint]]]) -> Chart:
    """Chart of power over training time, one attempt after the other."""
    title = "Power over time"
    spans = _spans(drawn)
    powers_w = [span.point.power_w for span in spans if span.point.power_w is not None]
    if not powers_w:
        return Chart(title=title, note=_why_no_power([trial for trial, _ in drawn]))
    stretches = _stretches(spans)
    windows = sum(stretch.is_profiling for stretch in stretches)
    attempts = len({span.attempt for span in spans})
    text = (
        f"Power over {time_text(spans[-1].end_s)} of training in {counted(attempts, 'attempt')}: "
        f"mean {watts(_mean_w(spans))}, highest {watts(max(0.0, *powers_w))}; "
        f"{counted(windows, 'profiling window')}. The table holds the same figures."
    )
    note = "Each step is a mean over its time."
    if windows:
        note = f"Shaded: windows in which power limits were profiled. {note}"
    return Chart(
        title=title,
        option=_power_option(spans, stretches),
        text=text,
        note=note,
        table=_power_table(spans),
    )


def _spans(drawn: Sequence[tuple[Trial, Sequence[PowerPoint]]]) -> list[_Span]:
    spans = list[_Span]()
    offset_s = 0.0
    for attempt, (trial, points) in enumerate(drawn, 1):
        start_s = 0.0
        for point in points:
            spans.append(
                _Span(
                    attempt=attempt,
                    trial=trial,
                    start_s=offset_s + start_s,
                    end_s=offset_s + point.t_s,
                    point=point,
                )
            )
            # A point holds a mean since the one before it, so it begins there.
            start_s = point.t_s
        offset_s += start_s
    return spans


def _why_no_power(trials: Sequence[Trial]) -> str:
    ended = [trial.observation for trial in timed(trials)]
    if all(observation.energy_source is None for observation in ended):
        return "Power is not known: nothing measured it."
    # A task measured from outside has a point a minute, so a short one has none.
    if all(trial.is_outside for trial in trials):
        return (
            "The log holds no power over time of this task: it took less than a minute, or "
            "'airflow zeus prune' has deleted it."
        )
    return (
        "The log holds no power over time of this run: it ended within a second, "
        "'airflow zeus prune' has deleted it, or the store is Variables, which keep it for the "
        "newest attempts only."
    )


def _power_option(spans: Sequence[_Span], stretches: Sequence[_Stretch]) -> Option:
    size, unit = scale(spans[-1].end_s, "s")
    limits = _steps(spans, size, [span.limit_w for span in spans])
    lines = [
        _power_line(spans, stretches, size),
        line(LIMIT, COLOURS[1], limits, dash="dashed", width=1.5) | {"silent": True},
    ]
    chosen_w = _chosen_limits(spans)
    # Until profiling has chosen one, a line in the legend would have nothing to show.
    if any(chosen_w):
        chosen = _steps(spans, size, chosen_w)
        lines.append(line(CHOSEN, COLOURS[2], chosen, dash="dotted") | {"silent": True})
    option = base(
        grid=grid(left=60, top=28),
        legend={"bottom": 0, "data": [part["name"] for part in lines]},
        xAxis=value_axis(
            f"training time [{unit}]",
            28,
            max=number(spans[-1].end_s / size),
            axisLabel={"showMaxLabel": False},
        ),
        yAxis=value_axis("power [W]", 40, min=0),
        series=lines,
    )
    option["tooltip"]["trigger"] = "axis"
    return option


def _chosen_limits(spans: Sequence[_Span]) -> list[float | None]:
    """The limit of all GPUs together that profiling chose, by span; None if it chose none yet."""
    newest = {span.attempt: span.point for span in spans}
    limits = list[float | None]()
    for span in spans:
        observation = span.trial.observation
        still_profiles = newest[span.attempt].phase == "profile"
        # The limit in the log is that of the last profile until this one is done.
        is_older = span.trial.state is State.RUNNING and still_profiles
        limit_w = observation.power_limit_w
        if is_older or UNCAPPED in observation.reasons:
            limit_w = None
        limits.append(span.of_all_gpus(limit_w))
    return limits


def _steps(spans: Sequence[_Span], size: float, values: Sequence[float | None]) -> list[Option]:
    """Data of a line that holds each value over its span: two points for each."""
    steps = list[Option]()
    for span, value in zip(spans, values, strict=True):
        height = None if value is None else number(value)
        steps.append({"value": [number(span.start_s / size), height]})
        steps.append({"value": [number(span.end_s / size), height]})
    return steps


def _power_line(spans: Sequence[_Span], stretches: Sequence[_Stretch], size: float) -> Option:
    """The line of power with tips, shaded profiling windows and a mark at each attempt's start."""
    data = _steps(spans, size, [span.point.power_w for span in spans])
    for span, point in zip(spans, data[1::2], strict=True):
        point["tip"] = _tip(span)
    windows = [
        [{"xAxis": number(stretch.first.start_s / size)}, {"xAxis": number(stretch.end_s / size)}]
        for stretch in stretches
        if stretch.is_profiling
    ]
    return line(POWER, COLOURS[0], data) | {
        "markArea": {"silent": True, "itemStyle": {"color": SHADE}, "data": windows},
        "markLine": mark_lines(_attempt_marks(spans, size), type="solid", width=1),
    }


def _tip(span: _Span) -> str:
    return (
        f"{time_text(span.start_s)} to {time_text(span.end_s)}, {words.sized(span.trial)}\n"
        f"{plain(_phase(span))}: {watts(span.point.power_w)}, limit {watts(span.limit_w)}"
    )


def _attempt_marks(spans: Sequence[_Span], size: float) -> list[Option]:
    """A mark at the start of each attempt; empty if there is one alone."""
    first: dict[int, _Span] = {}
    for span in spans:
        first.setdefault(span.attempt, span)
    if len(first) < 2:
        return []
    return [
        {
            "xAxis": number(span.start_s / size),
            "label": {"formatter": words.sized(span.trial), "align": "left", "offset": [2, 0]},
        }
        for span in first.values()
    ]


def _phase(span: _Span) -> str:
    return PHASES.get(span.point.phase, span.point.phase)


def _mean_w(spans: Sequence[_Span]) -> float | None:
    """Mean power [W] over the time for which it is known."""
    time_s = 0.0
    energy_j = 0.0
    mean_w = None
    for span in spans:
        power_w = span.point.power_w
        if power_w is None:
            continue
        time_s += span.end_s - span.start_s
        energy_j += (span.end_s - span.start_s) * power_w
        if time_s:
            mean_w = energy_j / time_s
        elif mean_w is None:  # points that a training reports may cover no time
            mean_w = power_w
    return mean_w


def _power_table(spans: Sequence[_Span]) -> Table:
    return Table(
        caption="Mean power by attempt, phase and power limit",
        columns=["Attempt", "Phase", "From", "To", "Mean power", "Limit"],
        numeric=[False, False, True, True, True, True],
        rows=[
            [
                f"{stretch.first.attempt}: {words.sized(stretch.first.trial)}",
                _phase(stretch.first),
                time_text(stretch.first.start_s),
                time_text(stretch.end_s),
                watts(_mean_w(stretch.spans)),
                watts(stretch.first.limit_w),
            ]
            for stretch in _stretches(spans, by_limit=True)
        ],
    )


@dataclass(frozen=True)
class _GpuEnergy:
    """The energy of each GPU of an attempt."""

    number: int
    trial: Trial

    @property
    def name(self) -> str:
        """In the chart."""
        return f"{self.number}: {words.sized(self.trial)}"

    @property
    def has_several(self) -> bool:
        """Whether it used several GPUs."""
        return self.trial.observation.devices > 1

    @property
    def source(self) -> str | None:
        """Of its energy."""
        return self.trial.observation.energy_source

    @cached_property
    def energy_j(self) -> dict[str, float]:
        """The energy by GPU [J]; empty if it is not known.

        A GPU without a name of its own has a number.
        """
        observation = self.trial.observation
        energies_j = observation.gpu_energy_j or ()
        names = (observation.gpu_uuid or "").split(",")
        if len(set(names)) != len(energies_j):
            # By position: two attempts with nameless GPUs then share their bars.
            names = [f"number {i}" for i in range(1, len(energies_j) + 1)]
        return dict(zip(names, energies_j, strict=True))

    def text(self, gpu: str) -> str | None:
        """The energy of a GPU, for people; None if the attempt did not use it."""
        if gpu not in self.energy_j:
            return None
        return energy_text(self.energy_j[gpu])


def gpus(trials: Sequence[Trial]) -> Chart | None:
    """Chart of the energy of each GPU [J], attempts stacked; None if no attempt had several GPUs.

    It shows the newest energy source only: figures of different sources are never added.
    """
    title = "Energy per GPU"
    every = [_GpuEnergy(number, trial) for number, trial in enumerate(trials, 1)]
    attempts = [attempt for attempt in every if attempt.has_several]
    if not attempts:
        return None
    measured = [attempt for attempt in attempts if attempt.energy_j]
    # The chart is announced all the same: the reader learns why it is missing.
    if not measured:
        why = attempts[-1].trial.observation.reasons.get("gpu_energy_j", "")[:LONGEST]
        return Chart(title=title, note=f"Not known: {why or 'the log holds no energy by GPU'}.")
    newest = measured[-1]
    # A counter and an estimate on one bar would read as one measurement.
    shown = [attempt for attempt in measured if attempt.source == newest.source]
    sums_j: dict[str, float] = {}
    for attempt in shown:
        for gpu, energy_j in attempt.energy_j.items():
            # GPUs in the order of the first attempt that used them, so that bars keep their places.
            sums_j[gpu] = sums_j.get(gpu, 0.0) + energy_j
    lowest = energy_text(min(sums_j.values()))
    highest = energy_text(max(sums_j.values()))
    return Chart(
        title=title,
        option=_gpu_option(shown, sums_j),
        text=f"Energy of {len(sums_j)} GPUs, {lowest} to {highest} each. "
        "The table holds the same figures.",
        note=_gpu_note(newest, gaps=len(attempts) - len(shown)),
        table=_gpu_table(title, shown, sums_j),
    )


def _gpu_note(newest: _GpuEnergy, *, gaps: int) -> str:
    """``gaps``: how many attempts are not in the chart."""
    note = f"By attempt, {words.source(newest.source)}."
    if newest.trial.state is State.RUNNING:
        note += " An attempt still runs: its figures so far."
    if gaps:
        note += (
            f" Not in it: {counted(gaps, 'attempt')} whose figures are not known, or of another "
            "source."
        )
    return note


def _gpu_option(shown: Sequence[_GpuEnergy], sums_j: Mapping[str, float]) -> Option:
    size, unit = scale(max(sums_j.values()), "J")
    colours = colours_of([attempt.trial.batch_size for attempt in shown])
    return base(
        grid=grid(),
        legend=LEGEND,
        xAxis={"type": "category", "data": [f"GPU {i}" for i in range(1, len(sums_j) + 1)]},
        yAxis=value_axis(f"energy [{unit}]", 44, min=0),
        series=[
            bars(
                attempt.name,
                colour,
                [_bar(attempt, i, gpu, size) for i, gpu in enumerate(sums_j, 1)],
            )
            for attempt, colour in zip(shown, colours, strict=True)
        ],
    )


def _bar(attempt: _GpuEnergy, i: int, gpu: str, size: float) -> Option:
    energy = attempt.text(gpu) or "not used"
    return {
        "value": number(attempt.energy_j.get(gpu, 0.0) / size),
        "tip": plain(f"GPU {i}: {gpu}\n{attempt.name}\n{energy}"),
    }


def _gpu_table(title: str, shown: Sequence[_GpuEnergy], sums_j: Mapping[str, float]) -> Table:
    total_j = sum(sums_j.values())
    rows = [
        [
            f"GPU {i}",
            gpu,
            *(attempt.text(gpu) or UNKNOWN for attempt in shown),
            energy_text(sum_j),
            f"{100 * sum_j / total_j:.0f} %" if total_j else UNKNOWN,
        ]
        for i, (gpu, sum_j) in enumerate(sums_j.items(), 1)
    ]
    return Table(
        caption=title,
        columns=["GPU", "Identity", *(attempt.name for attempt in shown), "Total", "Share"],
        numeric=[False, False, *(True for _ in shown), True, True],
        rows=rows,
    )
