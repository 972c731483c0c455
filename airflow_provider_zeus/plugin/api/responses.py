"""Answers of the data routes: JSON, a file in chunks, or a problem.

All are made in this package's own threads.
"""

from __future__ import annotations

import asyncio
import itertools
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, cast

from fastapi import Request, Response  # noqa: TID253 - loaded by the api-server alone
from fastapi.responses import JSONResponse, StreamingResponse  # noqa: TID253
from pydantic_core import to_json
from starlette.types import Message, Receive, Scope, Send

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.errors import ZeusError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.plugin.answer_parts import Problem
from airflow_provider_zeus.plugin.api import auth, load

P = ParamSpec("P")

log = guarded_log(__name__)

# A browser that stops reading would hold a connection for ever.
CHUNK_TIMEOUT_S = 30.0
FILE_TIMEOUT_S = 600.0  # one that takes each chunk in time could still read for hours


@dataclass(frozen=True, slots=True)
class File:
    """A file to send."""

    name: str
    media_type: str
    chunks: Iterator[str]


def answered(make: Callable[P, Any]) -> Callable[P, Coroutine[Any, Any, Response]]:
    """A route, from the function that makes its answer in a thread of the pages; its ``user`` is
    who asks.

    The answer is sent as JSON, or 503 with the remedy if ``make`` raises ZeusError. Raises
    HTTPException 429 if too many requests wait, and any other error of ``make``.
    """

    @wraps(make)
    async def route(*args: P.args, **named: P.kwargs) -> Response:
        user = cast("BaseUser", named["user"])

        def make_response() -> Response:
            try:
                return Response(
                    to_json(make(*args, **named), inf_nan_mode="null"),  # no browser parses NaN
                    media_type="application/json",
                )
            except ZeusError as error:
                return _problem(user, error)

        return await load.work(user, make_response)

    return route


async def file(request: Request, user: BaseUser, make: Callable[[], File]) -> Response:
    """The file that ``make`` returns, compressed if the browser accepts gzip.

    Raises as :func:`answered` does.
    """
    # Compressed here: Airflow's own middleware would block its event loop.
    gzip = "gzip" in request.headers.get("Accept-Encoding", "")

    def make_response() -> Response:
        try:
            sent = make()
            chunks = _compressed(sent.chunks) if gzip else (chunk.encode() for chunk in sent.chunks)
            # The first one is made here: its errors still become a 503.
            chunks = itertools.chain([next(chunks, b"")], chunks)
        except ZeusError as error:
            return _problem(user, error)
        headers = {
            "Content-Disposition": f'attachment; filename="{sent.name}"',
            "Vary": "Accept-Encoding",
        }
        headers |= {"Content-Encoding": "gzip"} if gzip else {}
        return _FileResponse(chunks, leave, headers, sent.media_type)

    # Before the work begins: a refused request must cost nothing.
    leave = load.EXPORTS.enter(user)
    sending = False
    try:
        response = await load.work(user, make_response)
        sending = isinstance(response, _FileResponse)
        return response
    finally:
        # A file that is being sent frees its place when it has ended.
        if not sending:
            leave()


def _problem(user: BaseUser, error: ZeusError) -> Response:
    """503. The error may name the log's host, path and database, which only some users may see."""
    log.warning("A request of the Zeus pages cannot be answered: %s", error)
    hidden = (
        "Zeus cannot answer now. Users who may edit Airflow's Connections see the reason here; it "
        "is also in the log of the api-server."
    )
    problem = str(error) if auth.sees_addresses(user) else hidden
    return JSONResponse(Problem(problem=problem).model_dump(), status_code=503)


def _compressed(chunks: Iterable[str]) -> Iterator[bytes]:
    gzip = zlib.compressobj(1, wbits=31)  # 31: with the header that browsers expect of gzip
    for chunk in chunks:
        yield gzip.compress(chunk.encode())
    yield gzip.flush()


class _FileResponse(StreamingResponse):
    """Sends a file. It holds a thread while a chunk is made, not while the browser takes it."""

    def __init__(
        self,
        chunks: Iterator[bytes],
        leave: Callable[[], None],
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(load.each(chunks), headers=headers, media_type=media_type)
        self._leave = leave

    async def stream_response(self, send: Send) -> None:
        """Send the chunks.

        Raises TimeoutError, which closes the connection: the browser sees an incomplete file.
        """

        async def send_in_time(message: Message) -> None:
            # A browser that stops reading would hold the file, and a place, for ever.
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                await send(message)

        async with asyncio.timeout(FILE_TIMEOUT_S):
            await super().stream_response(send_in_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; then free its place in :data:`load.EXPORTS`, also after an error."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
