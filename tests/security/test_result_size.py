"""A training elsewhere tells too much: what is kept of it has a bound, in memory, in XComs,
on pages and in the log.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, PowerPoint, ProfileSample, State
from airflow_provider_zeus.operators.collect import (
    newest_start,
    report_all,
    starts_in_folder,
    starts_in_xcom,
)
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.recurrence import plan_of
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.operators.result_writer import StoreThread
from airflow_provider_zeus.plugin.views.overview_state import state_of
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from airflow_provider_zeus.training.protocol.environment import try_of
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.unit.store.store_kit import DictPort, request, seen

ROOT = Path(__file__).parents[2]
LONG = 30_000_000  # characters
MOST = 1000  # profile samples, and characters of a text
CONFIG = ZeusConfig(
    state_dir=Path("unused"), heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True
)


def sample(number: int) -> ProfileSample:
    return ProfileSample(
        batch_size=32, limit_w=100.0 + number / 1000, samples=1, energy_j=1.0, time_s=1.0
    )


def end(**fields: Any) -> dict[str, Any]:
    """The line of an end, in JSON."""
    line = ResultLine(
        kind="end", start_id="a", attempt=1, batch_size=32, state=State.FAILED, observation=seen(32)
    )
    return {**json.loads(line.to_json()), **fields}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    yield store
    store.close()


def told(store: Store, lines: list[Any], tmp_path: Path) -> dict[str, Any]:
    """XCom ``zeus_cost`` after the lines of an XCom were told as the first recurrence's."""
    asked = store.ask(request(1))
    reporter = ResultReporter(store, DictPort(), asked.trial, lease_s=90.0, state_dir=tmp_path)
    starts = starts_in_xcom({"zeus": {"lines": lines}}, "zeus")
    report_all(starts, reporter, plan_of(asked, CONFIG), starts_seen=newest_start(starts))
    return reporter.cost_xcom()


def rows_of_profiles(tmp_path: Path) -> int:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/zeus.db")
    with engine.connect() as connection:
        count = connection.execute(
            sa.select(sa.func.count()).select_from(schema.profile)
        ).scalar_one()
    engine.dispose()
    return int(count)


def test_a_long_reason_is_cut_in_the_log_in_the_xcom_and_on_the_overview(
    store: SqlStore, tmp_path: Path
) -> None:
    long = "x" * 200_000  # a line of more than 1 MiB is none
    observation = {
        "reasons": {"rest_j": long, "odd": long},
        "device_model": "V100",
        "energy_source": long,
    }
    cost = told(store, [end(reason=long, observation=observation)], tmp_path)
    (trial,) = store.trials("d.train")
    assert len(trial.reason or "") == MOST
    assert len(json.dumps(cost)) < 6 * MOST
    assert trial.observation.reasons.keys() == {"rest_j"}
    assert len(repr(trial)) < 20 * MOST
    assert len(state_of([trial], trial.opened_at).why) < 400


