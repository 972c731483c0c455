"""One process of the kill matrix that runs a recurrence (death_training.py),
as its test sees it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fake_nvml import FakeNvml
from tests.system.death_stores import Log
from tests.system.killing import Host, is_alive, within_s

FOUND_W = 225.0  # below the highest, as an administrator may have set it
HEARTBEAT_S = 0.25
LEASE_S = 2.0
# for the process, and from there for the limit
GONE_S = 10.0
BACK_S = 2.0


class Start:
    """One process that runs the recurrence, on a host and a GPU of its own."""

    def __init__(self, host: Host, folder: Path, log: Log, variables: Path, **request: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.nvml = folder, FakeNvml(folder / "nvml.state")
        self.card = self.nvml.add(limit_w=FOUND_W, tick_s=0.002, settle_s=0.002)
        env = {
            "AIRFLOW__ZEUS__STATE_DIR": request.pop("state_dir", str(folder / "state")),
            "AIRFLOW__ZEUS__HEARTBEAT_S": str(HEARTBEAT_S),
            "AIRFLOW__ZEUS__LEASE_S": str(LEASE_S),
            "FAKE_NVML_STATE": str(folder / "nvml.state"),
        }
        defaults = {
            "stage": "",
            "early": False,
            "linger_s": 0.0,
            "ti_id": "ti-1",
            "run_id": "run-1",
        }
        fields = {
            "cell": str(folder),
            "who": "recurrence",
            "device": "nvml",
            "env": env,
            "url": log.url,
        }
        self.pid = host.fork(**fields, variables=str(variables), **{**defaults, **request})

    def there(self) -> None:
        """Wait until it is at its point."""
        until(
            lambda: (self.folder / "there").exists() or not is_alive(self.pid),
            within_s(30),
            "the point",
            self,
        )
        assert (self.folder / "there").exists(), self.said()

    def go(self) -> None:
        """Let it go on."""
        (self.folder / "go").touch()

    def ended(self, promise_s: float = GONE_S) -> float:
        """Seconds until the process is gone."""
        return until(
            lambda: not is_alive(self.pid), within_s(promise_s), "the end of the training", self
        )

    def limit_back(self) -> float:
        """Seconds until the limit found is in force, and nothing is left of us that watches it."""
        seconds = until(
            lambda: self.card.limit_w == FOUND_W, within_s(BACK_S), "the limit found", self
        )
        until(
            lambda: not list((self.folder / "state").glob("limit-*")),
            within_s(5),
            "the end of the guardian",
            self,
        )
        assert max([FOUND_W, *self.nvml.sets]) == FOUND_W, "never above the limit found"
        return seconds

    def value(self) -> str | None:
        """What the training returned to Airflow, None where it did not."""
        return path.read_text() if (path := self.folder / "value").exists() else None

    def lines(self, what: str) -> list[dict[str, Any]]:
        """Lines that were ``given`` to the reporter,
        or those of them that it has ``taken``, with an energy.
        """
        path = self.folder / "lines.jsonl"
        known = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [line for line in known if line["what"] == what and line.get("energy_j") is not None]

    def said(self) -> str:
        """The end of what it printed."""
        return (self.folder / "log").read_text()[-3000:] if (self.folder / "log").exists() else ""

    def drawn_j(self) -> float:
        """What the GPU's counter has counted in all [J]."""
        return float(self.card.energy_mj) / 1000


def until(is_so: Callable[[], Any], bound_s: float, what: str, start: Start) -> float:
    """Seconds until it is so."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_s < bound_s, (
            f"waited {bound_s} s in vain for {what}\n{start.said()}"
        )
        time.sleep(0.01)
    return time.monotonic() - begun_s
