"""The Airflow of this host, as the command line sees it: its metadata database, its servers, the address of its UI."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import logging
import ssl
import urllib.error
import urllib.request

MIGRATE = "run 'airflow db migrate' (or 'airflow standalone', which does so)"
ANSWER_S = 30.0  # for the api-server's first answer to a task, which takes it seconds


def not_migrated() -> str | None:
    """Why Airflow's metadata database cannot be used yet; None where it can."""
    from sqlalchemy.exc import SQLAlchemyError

    from airflow_provider_zeus.airflow_compat import check_migrations

    logging.getLogger(check_migrations.__module__).setLevel(logging.WARNING)  # it logs that it waits
    try:
        check_migrations(timeout=1)
    except TimeoutError:
        return "Airflow's metadata database lacks the tables of this version of Airflow"
    except (SQLAlchemyError, OSError) as error:
        return f"Airflow's metadata database cannot be reached ({type(error).__name__})"
    return None


def not_running() -> list[str]:
    """Which servers, of those that a task needs, do not run: by their heartbeats in the database, or by a request."""
    from airflow_provider_zeus.airflow_compat import get_airflow_health

    health = get_airflow_health()
    parts = {"scheduler": "scheduler", "dag-processor": "dag_processor"}
    missing = [name for name, part in parts.items() if (health.get(part) or {}).get("status") != "healthy"]
    return missing if _answers(f"{ui_url()}/execution/health") else [*missing, f"api-server at {ui_url()}"]


def ui_url() -> str:
    """Address of Airflow's UI, without a slash at its end."""
    from airflow.sdk import conf

    named: str = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    scheme = "https" if conf.get("api", "ssl_cert", fallback="") else "http"
    return named or f"{scheme}://127.0.0.1:{conf.get('api', 'port', fallback='') or 8080}"


def _answers(url: str) -> bool:
    """Whether an HTTP server answers there, whatever it says."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a host of one's own is behind no proxy
    try:
        with direct.open(url, timeout=ANSWER_S):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)  # it does; its certificate is another matter
