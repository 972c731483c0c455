"""The page of the plugin's routes, read off its app."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.routing import APIRoute

from docs_site.tables import code, sentence, table

HEAD = """# Routes

What the plugin serves below `/zeus` of Airflow's api-server, for its own pages. The routes are private: they may change
in any release. Every route needs a login, and answers only about DAGs whose runs the user may read. Answers of data are
JSON, errors too. Limits of time, memory and number: [the tab](../cost-page.md).
"""


def page() -> str:
    """Each route with its method, its permission and what it answers."""
    rows = [
        [
            code(" ".join(sorted(route.methods or ()))),
            code(f"/zeus{route.path}"),
            who(route),
            sentence(_first(route)),
        ]
        for route in routes()
    ]
    return f"{HEAD}\n{table(['method', 'path', 'who', 'what'], rows)}"


def routes() -> Iterator[APIRoute]:
    """The routes of the plugin's app."""
    from airflow_provider_zeus.plugin.api.app import app

    yield from (route for route in app.routes if isinstance(route, APIRoute))


def who(route: APIRoute) -> str:
    """Who may call a route, by the checks that run before it."""
    from airflow_provider_zeus.plugin.api import auth

    checks = {dependency.dependency for dependency in route.dependencies}
    if auth.MAY_EDIT.dependency in checks:
        return "editors of the DAG, from Airflow's own pages"
    return "readers of the DAG's runs" if auth.MAY_READ_RUNS.dependency in checks else "every login"


def _first(route: APIRoute) -> str:
    return (route.description or "").split("\n\n")[0]
