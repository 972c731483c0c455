"""The FastAPI app below ``/zeus``: the page, its files and the data routes. Only the api-server loads it."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request, Response  # noqa: TID253 - see above
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_provider_zeus.plugin.api import action_routes, assets, dag_routes, load, overview_routes, run_routes
from airflow_provider_zeus.plugin.api.auth import EVERYWHERE

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
ONE_YEAR = "private, max-age=31536000, immutable"


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


app = FastAPI(title="Zeus cost", dependencies=EVERYWHERE, openapi_url=None, docs_url=None, redoc_url=None)
app.add_middleware(SecurityHeaders)


@app.get("/page")
async def page() -> Response:
    """The page of all jobs, of a DAG (``?dag_id=``) of a run (``&run_id=``), or of several
    (these parameters again, to compare); it holds no data."""
    load.warm()
    return Response(assets.page(), media_type="text/html", headers={"Cache-Control": "no-cache"})


@app.get("/static/{tag}/{name}")
async def static(tag: str, name: str, request: Request) -> Response:
    """A file of the page, compressed where the browser accepts gzip. ``tag``: as :func:`assets.tag` returns it."""
    asset = assets.asset(name)
    if asset is None:
        raise HTTPException(404, "No such file.")
    headers = {"Cache-Control": ONE_YEAR if tag == assets.tag() else "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(asset.gzip, media_type=asset.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.plain, media_type=asset.media_type, headers=headers)


for routes in (overview_routes, action_routes, dag_routes, run_routes):
    app.include_router(routes.router)
