"""The order in which slices are fed, against an Airflow that is only a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo import feed as feed_module
from demo.feed import Fed, Feed
from demo.settings import CONSUMER, PRODUCER, DemoError

WEEKS = ["2013-W13", "2013-W14", "2013-W15"]


class FakeApi:
    """Each look at a run moves it one state on; the training DAG has one active run."""

    def __init__(
        self, weeks: list[str], trainings: dict[str, str] | None = None, fails: str = ""
    ) -> None:
        self.left = list(weeks)
        self.runs: dict[str, str] = dict(trainings or {})
        self.emissions: dict[str, str | None] = {}
        self.fails = fails
        self.calls = []
        self.most_waiting = 0

    def post(self, path: str, body: Any) -> Any:
        assert (path, body) == (f"dags/{PRODUCER}/dagRuns", {"logical_date": None})
        run_id = f"emit+{len(self.emissions)}"
        key = self.left.pop(0) if self.left else None
        self.emissions[run_id] = key
        if key:
            self.runs[key] = "queued"
        self.calls.append(("emit", key))
        return {"dag_run_id": run_id}

    def get(self, path: str, **query: Any) -> Any:
        if path == f"dags/{CONSUMER}/dagRuns":
            self._move()
            return {"dag_runs": [self._run(key) for key in self.runs]}
        run_id = path.split("/")[3].replace("%2B", "+")
        key = self.emissions[run_id]
        if path.endswith("return_value"):
            return {"value": key}
        if path.endswith("emit_next"):
            return {"state": "success" if key else "skipped"}
        return {"state": "success"}

    def _run(self, key: str) -> dict[str, str]:
        return {"partition_key": key, "dag_run_id": f"run of {key}", "state": self.runs[key]}

    def _move(self) -> None:
        self.most_waiting = max(self.most_waiting, sum(s == "queued" for s in self.runs.values()))
        for key, state in self.runs.items():
            if state == "running":
                self.runs[key] = "failed" if key == self.fails else "success"
                return
            if state == "queued":
                self.runs[key] = "running"
                self.calls.append(("train", key))
                return


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "POLL_S", 0.0)


def fed(api: FakeApi, count: int) -> list[tuple[str, bool]]:
    return [(f.slice_key, f.ok) for f in Feed(api, lambda: None).run(count)]  # type: ignore[arg-type]


def test_slices_are_trained_in_order_with_at_most_one_ahead() -> None:
    api = FakeApi(WEEKS)
    assert fed(api, 3) == [(key, True) for key in WEEKS]
    assert [key for what, key in api.calls if what == "train"] == WEEKS
    assert api.most_waiting == 1
    assert api.calls.index(("emit", WEEKS[1])) > api.calls.index(("train", WEEKS[0])), (
        "not before the first one runs"
    )


def test_not_one_more_is_emitted_than_asked_for() -> None:
    api = FakeApi(WEEKS)
    assert fed(api, 2) == [(key, True) for key in WEEKS[:2]]
    assert api.left == WEEKS[2:]


def test_it_ends_when_no_slice_is_left() -> None:
    assert fed(FakeApi(WEEKS[:1]), 3) == [(WEEKS[0], True)]


def test_what_an_earlier_demo_left_comes_first() -> None:
    api = FakeApi(WEEKS[2:], {WEEKS[0]: "success", WEEKS[1]: "queued"})
    assert fed(api, 2) == [(WEEKS[1], True), (WEEKS[2], True)]


def test_a_failed_training_is_reported_as_such() -> None:
    assert fed(FakeApi(WEEKS, fails=WEEKS[1]), 2) == [(WEEKS[0], True), (WEEKS[1], False)]


def test_waiting_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "TRAIN_TIMEOUT_S", 0.02)
    monkeypatch.setattr(FakeApi, "_move", lambda self: None)
    with pytest.raises(DemoError, match="start of 2013-W13: "):
        fed(FakeApi(WEEKS), 1)


def test_a_dead_server_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeApi, "_move", lambda self: None)

    def dead() -> None:
        raise DemoError("scheduler ended")

    with pytest.raises(DemoError, match="scheduler ended"):
        list(Feed(FakeApi(WEEKS), dead).run(1))  # type: ignore[arg-type]


def test_the_log_of_the_last_try_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "HOME", tmp_path)
    folder = tmp_path / "logs" / f"dag_id={CONSUMER}" / "run_id=r" / "task_id=train"
    assert Fed("k", "r", False, 1.0).log() == str(folder)
    folder.mkdir(parents=True)
    for number in (1, 2):
        (folder / f"attempt={number}.log").touch()
    assert Fed("k", "r", False, 1.0).log().endswith("attempt=2.log")
