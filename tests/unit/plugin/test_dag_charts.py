"""The charts of a DAG's tab beside that of cost, and its words: data, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.answer_parts import Chart
from airflow_provider_zeus.plugin.api.reading import BeliefCache
from airflow_provider_zeus.plugin.charts import chart_parts, dag_charts
from airflow_provider_zeus.plugin.charts.chart_parts import number
from airflow_provider_zeus.plugin.charts.dag_belief import (
    BELIEVED,
    OBSERVED,
    STANDINGS,
    belief_chart,
)
from airflow_provider_zeus.plugin.charts.dag_front import (
    FRONT,
    PROFILED,
    RAN,
    front_chart,
)
from airflow_provider_zeus.plugin.charts.dag_saved import EXPLORED, SUM, saved_chart
from airflow_provider_zeus.plugin.text import headline, saved_text
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import costs, dag_view
from airflow_provider_zeus.plugin.views.dag_view import JobLog
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.reports.belief_table import BatchSizeStatus, belief_table
from airflow_provider_zeus.reports.dataset import ENERGY, as_dataset
from airflow_provider_zeus.reports.eta_choices import EtaChoice
from airflow_provider_zeus.reports.pareto import OperatingPoint, marked
from airflow_provider_zeus.reports.savings import Savings, saving
from airflow_provider_zeus.units import three_digits
from tests.unit.plugin.kit import JOB, charts, trial

HALF = Weights(0.5, 300.0)
FULL = {"power_limit_w": 300.0, "rest_j": 0.0, "rest_s": 0.0, "samples": 5000, "epochs": 5.0}


def run(n: int, b: int, kj: float, state: State = State.CONVERGED, **more: Any) -> Trial:
    """A run at full power whose cost is ``kj`` kilojoules at eta 0.5 (300 W, 10 s:
    half of it 1.5 kJ of time).
    """
    return trial(
        n, f"run{n}", b, state, **{**FULL, "time_s": 10.0, "energy_j": 2000 * kj - 3000.0, **more}
    )


def series(chart: Chart) -> dict[str, dict[str, Any]]:
    assert chart.option is not None
    option = json.loads(json.dumps(chart.option, allow_nan=False))
    return {s["name"]: s for s in option["series"] if s["name"]}


def values(one: dict[str, Any]) -> list[Any]:
    return [p["value"] if isinstance(p, dict) else p for p in one["data"]]


def saved(*trials: Trial) -> tuple[Savings, Chart]:
    found = saving(as_dataset(trials, JOB))
    return found, saved_chart(found, costs.rows_of(trials, JOB), HALF)


def known(*trials: Trial, job: ZeusJob = JOB) -> JobAnalysis:
    log = BeliefCache().with_belief("log", as_dataset(trials, job))
    return JobAnalysis.of(trials, log, [])


# --- sum saved


def test_a_loss_of_next_to_nothing_is_none() -> None:
    first = run(1, 32, 4.0, excess_j=0.2, excess_s=0.0)
    found, chart = saved(first, run(2, 32, 4.0), run(3, 64, 1.6))
    lost = found.steps[0].saved.value
    assert lost is not None
    assert -1.0 < lost < 0.0, "profiling took a little"
    assert chart.table is not None
    assert chart.table.rows[-1][1] == "0 runs", "in the oldest run"
    _, alone = saved(first)
    assert "saved 0 runs" in alone.text, "a loss that is written as 0 is called none"


def test_the_sum_saved_runs_by_run_with_exploration_and_break_even() -> None:
    found, chart = saved(
        run(1, 32, 4.0), run(2, 16, 5.0, phase=Phase.EXPLORE), run(3, 64, 1.6), run(4, 64, 1.6)
    )
    drawn = series(chart)
    sums, (now, _) = (
        [step.saved.value or 0.0 for step in found.steps],
        found.default_now or (1.0, ""),
    )
    assert values(drawn[SUM]) == [
        [n, pytest.approx(total / now, abs=1e-4)] for n, total in enumerate(sums)
    ]
    assert sums[0] == 0
    assert sums[1] < -500 < 1000 < sums[3]
    assert values(drawn[EXPLORED]) == [[0, 0], [1, 0], [2, 0], [3, 0]], "each of them left a model"
    assert found.break_even_run in (3, 4)
    assert chart.option is not None
    (mark,) = [s["markLine"]["data"] for s in chart.option["series"] if "markLine" in s]
    assert mark == [{"xAxis": found.break_even_run - 1, "label": {"formatter": "break-even"}}]
    assert f"saved {three_digits(sums[3] / now)} runs, exploration 0 runs" in chart.text
    assert (
        chart.option["yAxis"]["name"]
        == "energy and time saved [runs of always 32 now]; below 0: lost"
    )
    assert chart.table is not None
    signs = [row[1][0] for row in chart.table.rows]
    assert (signs[2], signs[3]) == ("−", "0"), "newest first, a loss with its sign"


def test_attempts_given_up_are_what_exploration_cost() -> None:
    given_up = replace(run(2, 16, 3.0, State.GIVEN_UP), origin=run(3, 32, 4.0).origin)
    _, chart = saved(run(1, 32, 4.0), given_up, run(3, 32, 4.0))
    assert values(series(chart)[EXPLORED])[-1] == [1, number(3000 / 4000)], (
        "of a run of the default"
    )
    assert values(series(chart)[SUM])[-1] == [1, number(-3000 / 4000)]


def test_the_interval_is_a_band_where_there_is_one() -> None:
    _, chart = saved(run(1, 32, 4.0), run(2, 64, 2.0))
    assert SURE in series(chart)
    _, chart = saved(run(1, 32, 4.0), run(2, 32, 8.0))
    assert SURE not in series(chart), "the default itself ran: nothing is estimated"


def test_a_lone_run_is_a_point_and_its_band_has_none() -> None:
    trials = [run(1, 32, 4.0), run(2, 64, 2.0)]
    found, _ = saved(*trials)
    chart = saved_chart(found, costs.rows_of(trials, JOB)[:1], HALF)
    assert chart.option is not None
    symbols = {s["name"]: s["symbol"] for s in chart.option["series"]}
    assert symbols == {"": "none", SURE: "none", SUM: "circle", EXPLORED: "circle"}


def test_a_sum_with_a_gap_is_not_drawn() -> None:
    _, chart = saved(run(1, 32, 4.0), run(2, 64, 2.0, energy_j=None))
    assert chart.option is None
    assert "is not known" in chart.note


# --- tiles


def test_what_saved_it_is_split_by_batch_size_and_limit_and_adds_up() -> None:
    found = known(run(1, 32, 4.0), run(2, 64, 1.6), run(3, 64, 1.6))
    table = charts(found.log.trials, found).levers
    assert table is not None
    assert [row[0] for row in table.rows] == ["Batch size", "Power limit", "Together"]
    (batch_size, limit), total = found.levers_by(ENERGY), found.saving.energy.saved
    assert limit.saved.value == 0, "all ran at full power"
    assert batch_size.saved.value == pytest.approx(total.value)
    assert (table.rows[0][1], table.rows[1][1]) == (table.rows[2][1], "0")
    assert charts(found.log.trials[:1], known(run(1, 32, 4.0))).levers is None


def test_a_loss_and_what_is_not_known() -> None:
    lost = saving(
        as_dataset([run(1, 32, 4.0), run(2, 32, 4.0), run(3, 64, 4.0, State.GIVEN_UP)], JOB)
    )
    assert saved_text.job_word(lost) == ("Lost", "bad")
    assert lost.cost.saved.value == pytest.approx(-4000)
    unknown = saving(as_dataset([run(1, 64, 4.0)], JOB))
    assert saved_text.job_word(unknown) == ("Not known", "")
    assert saved_text.paid_off(unknown) == ""


# --- belief


def test_belief_stands_beside_what_was_observed() -> None:
    job = replace(JOB, policy="knowledge_gradient")
    beliefs = belief_table(as_dataset([run(1, 32, 4.0), run(2, 32, 5.0), run(3, 64, 2.0)], job))
    chart = belief_chart(beliefs, HALF)
    drawn = series(chart)
    usual = beliefs.lines[2].believed.cost.value or 0.0
    assert values(drawn[OBSERVED]) == [
        [i, number(100_000 * kj / usual)] for i, kj in ((1, 4), (1, 5), (2, 2))
    ]
    assert chart.option is not None
    assert chart.option["yAxis"]["name"] == "energy and time together [% of batch size 64]"
    assert {x for x, _ in values(drawn[BELIEVED])} == {0, 1, 2}, "16 is believed by its neighbours"
    whiskers = values(drawn[SURE])
    assert len(whiskers) == 9
    assert whiskers[2] == [0, "-"]
    assert "(★): 64" in chart.text
    assert chart.table is not None
    assert [row[:2] for row in chart.table.rows] == [
        ["16", "may be tried next"],
        ["32", "reached the target"],
        ["64", "in use"],
    ]


def doubtful() -> tuple[ZeusJob, list[Trial]]:
    """32 is believed cheaper than 64, the default, but misses the target now and then."""
    job = replace(
        JOB,
        batch_sizes=[32, 64],
        default_batch_size=64,
        policy="knowledge_gradient",
        max_epochs=50,
        eta=1.0,
    )
    took = [(64, 20.0), (32, 19.0), (64, 20.0), (64, 21.0), (32, 19.0), (64, 20.0)]
    took += [(32, 50.0), (64, 20.0), (32, 19.0), (32, 50.0), (64, 21.0), (32, 50.0), (64, 20.0)]
    log = []
    for n, (b, epochs) in enumerate(took, 1):
        state = State.CONVERGED if epochs < 50 else State.EXHAUSTED
        costs = {"time_s": 10 * epochs, "energy_j": 2000 * epochs}
        ended = run(n, b, 4.0, state, epochs=epochs, samples=int(1000 * epochs), **costs)
        log.append(replace(ended, spec=job.to_dict()))
    return job, log


def test_what_runs_is_not_called_cheapest_where_another_size_is_believed_cheaper() -> None:
    job, log = doubtful()
    found = JobAnalysis.of(log, as_dataset(log, job), [])
    answer = charts(log, found)
    assert answer.belief is not None
    assert "In use (★): 64" in answer.belief.text
    assert "Believed cheaper, but not with what its misses cost: 32 (" in answer.belief.text
    assert (
        "64, the cheapest known to reach the target, with what misses cost, runs"
        in found.decided.settled.why
    )
    pinned = JobAnalysis.of(log, as_dataset(log, job), [], {"pin_batch_size": 64})
    answer = charts(log, pinned)
    assert answer.belief is not None
    assert "Pinned (★): 64" in answer.belief.text
    assert "Believed cheaper: 32 (" in answer.belief.text
    missing = JobAnalysis.of(log, as_dataset(log[1:2], job), [], {"pin_batch_size": 64})
    answer = charts(log, missing)
    assert answer.belief is not None
    assert (
        "In use: 64; what a run of it to the target costs here is not known." in answer.belief.text
    )


def test_runs_are_stated_on_a_typical_slice_though_the_default_never_reached_its_target() -> None:
    """64 ran in hard weeks, then in easy ones; 128 in easy ones alone:
    it needs a fifth more epochs on any slice.
    """
    job = replace(JOB, batch_sizes=[32, 64, 128], policy="knowledge_gradient", max_epochs=100)
    log = [
        replace(run(1, 32, 4.0, State.EXHAUSTED, epochs=100.0, samples=100_000), spec=job.to_dict())
    ]
    for n in range(2, 26):
        b = 128 if n > 13 and n % 2 else 64
        epochs = (30.0 if n <= 13 else 10.0) * (1.2 if b == 128 else 1.0)
        more = {
            "epochs": epochs,
            "samples": int(1000 * epochs),
            "time_s": epochs,
            "energy_j": 300.0 * epochs,
        }
        log.append(replace(trial(n, f"run{n}", b, **{**FULL, **more}), spec=job.to_dict()))
    found = known(*log, job=job)
    assert found.saving.cost.saved.value is None
    typical = {p.batch_size: p.eta_j for p in found.front()}
    assert typical[128] > typical[64], "as they ran it looked like half of it"
    answer = charts(log, found)
    assert found.saving.best is not None
    assert answer.front is not None
    assert f"runs batch size {found.saving.best.batch_size}," in answer.front.text


@pytest.mark.parametrize(("mode", "limit_w"), [("optimize", 150.0), ("observe", None)])
def test_the_line_of_what_runs_has_a_limit_that_the_mode_sets(
    mode: str, limit_w: float | None
) -> None:
    job = replace(JOB, mode=mode)
    log = [run(n, 32, 4.0) for n in (1, 2)]
    profiles = [
        ProfileSample(batch_size=32, limit_w=w, samples=100, energy_j=j, time_s=1.0)
        for w, j in ((300.0, 300.0), (150.0, 100.0))
    ]
    best = JobAnalysis.of(
        log, BeliefCache().with_belief("log", as_dataset(log, job)), profiles
    ).saving.best
    assert best is not None
    assert best.limit_w == limit_w


def backfills(count: int = 16) -> list[Trial]:
    return [run(n, 32 if n % 2 else 64, 4.0, run_type="backfill") for n in range(1, count + 1)]


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_runs_that_do_not_teach_are_no_nothing(policy: str) -> None:
    """Sixteen backfills read "nothing has run yet", "an unknown amount" and "missed the target"."""
    job = replace(JOB, policy=policy)
    found = known(*backfills(), job=job)
    answer = charts(backfills(), found)
    assert answer.gaps[0].startswith("16 runs of type backfill")
    assert answer.cost is not None
    assert answer.cost.option is not None, "their cost is shown as any run's"
    assert answer.belief is not None
    assert answer.belief.table is not None
    standings = {row[0]: row[1] for row in answer.belief.table.rows}
    untaught = STANDINGS[BatchSizeStatus.UNTAUGHT]
    assert standings == {"16": "not tried", "32": untaught, "64": untaught}
    assert all("that teaches" in row[7] for row in answer.belief.table.rows)
    assert "that teaches" in answer.belief.text
    assert "not clear yet" in answer.sentence.text, (
        "they are compared: the policy alone learns nothing from them"
    )
    taught = replace(job, learn_from=("backfill",))
    answer = charts(backfills(), known(*backfills(), job=taught))
    assert answer.gaps == []
    assert "not known" not in answer.sentence.text


def test_map_indexes_that_share_a_job_are_named() -> None:
    trials = [
        replace(run(n, 32, 4.0), origin=replace(run(1, 32, 4.0).origin, map_index=n))
        for n in (1, 2, 3)
    ]
    assert "job_id_by=" in charts(trials, known(*trials)).gaps[0]
    assert charts(trials[:1], known(*trials[:1])).gaps == []


def test_every_standing_has_words() -> None:
    assert set(STANDINGS) == set(BatchSizeStatus)


def test_nothing_is_believed_of_nothing() -> None:
    chart = belief_chart(belief_table(as_dataset([], JOB)), HALF)
    assert chart.option is None
    assert chart.note.startswith("Nothing is believed yet")


def test_costs_far_apart_get_a_logarithmic_axis() -> None:
    near = belief_chart(
        belief_table(as_dataset([run(1, 32, 4.0), run(2, 64, 5.0)], JOB)), HALF
    ).option
    far = belief_chart(
        belief_table(as_dataset([run(1, 32, 4.0), run(2, 64, 400.0)], JOB)), HALF
    ).option
    assert near is not None
    assert far is not None
    assert (near["yAxis"]["type"], far["yAxis"]["type"]) == ("value", "log")


# --- energy against time


def front(*points: tuple[int, float, float, float, bool]) -> tuple[OperatingPoint, ...]:
    made = [
        OperatingPoint(batch_size=b, limit_w=w, tta_s=t, eta_j=3.6 * e, runs=1, observed=o)
        for b, w, t, e, o in points
    ]
    return marked(made)


def choice(
    eta: float, batch_size: int, limit_w: float | None = None, start: str | None = None
) -> EtaChoice:
    return EtaChoice(eta=eta, batch_size=batch_size, limit_w=limit_w, start=start)


POINTS = (
    (32, 300.0, 10.0, 4000.0, True),
    (32, 200.0, 20.0, 2000.0, False),
    (64, 300.0, 30.0, 3000.0, True),
)


@pytest.mark.parametrize(
    ("eta", "limit_w", "cheapest"), [(0.0, 300.0, [10, 4]), (0.5, 200.0, [20, 2])]
)
def test_the_line_of_equal_cost_touches_what_runs_today(
    eta: float, limit_w: float, cheapest: list[float]
) -> None:
    weights = known(run(1, 32, 4.0), job=replace(JOB, eta=eta)).weights
    assert weights.max_power_w == 300.0
    chart = front_chart(front(*POINTS), weights, [choice(eta, 32, limit_w)])
    drawn = series(chart)
    assert framed(chart) == [cheapest]
    (x1, y1), (x2, y2) = values(drawn[f"equal cost at eta {eta:g}"])
    best = weights.cost(3600 * cheapest[1], cheapest[0])
    assert [weights.cost(3600 * y, x) for x, y in ((x1, y1), (x2, y2))] == pytest.approx(
        [best, best], rel=1e-4
    )
    assert (x1, y1) != (x2, y2)


def frames(chart: Chart) -> list[str]:
    return [name for name in series(chart) if name.startswith("eta ")]


def framed(chart: Chart) -> list[Any]:
    drawn = series(chart)
    return [point for name in frames(chart) for point in values(drawn[name])]


def test_a_point_that_several_etas_choose_has_one_mark_with_all_their_names() -> None:
    choices = [
        choice(0.0, 32, 300.0),
        choice(0.25, 32, 300.0),
        choice(0.5, 64, 300.0),
        choice(1.0, 32, 200.0),
    ]
    chart = front_chart(front(*POINTS), HALF, choices)
    assert frames(chart) == ["eta 0, 0.25", "eta 0.5 (today)", "eta 1"]
    assert framed(chart) == [[10, 4], [30, 3], [20, 2]]
    assert "At eta 0, 0.25 runs batch size 32, 300 W, 10 s and 4 Wh." in chart.text.replace(
        "\u00a0", " "
    )
    assert chart.table is not None
    assert [row[-1] for row in chart.table.rows] == ["0, 0.25", "1", "0.5 (today)"]


def test_each_choice_has_a_frame_of_its_own_shape() -> None:
    sizes = (8, 16, 32, 64, 128, 256)
    points = front(*((b, 200.0, float(n), 2000.0, True) for n, b in enumerate(sizes, 1)))
    etas = (0.0, 0.25, 0.4, 0.5, 0.75, 1.0)
    chart = front_chart(points, HALF, [choice(eta, b) for eta, b in zip(etas, sizes, strict=True)])
    assert [x for x, _ in framed(chart)] == [1, 2, 3, 4, 5, 6]
    drawn = series(chart)
    assert len({drawn[name]["symbol"] for name in frames(chart)}) == len(sizes)
    assert chart.option is not None
    assert chart.option["legend"]["data"][-len(sizes) :] == frames(chart), "no name in the chart"


def test_a_choice_that_is_not_the_cheapest_seen_says_why() -> None:
    chart = front_chart(front(*POINTS), HALF, [choice(0.5, 32, 200.0)])
    assert chart.note.endswith("Dashed: what costs as much at eta 0.5 as what runs then.")
    chart = front_chart(front(*POINTS), HALF, [choice(0.5, 64, 300.0)])
    assert "Batch size 32, 200 W, looks cheaper in the mean of 1 run; the choice" in chart.note
    chart = front_chart(front(*POINTS), HALF, [replace(choice(0.5, 64, 300.0), pinned=True)])
    assert chart.note.endswith("in the mean of 1 run; batch size 64 is pinned.")


def test_of_runs_at_unknown_limits_the_cheapest_at_that_eta_is_marked() -> None:
    points = front(
        (32, 300.0, 10.0, 4000.0, True),
        (32, 100.0, 30.0, 1000.0, True),
        (32, 150.0, 12.0, 900.0, False),
    )
    chart = front_chart(points, HALF, [choice(0.0, 32), choice(1.0, 32)])
    assert framed(chart) == [[10, 4], [30, 1]], "of those that ran"


def test_a_choice_of_which_no_run_reached_the_target_is_told_in_words() -> None:
    chart = front_chart(
        front(*POINTS), HALF, [choice(0.5, 32, 300.0), choice(0.75, 128), choice(1.0, 128)]
    )
    assert frames(chart) == ["eta 0.5 (today)"]
    for words_ in (chart.text, chart.note):
        assert (
            "At eta 0.75, 1 runs batch size 128, but no run of it that reached the target is known"
            " here" in words_
        )


def test_a_start_that_a_job_chooses_is_marked_at_its_own_point() -> None:
    points = marked(
        replace(p, start=start)
        for p, start in zip(front(*POINTS[::2]), ("cold", "warm"), strict=True)
    )
    cold = replace(points[0], batch_size=64)
    warm = points[1]
    chart = front_chart(
        (cold, warm), HALF, [choice(0.0, 64, start="cold"), choice(0.5, 64, start="warm")]
    )
    assert framed(chart) == [[10, 4], [30, 3]]
    assert {point["label"]["formatter"] for point in series(chart)[RAN]["data"]} == {
        "64, cold",
        "64, warm",
    }


LIMITS = [
    ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for w, j, s in ((100.0, 1000.0, 11.0), (200.0, 1500.0, 10.0), (300.0, 2000.0, 9.9))
]


@pytest.mark.parametrize(
    ("fields", "limit_w"),
    [
        ({}, 100.0),
        ({"mode": "observe"}, 300.0),
        ({"power_limits_w": [200.0, 300.0]}, 200.0),
    ],
)
def test_what_runs_has_the_limit_that_the_job_sets_though_a_profile_shows_a_cheaper_one(
    fields: dict[str, Any], limit_w: float
) -> None:
    job = replace(JOB, batch_sizes=[32], policy="knowledge_gradient", **{"eta": 0.9, **fields})
    log = [replace(run(n, 32, 4.0), spec=job.to_dict()) for n in (1, 2, 3)]
    found = JobAnalysis.of(log, as_dataset(log, job), LIMITS)
    chart = charts(log, found).front
    (at,) = [p for p in found.front() if p.limit_w == limit_w]
    assert chart is not None
    (today,) = [name for name in frames(chart) if "(today)" in name]
    ((x, y),) = values(series(chart)[today])
    assert [x, y * 3600] == pytest.approx([at.tta_s, at.eta_j], rel=1e-3)


def test_nothing_is_called_what_runs_where_that_size_never_reached_the_target() -> None:
    log = [run(n, 32, 4.0) for n in (1, 2)]
    found = JobAnalysis.of(log, as_dataset(log, JOB), [], {"pin_batch_size": 64})
    assert all(choice.pinned for choice in found.choices())
    chart = charts(log, found).front
    assert chart is not None
    assert "At eta 0, 0.25, 0.5 (today), 0.75, 1 runs batch size 64, but no run of it" in chart.text
    assert frames(chart) == []


def test_no_label_hides_another() -> None:
    near = [(b, 200.0, 100.0 + b / 100, 1000.0 + b / 100, True) for b in (16, 32, 64)]
    drawn = series(front_chart(front(*near, (128, 200.0, 900.0, 5000.0, True)), HALF, []))
    labels = {p["label"]["formatter"]: p["label"] for p in drawn[RAN]["data"]}
    assert all(label["show"] for label in labels.values())
    assert len({labels[str(b)]["offset"][1] for b in (16, 32, 64)}) == 3
    assert labels["128"]["offset"] == labels["16"]["offset"], "alone, it stays where it was"


def test_the_front_and_what_was_only_profiled() -> None:
    chart = front_chart(front(*POINTS), HALF, [])
    drawn = series(chart)
    assert values(drawn[FRONT]) == [[10, 4], [20, 2]]
    assert values(drawn[RAN]) == [[10, 4], [30, 3]]
    assert values(drawn[PROFILED]) == [[20, 2]]
    assert drawn[PROFILED]["data"][0]["itemStyle"]["color"] == "transparent", "not by colour alone"
    assert chart.table is not None
    assert [row[-2] for row in chart.table.rows] == ["yes", "yes", "no"]


def test_without_energy_there_is_no_front() -> None:
    log = [run(1, 32, 4.0, energy_j=None, energy_source=None)]
    assert charts(log, known(*log)).front is None


FAST = {"time_s": 10.0, "energy_j": 2500.0}
FRUGAL = {"time_s": 40.0, "energy_j": 800.0}
WEIGHED = [
    trial(n, f"run{n}", b, **{**FULL, **of})
    for n, (b, of) in enumerate([(32, FAST), (16, FRUGAL)] * 3, 1)
]


def test_the_chart_of_a_log_marks_the_fast_choice_and_the_frugal_one() -> None:
    job = replace(JOB, eta=0.4)
    log = [replace(t, spec=job.to_dict()) for t in WEIGHED]
    chart = charts(log, known(*log, job=job)).front
    assert chart is not None
    assert frames(chart) == ["eta 0, 0.25, 0.4 (today), 0.5, 0.75", "eta 1"]


def test_what_is_weighed_is_never_told_in_the_unit_of_energy() -> None:
    """On cards, charts and their tables: strangers took its Wh for energy."""
    log = [run(n, b, 0.0, energy_j=250_000.0, time_s=2000.0) for n, b in enumerate((32, 32, 64), 1)]
    found = known(*log)
    shown = charts(log, found)
    told = {tile.name: tile.figure.text for card in shown.headline for tile in card.figures}
    assert [tile.figure.text for tile in shown.headline[0].figures] == ["0.208 kWh", "1 h 40 min"]
    assert "Wh" not in told.get("Together", "")
    for chart in (shown.cost, shown.saved, shown.belief):
        assert "Wh" not in chart.text
        assert "Wh" not in json.dumps(chart.table.rows)
        assert "Wh" not in chart.option["yAxis"]["name"]
    assert shown.paid.startswith("0 % of the cost so far was exploration.")


# --- history breaks, comparison curves, cached beliefs


def test_a_new_version_and_a_new_target_are_marked() -> None:
    log = [run(n, 32, 4.0) for n in range(1, 6)]
    log[2:] = [replace(t, spec={**t.spec, "target": "accuracy >= 0.9"}) for t in log[2:]]
    log[3:] = [replace(t, spec={**t.spec, "job_version": "2"}) for t in log[3:]]
    job = replace(JOB, target="accuracy >= 0.9", job_version="2")
    assert [(m.run[0], m.label) for m in known(*log, job=job).marks] == [
        ("run3", "new target"),
        ("run4", "new version"),
    ]


def test_a_change_of_the_data_is_marked_where_it_began() -> None:
    job = replace(JOB, policy="knowledge_gradient", max_epochs=100)

    def of(n: int, epochs: float) -> Trial:
        return replace(
            run(n, 32, 4.0, epochs=epochs, samples=int(1000 * epochs)), spec=job.to_dict()
        )

    log = [of(n, 5.0) for n in range(1, 21)] + [of(n, 40.0) for n in range(21, 31)]
    (mark,) = known(*log, job=job).marks
    assert mark.label == "data changed"
    assert int(mark.run[0].removeprefix("run")) in range(20, 24)
    assert "older runs" in mark.text
    other = replace(job, default_batch_size=16)
    found = known(*log, job=job)
    assert found.saving.base.old_since is None
    before = [replace(t, planned=replace(t.planned, batch_size=16)) for t in log[:3]]
    found = known(*before, *log[3:], job=other)
    after = 30 - (found.saving.base.old_since or 0) + 1
    assert after in range(7, 12)
    assert saved_text.outdated(found.saving) == after
    state = headline.odd_state(found.saving, found.next_run, found.source)
    assert state.startswith(
        f"The data changed {after} runs ago; the default, 16, has not run since. "
    )
    card = next(
        a for a in JobLog(log, found, Factors(), {}, more=False).headline if "against" in a.about
    )
    assert card.about == "against always 16 at full power", "that it is old is said above it, once"
    assert f"in none of the newest {after}" in saved_text.intervals(found.saving)


def test_a_default_that_has_not_run_for_a_window_is_old() -> None:
    job = replace(JOB, policy="knowledge_gradient", window=6)
    log = [replace(run(n, 32 if n < 4 else 64, 4.0), spec=job.to_dict()) for n in range(1, 10)]
    assert known(*log[:8], job=job).saving.base.old_since is None, (
        "one of the last six converged ones"
    )
    found = known(*log, job=job)
    assert (found.saving.base.old_since, saved_text.outdated(found.saving)) == (4, 6)
    state = headline.odd_state(found.saving, found.next_run, found.source)
    assert state.startswith("The default, 32, ran in none of the newest 6 runs. ")


def test_lines_of_the_default_and_of_the_best_fixed() -> None:
    log = (run(1, 32, 4.0), run(2, 64, 2.0), run(3, 64, 2.0, energy_source="rapl"))
    there = known(*log[:2])
    default, best = dag_view.lines(there, costs.rows_of(log[:2], JOB))
    assert (default.name, best.name) == ("always 32 at full power", "always 64")
    measured, estimated = default.values.values()
    assert [measured.value, measured.low, measured.high] == pytest.approx([4000] * 3)
    assert (estimated.low or 0) < (estimated.value or 0) < (estimated.high or 0)
    assert list(best.values.values())[1].value == pytest.approx(2000), "its own run"


@pytest.mark.parametrize(
    ("limit_w", "full_power_w", "drawn"),
    [(250.0, 250.0, 1), (200.0, 250.0, 2), (200.0, None, 2), (None, 250.0, 1)],
)
def test_the_default_at_full_power_is_drawn_once(
    limit_w: float | None, full_power_w: float | None, drawn: int
) -> None:
    log = (run(1, 32, 4.0), run(2, 64, 2.0))
    there = known(*log)
    assert there.saving.best is not None
    best = replace(there.saving.best, batch_size=32, limit_w=limit_w)
    saving = replace(there.saving, best=best, full_power_w=full_power_w)
    curves = dag_view.lines(replace(there, saving=saving), costs.rows_of(log, JOB))
    assert len(curves) == drawn


def test_a_cached_belief_is_that_of_the_whole_log() -> None:
    cache = BeliefCache(most=1)
    job = replace(JOB, policy="knowledge_gradient")
    log = [run(n, (32, 64)[n % 2], 4.0) for n in range(1, 9)]
    # reported late: learned from the start
    changed = [*log[:2], replace(log[2], told_seq=99), *log[3:]]
    for trials in (log[:3], log[:3], log, changed, log[2:]):
        whole = as_dataset(trials, job)
        assert cache.with_belief("a", whole).folded == whole.belief()
    assert (
        cache.with_belief("b", as_dataset(log[:1], job)).folded == as_dataset(log[:1], job).belief()
    )
    again = cache.with_belief("a", as_dataset(log, job))
    assert again.folded == as_dataset(log, job).belief(), "dropped for b, learned again"


def test_points_stand_in_the_order_of_their_slices() -> None:
    """A backfill trains an older slice later, and a run by hand names no time."""
    slices = ["2026-01-03T00:00:00+00:00", "2026-01-01T00:00:00+00:00", "2026-01-02", "by hand"]
    began_s = datetime(2026, 1, 4, tzinfo=UTC).timestamp()
    trials = [
        run(n, 32, 4.0, data_slice=name, opened_at=began_s + n) for n, name in enumerate(slices, 1)
    ]
    shown = dag_charts.charted(costs.rows_of(trials, JOB))
    assert [row.run_id for row in shown] == ["run2", "run3", "run1", "run4"]


def test_no_chart_draws_a_tick_over_another() -> None:
    several = chart_parts.base(xAxis={"type": "value"}, yAxis=[{"axisLabel": {"show": False}}, {}])
    assert several["xAxis"]["axisLabel"] == {"hideOverlap": True}
    assert several["yAxis"][0]["axisLabel"] == {"hideOverlap": True, "show": False}
    assert several["yAxis"][1]["axisLabel"] == {"hideOverlap": True}
