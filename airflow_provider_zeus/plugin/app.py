"""The FastAPI app below ``/zeus``: the page, its files, each view's data routes. Loaded by the api-server alone."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response  # noqa: TID253 - see above
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_zeus.plugin import assets, load, routes_actions, routes_dag, routes_overview, routes_run
from airflow_provider_zeus.plugin.auth import EVERYWHERE

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
A_YEAR = "private, max-age=31536000, immutable"


class Strict:
    """Sends :data:`HEADERS` with every answer, errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, answer)


app = FastAPI(title="Zeus cost", dependencies=EVERYWHERE, openapi_url=None, docs_url=None, redoc_url=None)
app.add_middleware(Strict)


@app.get("/page")
async def page() -> Response:
    """The page of all jobs, of a DAG (``?dag_id=``) or of a run (``&run_id=``); it holds no data."""
    load.warm()
    return Response(assets.page(), media_type="text/html", headers={"Cache-Control": "no-cache"})


@app.get("/static/{tag}/{name}")
async def static(tag: str, name: str, request: Request) -> Response:
    """A file of the page, compressed where the browser takes it."""
    found = assets.asset(name)
    if found is None:
        raise HTTPException(404, "No such file.")
    headers = {"Cache-Control": A_YEAR if tag == assets.tag() else "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(found.zipped, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.plain, media_type=found.media_type, headers=headers)


for routes in (routes_overview, routes_actions, routes_dag, routes_run):
    app.include_router(routes.router)
