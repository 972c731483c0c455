"""How each data route answers: from a thread of ours, as JSON or as a file in pieces, or with what is wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastapi import Request, Response  # noqa: TID253 - loaded by the api-server alone
from fastapi.responses import JSONResponse, StreamingResponse  # noqa: TID253
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.errors import ZeusError
from airflow_provider_zeus.plugin import auth, load
from airflow_provider_zeus.plugin.models import Problem

log = logging.getLogger(__name__)

TAKEN_S = 30.0  # a browser that takes no piece of a file for so long is cut off
WHOLE_S = 600.0  # and one that has not taken the whole file by then
HIDDEN = (
    "The trial log cannot be used just now. Who may edit Airflow's Connections is shown the reason here; the log of "
    "the api-server has it too."
)


@dataclass(frozen=True, slots=True)
class File:
    """A file to be sent: its name, its media type, and its text in pieces."""

    name: str
    media_type: str
    pieces: Iterator[str]


async def answer(user: BaseUser, make: Callable[[], BaseModel]) -> Response:
    """What ``make`` returns, as JSON; 503 with the remedy where the trial log cannot be used.

    Raises HTTPException: 429, and what ``make`` raises.
    """

    def made() -> Response:
        try:
            return Response(make().model_dump_json().encode(), media_type="application/json")
        except ZeusError as error:
            return _problem(user, error)

    return await load.work(user, made)


async def file(request: Request, user: BaseUser, make: Callable[[], File]) -> Response:
    """The file that ``make`` returns, sent as the browser takes it, compressed where it takes that.

    Raises HTTPException: 429, and what ``make`` raises.
    """
    zipped = "gzip" in request.headers.get("Accept-Encoding", "")  # here: Airflow's own compression halts all requests

    def made() -> Response:
        try:
            sent = make()
            pieces = _zipped(sent.pieces) if zipped else (piece.encode() for piece in sent.pieces)
            pieces = itertools.chain([next(pieces)], pieces)  # an error is an answer of its own until now
        except ZeusError as error:
            return _problem(user, error)
        headers = {"Content-Disposition": f'attachment; filename="{sent.name}"', "Vary": "Accept-Encoding"}
        headers |= {"Content-Encoding": "gzip"} if zipped else {}
        return _Sent(pieces, leave, headers, sent.media_type)

    leave = load.EXPORTS.enter(user)
    sending = False
    try:
        response = await load.work(user, made)
        sending = isinstance(response, _Sent)
        return response
    finally:
        if not sending:
            leave()


def _problem(user: BaseUser, error: ZeusError) -> Response:
    """503. The error may name host, path and database of the log, which are for administrators."""
    log.warning("The cost page cannot use the trial log: %s", error)
    problem = str(error) if auth.sees_addresses(user) else HIDDEN
    return JSONResponse(Problem(problem=problem).model_dump(), status_code=503)


def _zipped(pieces: Iterable[str]) -> Iterator[bytes]:
    packer = zlib.compressobj(1, wbits=31)  # 31: with the header of gzip
    for piece in pieces:
        yield packer.compress(piece.encode())
    yield packer.flush()


class _Sent(StreamingResponse):
    """A file on its way. A thread is taken only while a piece is made, not while the browser takes it."""

    def __init__(
        self, pieces: Iterator[bytes], leave: Callable[[], None], headers: dict[str, str], media_type: str
    ) -> None:
        super().__init__(load.each(pieces), headers=headers, media_type=media_type)
        self._leave = leave

    async def stream_response(self, send: Send) -> None:
        """Send the pieces. Raises TimeoutError, which cuts the connection, so that no half file looks whole."""

        async def in_time(message: Message) -> None:
            async with asyncio.timeout(TAKEN_S):
                await send(message)

        async with asyncio.timeout(WHOLE_S):
            await super().stream_response(in_time)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and count it out at the end, however it ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
