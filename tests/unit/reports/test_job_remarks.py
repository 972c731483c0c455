"""What the newest trials show of their job: two jobs under one id, another target,
another device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.job import CHOICE
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    BATCH_SIZE,
    DATA_WAIT,
    LIMIT,
    OF_OUTSIDE,
    OF_TRAINER,
    TO_TRY,
    UNCAPPED,
    UNSEEN,
    Observation,
    Phase,
    State,
    Trial,
)
from airflow_provider_zeus.reports.job_remarks import RemarkKind, bypassed, remarks
from tests.golden import Table
from tests.unit.plugin.kit import JOB, trial

REMARKS = Table("remarks")
OTHER = {"batch_sizes": [8, 16], "default_batch_size": 16}


def log(*tasks: str | tuple[str, dict[str, Any]], **changes: Any) -> list[Trial]:
    """Trials of these tasks (DAG and task id, with a slash), in this order;
    each with changes of the job.
    """
    trials = []
    for n, task in enumerate(tasks, start=1):
        name, spec = task if isinstance(task, tuple) else (task, {})
        dag_id, task_id = name.split("/")
        made = trial(n, f"run{n}", dag_id=dag_id, task_id=task_id, **changes)
        trials.append(replace(made, spec=replace(JOB, **spec).to_dict()))
    return trials


def found(*tasks: str | tuple[str, dict[str, Any]]) -> list[tuple[str, int]]:
    return [(remark.kind, remark.number) for remark in remarks(log(*tasks))]


A = "d/train"
B = "e/train"
B_OTHER = ("e/train", OTHER)
A_OTHER = ("d/train", OTHER)
B_LOSS = ("e/train", {"target": "loss <= 1"})
A_LOSS = ("d/train", {"target": "loss <= 1"})


@pytest.mark.parametrize("other", [B_OTHER, B_LOSS, ("d/again", OTHER)])
def test_tasks_that_alternate_with_other_sizes_or_targets_are_two_jobs(other: Any) -> None:
    (remark,) = remarks(log(A, A, other, A))
    assert (remark.kind, remark.number, remark.is_warning) == (RemarkKind.TWO_JOBS, 4, True)
    name = other[0].replace("/", ".")
    assert all(part in remark.text for part in ("'d.train'", "d.train", name, "job_id"))
    assert found(A, A, other, A, other) == [(RemarkKind.TWO_JOBS, 5)], "each run of either says so"


def test_a_task_that_comes_later_may_be_the_same_one_renamed() -> None:
    assert found(A, A, B_OTHER) == [(RemarkKind.OTHER_TASK, 3)]
    assert found(A, A, B_OTHER, B_OTHER) == [(RemarkKind.OTHER_TASK, 3)], (
        "the run that saw it first"
    )
    assert not remarks(log(A, A, B_OTHER))[0].is_warning


def test_tasks_that_share_a_job_on_purpose_are_no_two_jobs() -> None:
    assert found(A, B, A, B) == []
    assert found(A, B, A, ("e/train", {"target": "accuracy>=0.80"})) == [], "another notation"
    assert found(A, B, A_OTHER, B_OTHER) == [], "both were changed together"
    assert (RemarkKind.TWO_JOBS, 3) not in found(A, B, A_OTHER), "while the change is on its way"


def test_a_new_version_begins_anew() -> None:
    assert found(A, B_OTHER, A, ("d/train", {"job_version": "2"})) == []
    assert found(A, ("d/train", {"job_version": "2", "target": "loss <= 1"})) == []


def test_a_mapped_task_whose_job_is_changed_is_one_job() -> None:
    old = [trial(n, "run1", map_index=n - 1) for n in (1, 2)]
    new = replace(trial(3, "run2", map_index=0), spec=replace(JOB, **OTHER).to_dict())  # type: ignore[arg-type]
    assert remarks([*old, new]) == []
    again = replace(old[1], number=4)
    assert [remark.kind for remark in remarks([*old, new, again])] == [RemarkKind.TWO_JOBS]


def test_a_new_target_is_a_note_of_the_run_that_has_it_first() -> None:
    assert found(A, A, A_LOSS) == [(RemarkKind.TARGET, 3)]
    assert found(A, A, A_LOSS, A_LOSS) == [(RemarkKind.TARGET, 3)]
    assert found(A, A, ("d/train", {"target": "accuracy >= 0.80"})) == []


def test_targets_in_the_notation_of_a_newer_version_differ_by_their_texts() -> None:
    texts = ("accuracy in 0.8..0.9", "accuracy in 0.7..0.9")
    runs = [
        replace(run, spec={**run.spec, "target": text})
        for run, text in zip(log(A, A), texts, strict=True)
    ]
    assert [(remark.kind, remark.number) for remark in remarks(runs)] == [(RemarkKind.TARGET, 2)]


def on(*models: str | None) -> list[Trial]:
    return [trial(n, f"run{n}", device_model=model) for n, model in enumerate(models, start=1)]


def test_a_new_device_is_a_note() -> None:
    (remark,) = remarks(on("V100", None, "V100", "A40"))
    assert (remark.kind, remark.number, remark.is_warning) == (RemarkKind.DEVICE, 4, False)
    REMARKS.check("another device", remark.text)
    assert [r.number for r in remarks(on("V100", None), device=("A40", 1, "simulated"))] == [2], (
        "not yet reported"
    )
    assert remarks(on("V100", None), device=("V100", 1, "simulated")) == []
    assert remarks(on("V100", None)) == []
    assert [r.kind for r in remarks(log(A, energy_source="rapl") + on("V100", "V100")[1:])] == [
        RemarkKind.DEVICE
    ]


def test_readers_of_one_dag_learn_nothing_of_another() -> None:
    for tasks in ((A, B_OTHER, A), (A, B_LOSS), (A, B_OTHER, A, B_OTHER)):
        (remark,) = remarks(log(*tasks), reader="d")
        assert "e.train" not in remark.text
        assert "8, 16" not in remark.text
        assert "loss" not in remark.text
    assert [r.kind for r in remarks(log(A, B, B_LOSS, A), reader="d")] == [RemarkKind.TWO_JOBS]


def test_readers_of_one_dag_learn_no_metric_and_no_device_of_another() -> None:
    per_cent = {"target": "accuracy >= 0.9"}
    theirs = trial(2, "run2", dag_id="e", metric=95.0, device_model="A40", epochs=1.0)
    shared = [
        *log(("d/train", per_cent), metric=0.95),
        replace(theirs, spec=replace(JOB, **per_cent).to_dict()),
    ]
    assert {r.kind for r in remarks(shared)} == {RemarkKind.UNIT, RemarkKind.DEVICE}
    assert remarks(shared, reader="d") == []
    assert {r.kind for r in remarks(shared, reader="e")} == {RemarkKind.UNIT}, "its own metric"
    assert remarks([theirs], reader="d") == []
    easy = log(("e/train", {"target": "accuracy >= 0.9"}), **AT_ONCE)
    assert remarks(easy, reader="d") == [], "that its target is easy"


def test_of_no_trial_nothing_is_said() -> None:
    assert remarks([]) == []
    assert remarks([replace(trial(1, "run1"), spec={"nobody": "knows"})]) == []


@pytest.mark.parametrize(
    ("target", "metric", "said"),
    [
        ("accuracy >= 0.9", 95.0, True),
        ("accuracy >= 90", 0.95, True),
        ("accuracy >= 0.9", 0.95, False),
        ("accuracy >= 90", 95.0, False),
        ("score >= 0.9", 250.0, False),
        ("loss <= 0.5", 1.7, False),
    ],
)
def test_a_share_against_per_cent(target: str, metric: float, said: bool) -> None:
    newest = log(("d/train", {"target": target}), metric=metric)
    found = [r for r in remarks(newest) if r.kind == RemarkKind.UNIT]
    assert bool(found) is said
    assert all(r.is_warning and f"{metric:g}" in r.text for r in found)


def test_a_target_in_the_wrong_direction() -> None:
    (remark,) = (
        r for r in remarks(log(("d/train", {"target": "loss >= 0.2"}), metric=3.3)) if r.is_warning
    )
    REMARKS.check("a target in the wrong direction", remark.text)


AT_ONCE = {"metric": 0.95, "epoch_metrics": (0.95,), "epochs": 1.0}
SHARE = ("d/train", {"target": "accuracy >= 0.9"})


def test_a_target_that_the_first_report_reaches() -> None:
    (remark,) = remarks(log(SHARE, **AT_ONCE))
    assert (remark.kind, remark.number, remark.is_warning) == (RemarkKind.EASY, 1, False)
    REMARKS.check("the first report reaches the target", remark.text)
    later = {**AT_ONCE, "epoch_metrics": (0.5, 0.95), "epochs": 2.0}
    assert remarks(log(SHARE, **later)) == []
    assert remarks(log(SHARE, metric=0.95, epochs=1.0)) == [], "of a command: the last metric"
    assert remarks(log(SHARE, **{**AT_ONCE, "epochs": None})) == [], "from a checkpoint"
    assert remarks([*log(SHARE, **AT_ONCE), *log(SHARE, SHARE, **later)[1:]]) == []


def test_a_target_that_the_first_report_of_an_earlier_model_reaches_is_not_easy() -> None:
    assert remarks(log(SHARE, **AT_ONCE, start=Start.WARM)) == []
    assert [r.kind for r in remarks(log(SHARE, **AT_ONCE, start=Start.COLD))] == [RemarkKind.EASY]


def of_rates(*runs: tuple[int, float | None]) -> list[Trial]:
    """Runs with these batch sizes and learning rates."""
    return [
        trial(n, f"run{n}", batch_size, learning_rate=rate)
        for n, (batch_size, rate) in enumerate(runs, start=1)
    ]


def test_a_learning_rate_that_did_not_follow_the_batch_size() -> None:
    (remark,) = remarks(of_rates((32, 0.1), (64, 0.1)))
    assert (remark.kind, remark.number, remark.is_warning) == (RemarkKind.RATE, 2, False)
    REMARKS.check("the learning rate did not follow the batch size", remark.text)
    for runs in (
        ((32, 0.1), (64, 0.2)),
        ((32, 0.1), (32, 0.1)),
        ((32, 0.1), (64, None)),
        ((32, None), (64, None)),
        ((32, 0.1), (64, 0.1), (64, 0.1)),
    ):
        assert remarks(of_rates(*runs)) == []


def test_a_script_that_reports_no_metric_or_is_not_seen_to_use_its_batch_size() -> None:
    *others, last = log(*[A] * 3, epochs=4.0)
    silent = replace(
        last,
        state=State.NO_METRIC,
        observation=Observation(reasons={UNSEEN: "neither has the word"}),
    )
    metric, unseen = remarks([*others, silent, replace(last, number=4, state=State.RUNNING)])
    assert (metric.kind, unseen.kind, metric.number) == (RemarkKind.NO_METRIC, RemarkKind.UNSEEN, 3)
    assert metric.is_warning
    REMARKS.check("a script reports no metric", metric.text)
    REMARKS.check("a script is not seen to use its batch size", unseen.text)
    assert remarks([*others, silent, replace(last, number=4)]) == [], "the newest that ended counts"


def test_a_run_that_no_limit_holds_back_says_so() -> None:
    *others, last = log(*[A] * 3, epochs=4.0)
    why = "the training draws 74 W, and the lowest limit is 100 W: no limit holds it back"
    (remark,) = remarks(
        [*others, replace(last, observation=replace(last.observation, reasons={UNCAPPED: why}))]
    )
    assert (remark.kind, remark.is_warning) == (RemarkKind.UNCAPPED, False)
    REMARKS.check("no limit holds the training back", remark.text)


def test_a_run_that_waited_for_batches_says_what_to_try() -> None:
    *others, last = log(*[A] * 3, epochs=4.0)
    why = {DATA_WAIT: "20 % of its time was spent waiting", TO_TRY: "num_workers=4"}
    waited = replace(last, observation=replace(last.observation, reasons=why))
    (remark,) = remarks([*others, waited])
    assert remark.kind is RemarkKind.DATA_WAIT
    REMARKS.check("it waited for batches", remark.text)


TUNED = {
    "batch_sizes": [],
    "default_batch_size": None,
    "target": None,
    "max_epochs": None,
    "mode": "optimize",
}


# situation: what the attempts at the new limit have, and what their job has
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a limit changed with the model": ({"step_kind": 8}, {}),
    "a limit changed with the device": ({"device_model": "A40"}, {}),
    "a limit changed with eta": ({}, {"eta": 0.9}),
    "a limit changed by a new measurement": ({"excess_s": 2.0}, {}),
    "a limit changed since none can save": ({"reasons": {UNCAPPED: "no limit holds it back"}}, {}),
    "a limit changed by somebody else": ({"reasons": {LIMIT: "somebody else set it"}}, {}),
    "a limit changed for no known reason": ({}, {}),
}


@pytest.mark.parametrize("situation", CHANGED)
def test_a_limit_that_a_task_tunes_and_what_changed_it(situation: str) -> None:
    changes, spec = CHANGED[situation]
    same = {"step_kind": 7, "excess_s": 0.0, "phase": Phase.MEASURED}
    limits = zip(range(1, 6), (150.0, 150.0, 250.0, 250.0, 250.0), strict=True)
    own = [
        replace(
            trial(
                n,
                f"r{n}",
                opened_at=86400.0 * n,
                power_limit_w=w,
                **{**same, **(changes if n > 2 else {})},
            ),
            spec={**JOB.to_dict(), **TUNED, **(spec if n > 2 else {})},
        )
        for n, w in limits
    ]
    remark = next(each for each in remarks(own) if each.kind is RemarkKind.LIMIT)
    REMARKS.check(situation, remark.text)
    assert (remark.number, remark.is_warning) == (3, False)
    sized = [replace(t, planned=replace(t.planned, phase=Phase.SAMPLE)) for t in own]
    assert RemarkKind.LIMIT not in {each.kind for each in remarks(sized)}, "sizes have a limit each"
    assert RemarkKind.LIMIT not in {each.kind for each in remarks(own[2:])}


def test_a_task_without_sizes_beside_one_with_is_named_so_and_climbing_is_no_remark() -> None:
    as_it_is = ("d/other", dict.fromkeys(CHOICE))
    (remark,) = remarks(log(A, as_it_is, A))
    REMARKS.check("a task without sizes beside one with", remark.text)
    assert found(("d/train", dict.fromkeys(CHOICE)), A) == []


BYPASSED = {
    "a loop did not use its size": "",
    "a trainer did not use its size": OF_TRAINER,
    "a process outside did not use its size": OF_OUTSIDE,
}


@pytest.mark.parametrize("situation", BYPASSED)
def test_runs_that_did_not_use_their_size_name_the_newest_reason_and_the_remedy(
    situation: str,
) -> None:
    trials = [
        trial(n, f"r{n}", reasons={BATCH_SIZE: f"reason {n}{BYPASSED[situation]}"}) for n in (1, 2)
    ]
    REMARKS.check(situation, bypassed([*trials, trial(3, "r3")]))
    assert bypassed(trials[:1]).startswith("1 run teaches nothing and counts as no saving: ")
    assert bypassed([trial(3, "r3")]) == ""
