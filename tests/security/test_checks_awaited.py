"""A permission check that Airflow comes to write in another way lets nobody in."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_check_that_has_to_be_awaited_is_refused(airflow_app: Any) -> None:
    """Called in a thread it would return a coroutine, and nothing would have been checked."""
    from airflow_provider_zeus.plugin.api import auth

    async def check(**_: Any) -> None:
        raise AssertionError("nobody may pass")

    with pytest.raises(TypeError, match="upgrade the provider"):
        auth._in_our_threads(check)
