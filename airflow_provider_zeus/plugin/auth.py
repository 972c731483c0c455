"""Who may see what: all of Airflow's security that our pages use."""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Callable
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
from airflow_provider_zeus.plugin import load
from airflow_provider_zeus.store.base import Store

__all__ = [
    "EVERYWHERE",
    "FROM_OUR_PAGE",
    "MAY_EDIT",
    "MAY_READ_RUNS",
    "GetUserDep",
    "editable_dags",
    "readable_dags",
    "sees_addresses",
    "store_name",
]

LONGEST_ID = 250  # characters that Airflow's tables hold


async def _logged_in(user: GetUserDep) -> None:
    """401 without a login. As Airflow's ``requires_authenticated``, which takes one of Airflow's threads for it."""


async def _real_ids(request: Request) -> None:
    """404 for what can be no id of Airflow's: too long, with control characters, or ``~``.

    Airflow's check takes ``~`` for "any DAG", and PostgreSQL's driver raises on a null byte.
    """
    for value in request.path_params.values():
        if value == "~" or not 0 < len(value) <= LONGEST_ID or not value.isprintable():
            raise HTTPException(404, "No such address.")


def _in_our_threads(check: Callable[..., None]) -> Dependency:
    """One of Airflow's checks as a dependency that takes none of Airflow's threads. It may ask the database.

    Raises TypeError for a check that has to be awaited: called in a thread it would let everybody in.
    """
    if inspect.iscoroutinefunction(check):
        raise TypeError("This version of Airflow checks permissions in another way: upgrade the provider.")

    async def checked(request: Request, user: GetUserDep) -> None:
        await load.work(user, lambda: check(request=request, user=user))

    found: Dependency = Depends(checked)
    return found


EVERYWHERE = [Depends(_logged_in), Depends(_real_ids)]  # Airflow itself lets anybody in
MAY_READ_RUNS = _in_our_threads(requires_access_dag("GET", DagAccessEntity.RUN))  # of the DAG named in the path
MAY_EDIT = _in_our_threads(requires_access_dag("PUT"))  # the DAG named in the path
_OURS = "same-origin"


async def _from_our_page(request: Request) -> None:
    """Refuses what another site's page makes a logged-in browser send, and any body that is no JSON.

    A browser says where a request comes from (``Sec-Fetch-Site``, ``Origin``); what says neither is no browser, and
    passes only with a token of its own in the header, which no other site can make a browser send.
    """
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Send a JSON body as application/json.")
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    told = site is not None or origin is not None or "Authorization" in request.headers
    if not told or site not in (None, _OURS) or origin not in (None, *_own_origins(request)):
        raise HTTPException(403, "A change is taken from Airflow's own pages only.")


def _own_origins(request: Request) -> set[str]:
    """Where this Airflow is reached: as the browser named it, and as ``[api] base_url`` does."""
    from airflow.sdk import conf

    base = urlsplit(conf.get("api", "base_url", fallback="") or "")
    here = {f"{request.url.scheme}://{request.headers.get('Host', '')}"}
    return here | ({f"{base.scheme}://{base.netloc}"} if base.netloc else set())


FROM_OUR_PAGE = Depends(_from_our_page)


def readable_dags(user: BaseUser) -> set[str]:
    """DAGs whose runs a user may see."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


def editable_dags(user: BaseUser) -> set[str]:
    """DAGs that a user may change."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="PUT")


def sees_addresses(user: BaseUser) -> bool:
    """Whether a user may know where the trial log lies: who may edit Connections, where its address stands."""
    return get_auth_manager().is_authorized_connection(method="PUT", user=user)


def store_name(user: BaseUser, store: Store | None) -> str:
    """Where the trial log lies, for those who may know; for others a name that tells one log from another.

    Empty where there is no log.
    """
    if store is None:
        return ""
    if sees_addresses(user):
        return store.identity
    from airflow.sdk import conf

    key = conf.get("api", "secret_key", fallback="") or ""  # else a guess at the address could be tried out
    return f"log {hmac.new(key.encode(), store.identity.encode(), hashlib.sha256).hexdigest()[:8]}"