def test_a_result_of_many_beats_is_folded_in_a_moment(tmp_path: Path) -> None:
    news = [vars_of(replace(sample(i), limit_w=i + 1.0)) for i in range(MOST)]
    beat = {"v": 1, "kind": "beat", "start_id": "a", "attempt": 1}
    lines = [{**beat, "profile": news}, *[beat] * 30_000]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = "import sys\nfrom pathlib import Path\n"
    code += "from airflow_provider_zeus.operators.collect import starts_in_folder\n"
    code += "((line,),) = starts_in_folder(Path(sys.argv[1]))\nprint(len(line.profile))"
    run = [
        sys.executable,
        "-c",
        f"import resource\nresource.setrlimit(resource.RLIMIT_CPU, (12, 12))\n{code}",
    ]
    done = subprocess.run(
        [*run, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.strip() == str(MOST), done.stderr


def test_heartbeats_of_many_starts_that_take_turns_wait_as_few() -> None:
    """As long as the store does not answer: a Slurm job may write thousands a second."""
    release = threading.Event()
    taken = list[ResultLine]()

    def take(line: ResultLine) -> None:
        release.wait(60)
        taken.append(line)

    thread = StoreThread(take)
    starts = 10
    for number in range(2000):
        seen_now = Observation(samples=number, energy_j=float(number), time_s=float(number))
        thread.put(
            ResultLine(
                kind="beat", start_id=f"start-{number % starts}", attempt=1, observation=seen_now
            )
        )
    last = thread.put(
        ResultLine(
            kind="end", start_id="start-0", attempt=1, observation=seen(), state=State.FAILED
        )
    )
    release.set()
    assert last.done.wait(60)
    assert len(taken) <= starts + 1  # one was being taken
    newest = {
        line.start_id: line.observation.samples
        for line in taken
        if line.observation and line.kind == "beat"
    }
    assert [newest[f"start-{n}"] for n in range(1, starts)] == list(range(2000 - starts + 1, 2000))


def test_a_result_that_grows_while_it_is_read_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text((text := json.dumps({"v": 1, "kind": "start", "start_id": "a"})) + "\n")
    read = ResultLine.from_json

    def grows(of: str) -> ResultLine:
        with path.open("a") as file:
            file.write(text + "\n" + "x" * 2**16 + "\n")
        return read(of)

    monkeypatch.setattr(ResultLine, "from_json", grows)
    assert [len(start) for start in starts_in_folder(tmp_path)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sql", "variable"])
def test_a_reason_of_30_mb_and_100_000_samples_from_anywhere_are_cut_by_the_store(
    kind: str, store: SqlStore, tmp_path: Path
) -> None:
    """Straight to the store, as a kept cost comes, past every reader."""
    log: Store = store if kind == "sql" else VariableStore(DictPort(), overlap_possible=False)
    where = {"device_model": "V100", "device_count": 1, "energy_source": "simulated"}
    for number in (1, 2):
        key = log.ask(request(number)).trial.key
        samples = [sample(number * 100_000 + i) for i in range(100_000)]
        points = [
            PowerPoint(t_s=float(i), power_w=1.0, limit_w=1.0, phase="y" * 1000)
            for i in range(5000)
        ]
        report = Report(
            observation=Observation(energy_j=1.0, **where), profile=samples, points=points
        )  # type: ignore[arg-type]
        log.heartbeat(key, report)
        log.tell(
            key, State.FAILED, replace(report, observation=seen(32, **where)), reason="x" * LONG
        )
        assert len(log.points(key)) <= 500
        assert max(len(point.phase) for point in log.points(key)) <= 50
    assert all(len(trial.reason or "") == MOST for trial in log.trials("d.train"))
    assert len(log.profile("d.train", ("V100", 1, "simulated"), "1")) <= MOST
    assert rows_of_profiles(tmp_path) <= MOST


def test_profiles_of_many_devices_and_starts_are_few_rows(store: SqlStore, tmp_path: Path) -> None:
    lines = []
    for number in range(20):
        observation = {
            **seen(32).to_dict(),
            "device_model": f"odd-{number}",
            "start_id": f"s{number}",
        }
        profile = [json.loads(json.dumps(vars_of(sample(number * 1000 + i)))) for i in range(900)]
        lines.append(end(start_id=f"s{number}", observation=observation, profile=profile))
    told(store, lines, tmp_path)
    assert len(store.recurrence("d", "run1")) == 20
    assert 0 < rows_of_profiles(tmp_path) <= MOST


@pytest.mark.slow
def test_what_many_starts_say_is_little_in_the_xcom_and_in_the_log(
    store: SqlStore, tmp_path: Path
) -> None:
    names = Observation.__slots__
    long = "\x01" * MOST
    observation = {
        "reasons": dict.fromkeys(names, long),
        "gpu_uuid": long * 10,
        "gpu_energy_j": [1.25] * 1000,
    }
    notes = {f"{number}{long}": 1.0 for number in range(100)}
    points = [{"t_s": i, "power_w": 1.0, "limit_w": i % 2, "phase": "train"} for i in range(500)]
    line = end(observation=observation, reason=long, notes=notes, points=points)
    cost = told(store, [{**line, "start_id": f"s{number}"} for number in range(60)], tmp_path)
    assert len(cost["attempts"]) == 60, "the sums of each count"
    assert len(json.dumps(cost)) < 3 * 2**20
    assert sum(path.stat().st_size for path in tmp_path.glob("zeus.db*")) < 20 * 2**20


def vars_of(of: ProfileSample) -> dict[str, Any]:
    return {name: getattr(of, name) for name in ProfileSample.__slots__}


def test_a_reason_that_was_stored_before_the_bound_is_cut_when_read(
    store: SqlStore, tmp_path: Path
) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.FAILED, Report(observation=seen(32)), reason="short")
    engine = sa.create_engine(f"sqlite:///{tmp_path}/zeus.db")
    with engine.begin() as connection:
        connection.execute(sa.update(schema.trial).values(reason="x" * LONG))
    engine.dispose()
    (trial,) = store.latest(last=1)
    assert len(trial.reason or "") == MOST
    assert len(state_of([trial], trial.opened_at).why) < 400


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "changed",
    [
        {"try_number": 10**9},
        {"observation": {"energy_j": 1e999}},
        {"observation": {"energy_j": 10**400}},
        {"notes": {"loss": float("nan")}},
        {"notes": {str(i): 1.0 for i in range(50_000)}},
        {"observation": {"gpu_energy_j": [1.0] * 100_000}},
        {"start_id": "a" * 10_000},
        {"start_id": "a\r\nforged"},
        {"reason": "\x1b[2J\r" * 1000},
        {
            "points": [
                {"t_s": float(i), "power_w": 1.0, "limit_w": 1.0, "phase": "p"} for i in range(9000)
            ]
        },
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_odd_line_leaves_a_small_trial_that_can_be_told(
    store: SqlStore, tmp_path: Path, changed: dict[str, Any]
) -> None:
    cost = told(store, [end(**changed)], tmp_path)
    assert len(json.dumps(cost, allow_nan=False)) < 20 * MOST
    log = store.recurrence("d", "run1")
    assert len(log) == 1
    assert log[0].state is State.FAILED
    assert "\n" not in (log[0].observation.start_id or "")
    assert len(store.points(log[0].key)) <= 500


@pytest.mark.parametrize(
    "value",
    [
        lambda: f'{{"zeus": {{"lines": {DEEP}}}}}',
        lambda: {"zeus": {"lines": [json.loads("[" * 500 + "]" * 500)] * 10}},
        lambda: {"zeus": {"lines": [end()] * 100_000}},
        lambda: {"zeus": {"lines": [end(reason="x" * LONG)]}},
        lambda: (
            '{"zeus": {"lines": [{"v": 1, "kind": "start", "start_id": "a", "attempt": '
            + "9" * 100_000
            + "}]}}"
        ),
        lambda: "x" * (2**26 + 1),
    ],
    ids=["deep text", "deep", "lines", "long", "digits", "text"],
)
def test_an_xcom_beyond_every_bound_is_no_result(value: Callable[[], Any]) -> None:
    assert starts_in_xcom(value(), "zeus") == []


MANY = [end(start_id=f"s{number}") for number in range(900)]


def test_the_first_hundred_starts_of_an_xcom_count(caplog: pytest.LogCaptureFixture) -> None:
    starts = starts_in_xcom({"zeus": {"lines": MANY}}, "zeus")
    assert [start[0].start_id for start in starts] == [f"s{number}" for number in range(100)]
    assert [
        record.levelname for record in caplog.records if "processes started" in record.message
    ] == ["WARNING"]


@pytest.mark.slow
def test_the_first_hundred_starts_of_a_folder_and_an_xcom_count(
    store: SqlStore, tmp_path: Path
) -> None:
    folder = tmp_path / "ti-1"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in MANY[300:]))
    starts = starts_in_folder(folder)
    assert [start[0].start_id for start in starts] == [f"s{n}" for n in range(300, 400)]
    starts += starts_in_xcom({"zeus": {"lines": MANY[:300]}}, "zeus")
    asked = store.ask(request(1))
    reporter = ResultReporter(store, DictPort(), asked.trial, lease_s=90.0, state_dir=tmp_path)
    report_all(starts, reporter, plan_of(asked, CONFIG))
    assert len(store.recurrence("d", "run1")) == len(reporter.cost_xcom()["attempts"]) == 100


def test_lost_tries_are_few_lines_of_the_log(store: SqlStore, tmp_path: Path) -> None:
    start = {"v": 1, "kind": "start", "start_id": "a", "try_number": 900}
    told(store, [start, end()], tmp_path)
    assert len(store.recurrence("d", "run1")) <= 100


@pytest.mark.slow
def test_a_folder_of_many_files_and_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "ti-1"
    folder.mkdir()
    for number in range(10_001):  # one more than are read
        (folder / f"{number}.jsonl").touch()
    with caplog.at_level(logging.WARNING):
        assert starts_in_folder(folder) == []
    assert len(caplog.records) == 1, "not one for each file"
    lines = "".join(ResultLine(kind="start", start_id=f"{i}").to_json() + "\n" for i in range(5000))
    (tmp_path / "a.jsonl").write_text(lines)
    assert len(starts_in_folder(tmp_path)) == 100


READS = """
import resource, sys
from pathlib import Path
from airflow_provider_zeus.operators.collect import starts_in_folder
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
print(len(starts_in_folder(Path(sys.argv[1]))))
"""


@pytest.mark.parametrize("kind", ["sparse", "one line", "many beats"])
def test_large_result_files_take_little_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    beat = ResultLine(kind="beat", start_id="a", attempt=1, observation=seen(32)).to_json() + "\n"
    if kind == "sparse":
        path.touch()
        os.truncate(path, 20 * 2**30)
    elif kind == "one line":
        path.write_bytes(b'"' + b"x" * 2**27)
    else:
        path.write_text(beat * 20_000)
    command = [sys.executable, "-c", READS, str(tmp_path), str(2**30)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=True)
    assert int(done.stdout) == (kind == "many beats")


@pytest.mark.parametrize("text", ["²", "9" * 5000, "٣", "1e3", "-1", "0x1"])
def test_an_odd_try_number_is_none(text: str) -> None:
    assert try_of({"ZEUS_TRY": text}) is None
