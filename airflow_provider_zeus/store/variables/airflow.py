"""Airflow's Variables, and others that end with a process.

In a task they come from the Execution API (``airflow.sdk.Variable``); in the api-server, the CLI
and tests from the metadata database (``airflow.models.Variable``). Both also answer "not found"
if a backend failed, so an absence is checked a second time in a way that shows errors: a log
that only seems missing would be overwritten.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_zeus import patterns
from airflow_provider_zeus.airflow_compat import supervisor
from airflow_provider_zeus.errors import StoreError

SETTINGS = "zeus-settings"  # people write them, so the job's name stays readable in the key


def variable_key(prefix: str, name: str) -> str:
    """Key of a Variable about ``name``: the name itself if Airflow accepts it everywhere, else its
    hash.

    A Variable's key has at most 250 characters and is not quoted in the path of the Execution API.
    A key with a word like ``token`` in it makes Airflow mask the whole value in each log line, so
    the log of a job must not have one; settings are short and written by people, so theirs may.
    """
    hidden = "(?i)key|token|secret|pass|auth|bearer|dsn|prox|account|webhook|connection_string"
    is_masked = prefix != SETTINGS and patterns.search(hidden, name) is not None
    if patterns.fullmatch(r"[A-Za-z0-9._-]{1,160}", name) and not is_masked:
        return f"{prefix}:{name}"
    # surrogatepass: a name may hold half a character, and "replace" could give two names one key.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    return f"{prefix}:~{digest[:40]}"


class AirflowVariables:
    """Variables of this Airflow. Each method raises StoreError when they cannot be reached."""

    def get(self, key: str) -> str | None:
        """Text of a Variable; None only if it does not exist."""
        with _errors(f"Variable {key!r} cannot be read"):
            if supervisor():
                from airflow_provider_zeus.airflow_compat import GetVariable

                text: str | None = _variable().get(key, default=None)
                if text is None:
                    answer = asked_again(GetVariable(key=key), "VARIABLE_NOT_FOUND")
                    text = None if answer is None else answer.value
                return text
            from airflow_provider_zeus.airflow_compat import MetastoreBackend

            text = _variable().get(key, default_var=None)
            if text is None:
                return MetastoreBackend().get_variable(key)
            return text

    def set(self, key: str, text: str) -> None:
        """Write a Variable."""
        with _errors(f"Variable {key!r} cannot be written"):
            _variable().set(key, text)

    def delete(self, key: str) -> None:
        """Delete a Variable; do nothing if it does not exist."""
        with _errors(f"Variable {key!r} cannot be deleted"):
            _variable().delete(key)

    def keys(self, prefix: str) -> list[str]:
        """Keys in the metadata database that begin with ``prefix``; in a task from Airflow 3.3 on,
        else StoreError.
        """
        if not supervisor():
            import sqlalchemy as sa

            from airflow_provider_zeus.airflow_compat import ServerVariable, create_session

            name = ServerVariable.key
            names = sa.select(name).where(name.startswith(prefix, autoescape=True)).order_by(name)
            with _errors("Variables cannot be listed"), create_session() as session:
                return list(session.scalars(names))
        variable = _variable()
        if not hasattr(variable, "keys"):
            raise StoreError(
                "Variables cannot be listed by a task before Airflow 3.3: a pending result in a "
                "Variable "
                "zeus-untold:... is stored by the job's next run that finds its row in the log; "
                "else it stays there."
            )
        with _errors("Variables cannot be listed"):
            return [str(key) for key in variable.keys(prefix=prefix)]


class MemoryVariables(AirflowVariables):
    """Variables that end with the process, and that no Airflow has."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """The text of a key; None if there is none."""
        return self._texts.get(key)

    def set(self, key: str, text: str) -> None:
        """Keep a text."""
        self._texts[key] = text

    def delete(self, key: str) -> None:
        """Forget a key, if it is there."""
        self._texts.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so."""
        return [key for key in self._texts if key.startswith(prefix)]


def _variable() -> Any:
    if supervisor():
        from airflow.sdk import Variable

        return Variable
    from airflow_provider_zeus.airflow_compat import ServerVariable

    return ServerVariable


def asked_again(message: Any, absent: str) -> Any:
    """Ask the supervisor itself: its answer, None if its error is ``absent``.

    Raises StoreError for any other.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        answer = supervisor().send(message)
    except AirflowRuntimeError as error:
        answer = error.error
    code = getattr(getattr(answer, "error", None), "value", None)
    if code == absent:
        return None
    if code is not None or answer is None:
        raise StoreError(f"Airflow's API answered {code or 'nothing'}; see its api-server's log.")
    return answer


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{what}: {error}") from error
    except Exception as error:  # of Airflow, of HTTP or of its database: callers handle one kind
        said = f"{type(error).__name__}: {error}".split("\n")[0]  # not the statement and its values
        raise StoreError(
            f"{what} ({said}); check that Airflow's API and database can be reached."
        ) from error
