"""Plan and result: JSON there and back, and files that a death cut off."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import signal
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import (
    Observation,
    Phase,
    PlannedAttempt,
    PowerPoint,
    Previous,
    ProfileSample,
    State,
)
from airflow_provider_zeus.power.device import default_state_dir
from airflow_provider_zeus.signals.forecast import Followed
from airflow_provider_zeus.training.protocol.events import ResultLine, ResultWriter, read_lines
from airflow_provider_zeus.training.protocol.plan import Ended, Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.strategies import REPRODUCIBLE
from tests.unit.training.conftest import Kit, explore, incumbent, loop

figures = st.floats(0, 1e12, allow_subnormal=False)
counts = st.integers(0, 10**9)
texts = st.text(max_size=20)
ids = texts.filter(lambda text: "\0" not in text)  # no database takes it


def lines_of(path: Path) -> list[ResultLine]:
    with path.open("rb") as file:
        return list(read_lines(file))


def maybe(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


profiles = st.builds(
    ProfileSample,
    batch_size=counts,
    limit_w=figures,
    samples=counts,
    energy_j=figures,
    time_s=figures,
    steps=counts,
)
points = st.builds(
    PowerPoint, t_s=figures, power_w=maybe(figures), limit_w=maybe(figures), phase=texts
)
observations = st.builds(
    Observation,
    epochs=maybe(figures),
    samples=maybe(counts),
    energy_j=maybe(figures),
    time_s=maybe(figures),
    excess_j=maybe(st.floats(-1e9, 1e9)),
    metric=maybe(st.floats(-1e9, 1e9)),
    device_model=maybe(texts),
    out_of_memory=st.booleans(),
    reasons=st.dictionaries(texts, texts, max_size=3),
)
lines = st.builds(
    ResultLine,
    kind=st.sampled_from(["start", "attempt", "beat", "end", "final"]),
    start_id=ids.filter(str.isprintable),
    attempt=maybe(counts),
    batch_size=maybe(counts),
    state=maybe(st.sampled_from([s for s in State if s is not State.RUNNING])),
    reason=maybe(texts),
    observation=maybe(observations),
    profile=st.lists(profiles, max_size=3).map(tuple),
    points=st.lists(points, max_size=3).map(tuple),
)
attempts = st.builds(
    PlannedAttempt,
    batch_size=st.integers(1, 10**9),
    phase=st.sampled_from(Phase),
    why=texts,
    bound_epochs=maybe(figures),
    bound_cost=maybe(figures),
    max_epoch_cost=maybe(figures),
    round=maybe(counts),
)
plans = st.builds(
    Plan,
    job_id=ids,
    ti_id=ids,
    number=counts,
    first_attempt=counts,
    spec=st.dictionaries(texts, maybe(texts), max_size=3),
    attempts=st.lists(attempts, min_size=1, max_size=3).map(tuple),
    seed=st.integers(0, 2**63),
    profile=st.lists(profiles, max_size=3).map(tuple),
    limits_found_w=st.dictionaries(texts, st.tuples(figures, figures), max_size=2),
    heartbeat_s=st.floats(1e-3, 1e6),
    state_dir=maybe(texts),
)


@REPRODUCIBLE
@given(lines)
def test_a_line_comes_back_as_it_was_zeros_and_gaps_apart(line: ResultLine) -> None:
    text = line.to_json()
    assert ResultLine.from_json(text) == line
    assert "\n" not in text
    assert text.isascii()
    assert json.loads(text)["v"] == 1


@REPRODUCIBLE
@given(plans)
def test_a_plan_comes_back_as_it_was(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_json_is_neither_written_nor_read(kit: Kit, value: float) -> None:
    line = ResultLine(kind="beat", start_id="s", observation=Observation(metric=value))
    with pytest.raises(ValueError, match="JSON compliant"):
        line.to_json()
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(kit.plan(), heartbeat_s=value).to_json()
    with pytest.raises(ValueError, match="not a result line"):
        ResultLine.from_json(
            '{"v": 1, "kind": "beat", "start_id": "s", "observation": {"metric": NaN}}'
        )


GOOD = json.loads(ResultLine(kind="beat", start_id="s").to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"v": 1',
        json.dumps({**GOOD, "v": 2}),
        json.dumps({k: v for k, v in GOOD.items() if k != "v"}),
        json.dumps({**GOOD, "state": "happy"}),
        json.dumps({**GOOD, "profile": [{"limit": 3}]}),
        json.dumps({**GOOD, "profile": 3}),
        json.dumps({**GOOD, "points": [[1, 2]]}),
        json.dumps({**GOOD, "observation": 7}),
        json.dumps({**GOOD, "surprise": 1}),
        json.dumps({"v": 1, "kind": "beat"}),
        json.dumps({**GOOD, "kind": "finished"}),
        json.dumps({**GOOD, "kind": "end", "state": "running"}),
        json.dumps({**GOOD, "attempt": "1"}),
        json.dumps({**GOOD, "observation": {"energy_j": "12 kJ"}}),
        json.dumps({**GOOD, "observation": {"epochs": True}}),
        json.dumps(
            {**GOOD, "points": [{"t_s": 1, "power_w": "x", "limit_w": None, "phase": "train"}]}
        ),
    ],
)
def test_a_broken_line_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ResultLine.from_json(text)


def test_fields_of_a_newer_observation_are_left_out() -> None:
    text = json.dumps({**GOOD, "observation": {"epochs": 1.0, "of_the_future": 3}})
    assert ResultLine.from_json(text).observation == Observation(epochs=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"attempts": []},
        {"attempts": [{"batch_size": 1}]},
        {"profile": [3]},
        {"surprise": 1},
        {"v": None},
    ],
)
def test_a_plan_of_another_version_is_refused_with_the_remedy(
    kit: Kit, change: dict[str, object]
) -> None:
    text = json.dumps({**json.loads(kit.plan().to_json()), **change})
    with pytest.raises(JobSpecError, match=r"version 1 .*package version"):
        Plan.from_json(text)


@pytest.mark.parametrize("change", [{"heartbeat_s": 0.0}, {"heartbeat_s": -1.0}, {"size": 0}])
def test_a_plan_of_which_nothing_can_be_trained_is_refused(
    kit: Kit, change: dict[str, float]
) -> None:
    fields = json.loads(kit.plan(explore(32), incumbent(64)).to_json())
    fields["attempts"][0]["batch_size"] = change.pop("size", 32)
    with pytest.raises(JobSpecError, match="a heartbeat or a batch size below 1"):
        Plan.from_json(json.dumps(fields | change))


def test_a_plan_that_holds_a_template_is_refused(kit: Kit) -> None:
    plan = kit.plan()
    unrendered = replace(plan, spec={**plan.spec, "max_epochs": "{{ x }}"})
    with pytest.raises(JobSpecError, match="a template that was not rendered"):
        _ = Plan.from_json(unrendered.to_json()).job


# ---------------------------------------------------------------------- files


def line(number: int) -> ResultLine:
    return ResultLine(
        kind="beat", start_id="s", attempt=number, reason="\u2028 ends a line for some readers"
    )


def test_a_result_holds_every_line_and_a_last_one_that_was_cut_off_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "result"
    writer = ResultWriter(path)
    for number in range(3):
        writer(line(number))
        assert [x.attempt for x in lines_of(path)] == list(range(number + 1))
    writer.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:-cut])
        assert [x.attempt for x in lines_of(path)] == list(range(whole[:-cut].count(b"\n")))


def test_a_line_that_is_no_result_is_named_by_its_number_and_none_of_its_text(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.jsonl"
    ResultWriter(path)(ResultLine(kind="final", start_id="a"))
    with path.open("a") as file:
        file.write("s3cret\n")
    with pytest.raises(ValueError, match="line 2 is no result line of version 1") as error:
        lines_of(path)
    assert "s3cret" not in str(error.value)


def test_a_second_start_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "result"
    ResultWriter(path)(line(1))
    with path.open("ab") as file:
        file.write(line(2).to_json().encode()[:30])
    ResultWriter(path)(line(3))
    assert [x.attempt for x in lines_of(path)] == [1, 3]


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "result"
    writer = ResultWriter(path)
    writer(line(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        # as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            writer(line(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    writer(line(2))
    assert [x.attempt for x in lines_of(path)] == [1, 2]


def test_a_run_writes_to_a_file_what_a_reader_sees(kit: Kit) -> None:
    path = kit.tmp / "result"
    kit.run(explore(1024, bound_epochs=1.0), incumbent(256), sink=ResultWriter(path)).train(loop)
    kinds = [(x.kind, x.attempt) for x in lines_of(path)]
    assert kinds == [
        ("start", None),
        ("attempt", 1),
        ("end", 1),
        ("attempt", 2),
        ("end", 2),
        ("final", 2),
    ]


# ---------------------------------------------------------------------- where a plan comes from


def test_from_env_takes_a_path_or_the_plan_itself(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kit.tmp / "plan.json"
    result = kit.tmp / "result"
    path.write_text(kit.plan(incumbent(1024)).to_json())
    monkeypatch.setenv("ZEUS_RESULT", str(result))
    for given_plan in (
        str(path),
        kit.plan(incumbent(1024)).to_json(),
        "\n " + kit.plan(incumbent(1024)).to_json(),
    ):
        monkeypatch.setenv("ZEUS_PLAN", given_plan)
        assert ZeusRun.from_env().train(loop) == 1024
    assert [x.kind for x in lines_of(result)] == 3 * ["start", "attempt", "end", "final"]
    monkeypatch.delenv("ZEUS_RESULT")
    assert ZeusRun.from_plan(path).train(loop) == 1024


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "ZEUS_PLAN = None: is not set"),
        ("", "ZEUS_PLAN = None: is not set"),
        ("/nowhere/plan.json", r"plan = '/nowhere/plan.json': cannot be read: No such file"),
        ('{"v": 99}', "not a plan of version 1"),
    ],
)
def test_from_env_without_a_plan_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv("ZEUS_PLAN", raising=False)
    if value is not None:
        monkeypatch.setenv("ZEUS_PLAN", value)
    with pytest.raises(JobSpecError, match=message):
        ZeusRun.from_env()


def test_the_state_dir_can_be_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEUS_STATE_DIR", "/mounted/zeus")
    assert default_state_dir() == "/mounted/zeus"
    monkeypatch.delenv("ZEUS_STATE_DIR")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_state_dir() == "/home/somebody/.local/state/zeus"


def test_every_field_of_a_plan_is_plain_json(kit: Kit) -> None:
    signal = Followed(signal="carbon", mean=1.0, steps=((0.0, 1.0, 2.0),))
    changes = {"signal": signal, "previous": Previous(returned='"a"', not_needed=2)}
    plan = kit.plan(explore(256, bound_epochs=1.0), stand_in=explore(256), **changes)
    assert json.loads(plan.to_json()).keys() == {"v", *asdict(plan)}
    assert Plan.from_json(plan.to_json()) == plan


def test_two_processes_write_one_file_and_each_line_is_whole(tmp_path: Path) -> None:
    """The second one opens the file, and removes a line without an end,
    while the first one is within a line.
    """
    path, other = (
        tmp_path / "result.jsonl",
        Thread(target=lambda: ResultWriter(path)(line("second"))),
    )
    first = ResultWriter(path)

    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            written = super().write(data[:20])
            if not other.ident:
                other.start()
                other.join(0.2)  # the second one waits
            return written

    def line(start_id: str) -> ResultLine:
        return ResultLine(kind="start", start_id=start_id)

    opened = first._file
    first._file = Slow(opened.fileno(), "ab+", closefd=False)
    first(line("first"))
    other.join(60)
    assert [each.start_id for each in lines_of(path)] == ["first", "second"]


SIZES = {"batch_sizes": [32, 64, 256, 1024], "default_batch_size": 256}


def sizes(plan: Plan | None) -> list[int]:
    return [] if plan is None else [attempt.batch_size for attempt in plan.attempts]


def test_what_follows_an_attempt(kit: Kit) -> None:
    plan = kit.plan(explore(64), incumbent(1024), reliefs=(incumbent(256), incumbent(32)), **SIZES)
    for end in (Ended.MISSED, Ended.FAILED, Ended.NO_MEMORY):
        after = plan.after(end)
        assert after is not None
        assert (sizes(after), after.first_attempt) == ([1024], 2)
        assert sizes(after.after(Ended.FAILED)) == [256]
        assert sizes(after.after(Ended.NO_MEMORY)) == [], "it has no stand-in"
    relieved = plan.after(Ended.MISSED).after(Ended.FAILED)  # type: ignore[union-attr]
    assert relieved.after(Ended.FAILED) is None, "one attempt more, and no other"


def test_a_stand_in_that_fails_is_relieved_too(kit: Kit) -> None:
    plan = kit.plan(incumbent(1024), stand_in=incumbent(64), reliefs=(incumbent(256),), **SIZES)
    stand_in = plan.after(Ended.NO_MEMORY)
    assert sizes(stand_in) == [64]
    assert sizes(stand_in.after(Ended.FAILED)) == [256]  # type: ignore[union-attr]
    default = kit.plan(incumbent(256), stand_in=incumbent(64), reliefs=(incumbent(32),), **SIZES)
    assert default.after(Ended.FAILED) is None, "an error at the default is its author's"


@pytest.mark.parametrize(("samples", "fits"), [(300, [256]), (100, [64]), (20, []), (None, [256])])
def test_what_fits_a_small_slice(kit: Kit, samples: int | None, fits: list[int]) -> None:
    assert sizes(kit.plan(incumbent(1024), **SIZES).after(Ended.TOO_FEW, samples=samples)) == fits


def test_a_retry_trains_the_relief_alone(kit: Kit) -> None:
    plan = kit.plan(explore(64), incumbent(1024), stand_in=None, reliefs=(incumbent(256),), **SIZES)
    retry = plan.for_retry()
    assert (sizes(retry), retry.reliefs, retry.first_attempt) == ([256], (), 3)
