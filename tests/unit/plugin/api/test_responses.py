"""Answers of the data routes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from airflow_provider_zeus.plugin.api import responses


def test_a_file_without_a_chunk_is_sent_empty() -> None:
    """Without its end the browser would wait for ever."""
    request: Any = SimpleNamespace(headers={})
    user: Any = SimpleNamespace(get_id=lambda: "ann")

    async def sent() -> list[bytes]:
        response: Any = await asyncio.wait_for(
            responses.file(request, user, lambda: responses.File("a.csv", "text/csv", iter(()))), 20
        )
        response._leave()
        return [chunk async for chunk in response.body_iterator]

    assert asyncio.run(sent()) == [b""]
