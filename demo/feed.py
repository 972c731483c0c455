"""Feeds weekly slices to the example DAGs over the REST API, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from demo.api import Api, part
from demo.settings import CONSUMER, EMIT, HOME, PRODUCER, TRAIN, DemoError

POLL_S = 0.5
EMIT_TIMEOUT_S = 300.0
TRAIN_TIMEOUT_S = 600.0
OVER = ("success", "failed")


@dataclass(frozen=True, slots=True)
class Fed:
    """Outcome of the training on one slice."""

    slice_key: str
    run_id: str
    ok: bool
    wall_s: float  # from its turn to its end

    def log(self) -> str:
        """Return the path of the task's log."""
        folder = HOME / "logs" / f"dag_id={CONSUMER}" / f"run_id={self.run_id}" / f"task_id={TRAIN}"
        return str(max(folder.glob("attempt=*.log"), default=folder))


class Feed:
    """Emits slices and waits for their trainings.

    ``check`` is called while waiting; it raises when a server ended.
    """

    def __init__(self, api: Api, check: Callable[[], None]) -> None:
        self._api = api
        self._check = check

    def trainings(self) -> dict[str, tuple[str, str]]:
        """Return (run id, state) of each slice's training, in the order of the runs."""
        runs = self._api.get(f"dags/{CONSUMER}/dagRuns", order_by="run_after", limit=100)[
            "dag_runs"
        ]
        return {
            run["partition_key"]: (run["dag_run_id"], run["state"])
            for run in runs
            if run["partition_key"]
        }

    def run(self, count: int) -> Iterator[Fed]:
        """Train on up to ``count`` slices, unfinished ones of an earlier demo first;
        end early when none is left.

        The next slice is emitted while the current one trains. The order is kept: at most one slice
        is ahead, and the training DAG allows one active run.
        """
        waiting = [key for key, (_, state) in self.trainings().items() if state not in OVER]
        ahead: str | None = None
        for number in range(count):
            since = time.monotonic()
            if not waiting:
                key = self._slice_of(ahead or self._trigger())
                ahead = None
                if key is None:
                    return
                waiting.append(key)
            key = waiting.pop(0)
            self._wait(
                partial(self._is, key, ("running", *OVER)), f"start of {key}", TRAIN_TIMEOUT_S
            )
            if not waiting and number + 1 < count:
                ahead = self._trigger()
            self._wait(partial(self._is, key, OVER), f"training on {key}", TRAIN_TIMEOUT_S)
            run_id, state = self.trainings()[key]
            yield Fed(key, run_id, state == "success", time.monotonic() - since)

    def _is(self, key: str, states: Collection[str]) -> bool:
        training = self.trainings().get(key)
        return training is not None and training[1] in states

    def _trigger(self) -> str:
        return str(self._api.post(f"dags/{PRODUCER}/dagRuns", {"logical_date": None})["dag_run_id"])

    def _slice_of(self, run_id: str) -> str | None:
        """Return the slice that a run of the producer emitted, None when none was left.

        Raises DemoError: it failed.
        """
        path = f"dags/{PRODUCER}/dagRuns/{part(run_id)}"
        self._wait(
            lambda: self._api.get(path)["state"] in OVER, "emission of a slice", EMIT_TIMEOUT_S
        )
        if self._api.get(path)["state"] == "failed":
            raise DemoError(
                f"{PRODUCER} failed; logs:"
                f" {HOME / 'logs' / f'dag_id={PRODUCER}' / f'run_id={run_id}'}"
            )
        if self._api.get(f"{path}/taskInstances/{EMIT}")["state"] == "skipped":
            return None
        return str(self._api.get(f"{path}/taskInstances/{EMIT}/xcomEntries/return_value")["value"])

    def _wait(self, over: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not over():
            self._check()
            if time.monotonic() > deadline:
                raise DemoError(f"{what}: nothing after {timeout_s:.0f} s; logs: {HOME / 'logs'}")
            time.sleep(POLL_S)
