"""The FastAPI app below ``/zeus``: the page, its files and the data routes.

Only the api-server loads it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response  # noqa: TID253 - see above
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_zeus.plugin.api import (
    action_routes,
    dag_routes,
    load,
    overview_routes,
    run_routes,
)
from airflow_provider_zeus.plugin.api.auth import EVERYWHERE

STATIC = Path(__file__).parents[1] / "static"  # nothing private: any user may ask for it
TYPES = {".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'self'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed."""

    plain: bytes
    gzip: bytes
    media_type: str


@cache
def names() -> tuple[str, ...]:
    """Names of the page's scripts and style sheets, sorted."""
    files = [path for path in STATIC.iterdir() if path.suffix in TYPES]
    return tuple(sorted(path.name for path in files if path.is_file()))


@cache
def asset(name: str) -> Asset | None:
    """A file of the page; None if there is no such file. The chart library may be missing."""
    if name not in names():
        return None
    path = STATIC / name
    plain = path.read_bytes()
    media_type = TYPES[path.suffix]
    # The build may have left no compressed copy, or a broken one, or one of another version.
    with suppress(OSError, EOFError, zlib.error):
        built = path.with_name(f"{name}.gz").read_bytes()
        # A stale copy would run an old script against new answers.
        if gzip.decompress(built) == plain:
            return Asset(plain, built, media_type)
    return Asset(plain, gzip.compress(plain, 9, mtime=0), media_type)


@cache
def tag() -> str:
    """A hash of all files.

    It is part of their addresses, so that browsers may cache them permanently.
    """
    digest = hashlib.sha256()
    for name in names():
        digest.update(name.encode())
        digest.update((STATIC / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def html() -> bytes:
    """The page, with :func:`tag` in the addresses of its files."""
    return (STATIC / "page.html").read_bytes().replace(b"VERSION", tag().encode())


class SecurityHeaders:
    """Middleware that adds :data:`HEADERS` to every response, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


app = FastAPI(
    title="Zeus cost", dependencies=EVERYWHERE, openapi_url=None, docs_url=None, redoc_url=None
)
app.add_middleware(SecurityHeaders)


@app.get("/page")
async def page() -> Response:
    """The page of all jobs, of a DAG (``?dag_id=``) or of a run (``&run_id=``); it holds no
    data.
    """
    # The reader needs a second to look: numpy is there when the charts are asked for.
    load.warm()
    return Response(html(), media_type="text/html", headers={"Cache-Control": "no-cache"})


@app.get("/static/{version}/{name}")
async def static(version: str, name: str, request: Request) -> Response:
    """A file of the page, compressed if the browser accepts gzip.

    ``version``: as :func:`tag` returns it.
    """
    file = asset(name)
    if file is None:
        raise HTTPException(404, "No such file.")
    headers = {
        # A year: another version has another address.
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
    }
    # A page that was open during an upgrade asks for the old address.
    if version != tag():
        headers["Cache-Control"] = "no-cache"
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return Response(file.plain, media_type=file.media_type, headers=headers)
    headers["Content-Encoding"] = "gzip"
    return Response(file.gzip, media_type=file.media_type, headers=headers)


for routes in (overview_routes, action_routes, dag_routes, run_routes):
    app.include_router(routes.router)
