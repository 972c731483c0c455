"""A handler that raises costs a log line, and no training."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, kit, loop

__all__ = ["kit"]  # a fixture

PACKAGE = Path(__file__).parents[2] / "airflow_provider_zeus"


class Raises(logging.Handler):
    """Fails outside of ``emit``, where the standard library catches nothing."""

    def handle(self, record: logging.LogRecord) -> bool:
        raise OSError(28, "the disk of the log is full")


@pytest.fixture
def raising_handler() -> Iterator[Raises]:
    handler = Raises()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_a_training_survives_a_handler_that_raises(kit: Kit, raising_handler: Raises) -> None:
    run = kit.run(explore(1024, bound_epochs=1.0), incumbent(256))
    assert run.train(returns_its_size) == 256
    with pytest.raises(OSError, match="disk of the log"):
        logging.getLogger("of.the.author").error("their own lines are as they were")


def returns_its_size(run: ZeusRun) -> int:
    loop(run)
    return run.batch_size


def test_the_lines_arrive_as_before(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        guarded_log("airflow_provider_zeus.training.run").info("one of %s", "ours")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "airflow_provider_zeus.training.run",
        "INFO",
        "one of ours",
    )


def test_every_module_of_ours_logs_by_it() -> None:
    """The sidecar runs without the package."""
    unguarded = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "= logging.getLogger(" in path.read_text()
    }
    assert unguarded <= {"log_guard.py", "power/limits/sidecar_server.py"}


def test_without_any_handler_a_warning_is_printed_as_python_does() -> None:
    code = (
        "from airflow_provider_zeus.log_guard import guarded_log; guarded_log('x').warning('seen')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "seen\n")
