"""Permissions: everything that the pages use of Airflow's security."""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request  # noqa: TID253 - loaded by the api-server alone
from fastapi.params import Depends as Dependency  # noqa: TID253

from airflow_provider_zeus.airflow_compat import (
    BaseUser,
    DagAccessEntity,
    GetUserDep,
    get_auth_manager,
    requires_access_dag,
)
from airflow_provider_zeus.plugin.api import load, reading

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


async def _logged_in(user: GetUserDep) -> None:
    """401 without a login.

    Airflow's own ``requires_authenticated`` would use one of Airflow's threads.
    """


async def _valid_ids(request: Request) -> None:
    """404 for an id that Airflow cannot have: too long, with control characters, or ``~``.

    Airflow's permission check reads ``~`` as "any DAG", and PostgreSQL's driver raises on a null
    byte.
    """
    # Airflow's own check would pass such an id on to the database.
    for value in request.path_params.values():
        is_name = 0 < len(value) <= 250 and value.isprintable()
        if value == "~" or not is_name:
            raise HTTPException(404, "No such address.")
    if any("\0" in value for _, value in request.query_params.multi_items()):
        raise HTTPException(404, "No such address.")


def _in_our_threads(check: Callable[..., None]) -> Dependency:
    """A permission check of Airflow as a dependency that runs in a thread of the pages.

    It may query the database.

    Raises TypeError for a coroutine function: called in a thread, without await, it would permit
    everything.
    """
    if inspect.iscoroutinefunction(check):
        raise TypeError("Permission checks of this Airflow are coroutines: upgrade the provider.")

    async def checked(request: Request, user: GetUserDep) -> None:
        await load.work(user, lambda: check(request=request, user=user))

    dependency: Dependency = Depends(checked)
    return dependency


EVERYWHERE = [Depends(_logged_in), Depends(_valid_ids)]  # Airflow checks nothing of a plugin's app
# Airflow can permit a DAG without its runs, which these pages are about.
MAY_READ_RUNS = _in_our_threads(requires_access_dag("GET", DagAccessEntity.RUN))
MAY_EDIT = _in_our_threads(requires_access_dag("PUT"))  # a setting changes runs as an edit does


async def _from_our_page(request: Request) -> None:
    """Refuse requests that another site makes a logged-in browser send (CSRF), and bodies that are
    not JSON.

    A browser sends the origin of a request (``Sec-Fetch-Site``, ``Origin``). A request with neither
    is not from a browser; it needs a token in the ``Authorization`` header, which another site
    cannot make a browser send.
    """
    media_type, _, _ = request.headers.get("Content-Type", "").partition(";")
    # A form of another site can send no JSON without a preflight request, which CORS refuses.
    if media_type.strip().lower() != "application/json":
        raise HTTPException(415, "Send a JSON body as application/json.")
    site = request.headers.get("Sec-Fetch-Site")
    origin = request.headers.get("Origin")
    # No browser leaves both away, so this is a script with a token.
    if site is None and origin is None:
        is_ours = "Authorization" in request.headers
    else:
        is_ours = site in (None, "same-origin") and origin in (None, *_own_origins(request))
    if not is_ours:
        raise HTTPException(403, "Only pages of this Airflow may send a change.")


def _own_origins(request: Request) -> set[str]:
    """The origins of this Airflow: by the request, and by its configuration."""
    from airflow.sdk import conf

    origins = {f"{request.url.scheme}://{request.headers.get('Host', '')}"}
    base = urlsplit(conf.get("api", "base_url", fallback="") or "")
    # Behind a proxy the Host header may be that of the inner server.
    if base.netloc:
        origins.add(f"{base.scheme}://{base.netloc}")
    return origins


FROM_OUR_PAGE = Depends(_from_our_page)


def readable_dags(user: BaseUser) -> set[str]:
    """DAGs that a user may see."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


def may_read_runs(user: BaseUser, dag_id: str) -> bool:
    """Whether a user may see the runs of a DAG, as :data:`MAY_READ_RUNS` checks it for the DAG of a
    path.
    """
    check = requires_access_dag("GET", DagAccessEntity.RUN, dag_id)
    try:
        check(None, user)  # type: ignore[arg-type]  # it does not ask the request: the DAG is given
    except HTTPException:
        return False
    return True


def with_readable_runs(user: BaseUser, dag_ids: Iterable[str]) -> set[str]:
    """Those of the DAGs whose runs a user may see.

    Each is asked for by itself: give those that are shown, not all.
    """
    # The list costs one query, each check of runs another: only DAGs that are shown are checked.
    shown = readable_dags(user).intersection(dag_ids)
    return {dag_id for dag_id in shown if may_read_runs(user, dag_id)}


def may_edit_job(user: BaseUser, dag_id: str, sharing: Collection[str]) -> bool:
    """Whether a user may change a job on the tab of a DAG: that DAG, and each other one that shares
    the job.

    One that was deleted in Airflow refuses nobody: else no user at all could change the job any
    more. A DAG that is paused or stale has not been deleted.
    """
    allowed = get_auth_manager().get_authorized_dag_ids(user=user, method="PUT")
    # A setting of a shared job changes the runs of every DAG that shares it.
    refused = {dag_id, *sharing} - allowed
    if dag_id in refused:
        return False
    return not refused or not reading.present_dags(refused, stale=True)


def sees_addresses(user: BaseUser) -> bool:
    """Whether a user may see the address of the trial log: those who may edit Connections, which
    hold it.
    """
    return get_auth_manager().is_authorized_connection(method="PUT", user=user)


def sees_connections(user: BaseUser) -> bool:
    """Whether a user may see the ids of Connections."""
    return get_auth_manager().is_authorized_connection(method="GET", user=user)


def store_name(user: BaseUser, store: Store | None) -> str:
    """The address of the trial log if the user may see it, else a name by which logs can be told
    apart.

    Empty if there is no log.
    """
    if store is None:
        return ""
    if sees_addresses(user):
        return store.identity
    from airflow.sdk import conf

    # Keyed, or addresses could be guessed until one has this name.
    key = conf.get("api", "secret_key", fallback="") or ""
    name = hmac.new(key.encode(), store.identity.encode(), hashlib.sha256).hexdigest()
    return f"log {name[:8]}"
