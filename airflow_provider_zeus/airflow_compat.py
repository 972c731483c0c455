"""All of Airflow's internals that this package uses, each with the public way that can replace it.

A name is imported at its first use, so a DAG file loads only those that it needs. Everything else
in this package uses Airflow's public names only; ``ruff`` and ``tests/unit/test_airflow_compat.py``
check that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.api.common.airflow_health import get_airflow_health as get_airflow_health
    from airflow.api.common.trigger_dag import trigger_dag as trigger_dag
    from airflow.api_fastapi.app import get_auth_manager as get_auth_manager
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser as BaseUser
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        DagAccessEntity as DagAccessEntity,
    )
    from airflow.api_fastapi.core_api.security import GetUserDep as GetUserDep
    from airflow.api_fastapi.core_api.security import requires_access_dag as requires_access_dag
    from airflow.cli.cli_config import ARG_YES as ARG_YES
    from airflow.cli.cli_config import ActionCommand as ActionCommand
    from airflow.cli.cli_config import Arg as Arg
    from airflow.cli.cli_config import CLICommand as CLICommand
    from airflow.cli.cli_config import GroupCommand as GroupCommand
    from airflow.cli.cli_config import lazy_load_command as lazy_load_command
    from airflow.cli.cli_config import positive_int as positive_int
    from airflow.cli.simple_table import AirflowConsole as AirflowConsole
    from airflow.cli.simple_table import SimpleTable as SimpleTable
    from airflow.dag_processing.bundles.manager import DagBundlesManager as DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag as BundleDagBag
    from airflow.models import Variable
    from airflow.models.connection import Connection as Connection
    from airflow.models.dag import DagModel as DagModel
    from airflow.models.dag import DagTag as DagTag
    from airflow.models.dagrun import DagRun as DagRun
    from airflow.models.errors import ParseImportError as ParseImportError
    from airflow.models.log import Log as Log
    from airflow.models.serialized_dag import SerializedDagModel as SerializedDagModel
    from airflow.models.xcom import XComModel as XComModel
    from airflow.sdk.bases.decorator import determine_kwargs as determine_kwargs
    from airflow.sdk.bases.decorator import get_unique_task_id as get_unique_task_id
    from airflow.sdk.definitions._internal.contextmanager import DagContext as DagContext
    from airflow.sdk.definitions._internal.expandinput import MappedArgument as MappedArgument
    from airflow.sdk.execution_time.callback_runner import (
        create_async_executable_runner as create_async_executable_runner,
    )
    from airflow.sdk.execution_time.callback_runner import (
        create_executable_runner as create_executable_runner,
    )
    from airflow.sdk.execution_time.comms import GetConnection as GetConnection
    from airflow.sdk.execution_time.comms import GetVariable as GetVariable
    from airflow.sdk.observability.stats import Stats as Stats
    from airflow.secrets.metastore import MetastoreBackend as MetastoreBackend
    from airflow.utils.cli import action_cli as action_cli
    from airflow.utils.db import check_migrations as check_migrations
    from airflow.utils.providers_configuration_loader import (
        providers_configuration_loaded as providers_configuration_loaded,
    )
    from airflow.utils.session import create_session as create_session
    from airflow.utils.types import DagRunTriggeredByType as DagRunTriggeredByType

    ServerVariable = Variable  # airflow.sdk has another one of that name

INTERNALS = {
    # Names of the command line. Public way: none yet; providers' own commands are made of these.
    **dict.fromkeys(
        (
            "ARG_YES",
            "ActionCommand",
            "Arg",
            "CLICommand",
            "GroupCommand",
            "lazy_load_command",
            "positive_int",
        ),
        "airflow.cli.cli_config",
    ),
    # public way: rich.console.Console, once its width is no concern
    "AirflowConsole": "airflow.cli.simple_table",
    # for tables that look like Airflow's own; public way: rich.table.Table
    "SimpleTable": "airflow.cli.simple_table",
    "action_cli": "airflow.utils.cli",  # public way: none yet for a line in the audit log
    # The options of [zeus] have no defaults in a command without it. Public way: airflow.sdk.conf,
    # once it has loaded them there.
    "providers_configuration_loaded": "airflow.utils.providers_configuration_loader",
    # Authorization. Public way: none yet for a plugin's FastAPI app.
    **dict.fromkeys(("GetUserDep", "requires_access_dag"), "airflow.api_fastapi.core_api.security"),
    "BaseUser": "airflow.api_fastapi.auth.managers.models.base_user",
    "DagAccessEntity": "airflow.api_fastapi.auth.managers.models.resource_details",
    "get_auth_manager": "airflow.api_fastapi.app",
    # The server's database. Public way: airflow.sdk.Variable, once it lists and writes outside of a
    # task.
    "ServerVariable": "airflow.models:Variable",
    # public way: GET /api/v2/connections, which needs a token
    "Connection": "airflow.models.connection",
    "MetastoreBackend": "airflow.secrets.metastore",
    # public way: GET /api/v2/dags, which needs a token
    **dict.fromkeys(("DagModel", "DagTag"), "airflow.models.dag"),
    "Log": "airflow.models.log",  # public way: none yet for a plugin's audit lines
    # the order of a DAG's tasks. Public way: GET /api/v2/dags/{dag_id}/tasks, which needs a token
    "SerializedDagModel": "airflow.models.serialized_dag",
    "XComModel": "airflow.models.xcom",  # public way: none yet for a plugin
    "create_session": "airflow.utils.session",
    # public way: the command 'airflow db check-migrations', which takes seconds to start
    "check_migrations": "airflow.utils.db",
    # airflow zeus demo. Public way: the REST API, which needs the password of a user.
    "DagRun": "airflow.models.dagrun",
    "DagRunTriggeredByType": "airflow.utils.types",
    "ParseImportError": "airflow.models.errors",
    "get_airflow_health": "airflow.api.common.airflow_health",
    "trigger_dag": "airflow.api.common.trigger_dag",
    # public way: none yet to import one DAG by its id
    "BundleDagBag": "airflow.dag_processing.dagbag",
    # public way: none yet to list the files of bundles
    "DagBundlesManager": "airflow.dag_processing.bundles.manager",
    # Public way: exports of airflow.sdk, which has none of them yet.
    **dict.fromkeys(("determine_kwargs", "get_unique_task_id"), "airflow.sdk.bases.decorator"),
    # They hand what a function yields to the events of outlets. Public way: execute() of
    # PythonOperator, in the standard provider.
    "create_executable_runner": "airflow.sdk.execution_time.callback_runner",
    "create_async_executable_runner": "airflow.sdk.execution_time.callback_runner",
    # Needed before there is an operator. Public way: BaseOperator.has_dag() and .dag, after it.
    "DagContext": "airflow.sdk.definitions._internal.contextmanager",
    # Found here by the name of the argument. Public way: what the group's function gets.
    "MappedArgument": "airflow.sdk.definitions._internal.expandinput",
    # Public way: airflow.sdk, once it has it, or airflow.providers.common.compat.sdk, which this
    # package does not require.
    "Stats": "airflow.sdk.observability.stats",
    # Public way: airflow.sdk.Variable and Connection, once they distinguish "not defined" from
    # "lookup failed".
    "GetVariable": "airflow.sdk.execution_time.comms",
    "GetConnection": "airflow.sdk.execution_time.comms",
}


def __getattr__(name: str) -> Any:
    """Import one of :data:`INTERNALS`.

    Raises AttributeError for another name, ImportError if Airflow moved it.
    """
    if name not in INTERNALS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = INTERNALS[name].partition(":")
    member = globals()[name] = getattr(import_module(module), attribute or name)
    return member


def supervisor() -> Any:
    """Return the channel of a task to its supervisor, None outside a task, as Airflow itself does.

    Public way: ``airflow.sdk.get_current_context()``, once it works in a thread.
    """
    return getattr(
        sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None
    )


def masked(text: str) -> str:
    """The text with ``***`` for each secret that Airflow's log of this process masks; as it is,
    without Airflow.

    Airflow masks the passwords of Connections and the values of sensitive Variables that this
    process has read, unless they are short. So is the beginning of one at the end of a text that
    was cut, elsewhere or before it came here. Public way: ``airflow.sdk.log.redact``, once its
    module can be imported at no cost.
    """
    # nothing is masked where nothing has imported it
    masker = sys.modules.get("airflow.sdk._shared.secrets_masker")
    if masker is None:
        return text
    text = str(masker.redact(text))
    if text.endswith("…"):
        for pattern in masker._secrets_masker().patterns:
            # A pattern is a regular expression: without its backslashes it is the secret again.
            characters = iter(pattern)
            secret = "".join(
                next(characters, "") if character == "\\" else character for character in characters
            )
            # Airflow masks no secret of under 5 characters either.
            for length in range(min(len(secret), len(text)) - 1, 4, -1):
                if text.endswith(f"{secret[:length]}…"):
                    return f"{text[: -length - 1]}***"
    return text


def airflow_home() -> Path:
    """``$AIRFLOW_HOME``."""
    return Path(os.path.expandvars(os.environ.get("AIRFLOW_HOME") or "~/airflow")).expanduser()


def is_test_run() -> bool:
    """Whether this task runs in ``dag.test()``. Public way: none yet."""
    return type(supervisor()).__name__ == "InProcessSupervisorComms"


def group_argument(group: Any, name: str) -> tuple[Any, list[str]]:
    """Return (an argument of a mapped task group, None if it maps no such one; names of those that
    it maps).

    The argument is the one that the group's own function gets: Airflow resolves it in a templated
    field. If the group maps an XComArg by ``expand_kwargs`` no name is known before it runs, and
    any may be there. Public way: none yet by name.
    """
    expanded = group._expand_input
    mappings = [expanded.value] if isinstance(expanded.value, Mapping) else expanded.value
    dicts = (
        [d for d in mappings if isinstance(d, Mapping)] if isinstance(mappings, Sequence) else []
    )
    names = list(dict.fromkeys(key for mapped in dicts for key in mapped))
    argument = (
        __getattr__("MappedArgument")(input=expanded, key=name)
        if name in names or not names
        else None
    )
    return argument, names
