"""The log of a training speaks of attempts by their numbers on the pages (tests/words.py)."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_zeus.model.run_numbers import TryNumbers
from tests.unit.training.conftest import Kit, explore, incumbent, loop
from tests.words import found


def test_a_run_with_two_attempts(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    attempts = explore(1024, bound_epochs=1.0), incumbent(256)
    kit.run(*attempts, numbers=TryNumbers(run=12, earlier=1)).train(loop)
    said = caplog.text
    assert "Zeus attempt 12.2: batch size 1024" in said
    assert "Zeus attempt 12.2 (batch size 1024) is given up: " in said
    assert "Zeus attempt 12.3: batch size 256" in said
    assert found(said) == []
