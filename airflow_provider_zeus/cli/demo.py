"""``airflow zeus demo``: ten runs of the example that needs neither torch nor a GPU, in the Airflow
that runs here.

It speaks with Airflow's metadata database, as Airflow's own commands do, so it needs no password.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import logging
import ssl
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from airflow_provider_zeus.cli.shell import command, not_migrated, os_user, say
from airflow_provider_zeus.errors import StoreError, ZeusError
from airflow_provider_zeus.links.zeus import dag_path
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.patience import T
from airflow_provider_zeus.reports.closing import closing
from airflow_provider_zeus.store.open import embedded_path, open_store
from airflow_provider_zeus.units import counted

DAG_ID = "zeus_demo"
TASK_ID = "train"
JOB_ID = f"{DAG_ID}.{TASK_ID}"
POLL_S = 1.0
# The demo's network is small: so long without the end of a run, something hangs.
RUN_S = 300.0


class DemoError(ZeusError):
    """The demo cannot go on; the message names the remedy."""


@command
def demo(args: Namespace) -> int:
    """Trigger runs of the example, follow them, and name the page that shows them."""
    deadline_s = time.monotonic() + args.wait
    # Airflow first: without it nothing can be said of the DAG.
    _wait(_airflow_missing, deadline_s)
    _wait(_dag_missing, deadline_s)
    # a new DAG is paused, and its runs would wait
    _patiently(_unpause)
    run_ids = [f"zeus-demo-{number:02}" for number in range(1, args.runs + 1)]
    # Airflow logs each new run in lines that would bury the one of the demo.
    with _quietly():
        new = [run_id for run_id in run_ids if _patiently(partial(_trigger, run_id))]
    there_already = len(run_ids) - len(new)
    say(f"{counted(len(new), 'run')} of {DAG_ID} triggered, {there_already} were there already.")
    say(f"The page: {ui_url()}/{dag_path(DAG_ID)}")
    from airflow.sdk import conf

    default = embedded_path().parent / "simple_auth_manager_passwords.json.generated"
    configured = conf.get("core", "simple_auth_manager_passwords_file", fallback=None)
    passwords = Path(configured or default)
    if passwords.exists():  # other ways to start Airflow make none
        say(f"Log in as admin; the password is in {passwords}")
    failed = [run_id for run_id, ok in _follow(run_ids) if not ok]
    if failed:
        raise DemoError(
            f"{', '.join(failed)} failed: see the task's log at {ui_url()}/dags/{DAG_ID}."
        )
    say("The trainings were real; time and energy are those of a simulated V100, not measured.")
    say(f"More: airflow zeus runs {JOB_ID} --why")
    return 0


def _wait(missing: Callable[[], str | None], deadline_s: float) -> None:
    """Wait until nothing is missing; each new problem is printed.

    Raises DemoError at the deadline.
    """
    printed = None
    while True:
        # Asked again and again: people start Airflow in another terminal meanwhile.
        problem = missing()
        if problem is None:
            return
        room_s = deadline_s - time.monotonic()
        if room_s <= 0:
            raise DemoError(problem)
        # One line for each problem: a line each second would hide the next one.
        if problem != printed:
            printed = problem
            say(f"  {problem} Waiting for it, {room_s:.0f} s at most ...")
            sys.stdout.flush()
        time.sleep(POLL_S)


def _airflow_missing() -> str | None:
    """The parts of Airflow that a task needs and that do not run, with the remedy; None if all
    run.
    """
    start = (
        "run 'airflow standalone' in another terminal, with the same AIRFLOW_HOME and settings as "
        "here"
    )
    # A new folder's database has no tables: that is the cause then, and no missing server.
    problem = not_migrated()
    if problem is not None:
        return f"No Airflow runs here: {problem}; {start}."
    missing = not_running()
    if not missing:
        return None
    return f"Airflow does not run here: no {', no '.join(missing)}; {start}."


def _dag_missing() -> str | None:
    """Why the example cannot be triggered yet, with the remedy; None if it can."""
    from airflow.sdk import conf
    from sqlalchemy import select

    from airflow_provider_zeus.airflow_compat import (
        DagBundlesManager,
        DagModel,
        ParseImportError,
        create_session,
    )

    with create_session() as session:
        dag = session.get(DagModel, DAG_ID)
        # A stale one is of a file that is gone, so its runs would never begin.
        if dag is not None and not dag.is_stale:
            return None
    with create_session() as session:
        ends_so = ParseImportError.filename.like(f"%{DAG_ID}.py")
        error = session.scalar(select(ParseImportError.stacktrace).where(ends_so).limit(1))
    if error:
        # The last line of a traceback names the error.
        error = error.strip().splitlines()[-1]
        return f"DAG {DAG_ID} cannot be imported: {error}. See 'airflow dags list-import-errors'."
    package = Path(__file__).resolve().parents[1]
    example = package / "example_dags" / f"{DAG_ID}.py"
    if not example.exists():  # a checkout that is installed in place has it elsewhere
        example = package.parent / "dags" / f"{DAG_ID}.py"
    copy = f"copy {example} into {conf.get('core', 'dags_folder')}"
    if not conf.getboolean("core", "load_examples"):
        return (
            f"DAG {DAG_ID} is not there, and [core] load_examples is off here: start Airflow with "
            f"AIRFLOW__CORE__LOAD_EXAMPLES=True, or {copy}."
        )
    # Airflow loads no examples of a provider unless a bundle has their folder.
    bundles = [bundle.path for bundle in DagBundlesManager().get_all_dag_bundles()]
    if not any(example.is_relative_to(path) for path in bundles):
        return (
            f"DAG {DAG_ID} is not there: this version of Airflow loads no examples of providers; "
            f"{copy}."
        )
    return f"DAG {DAG_ID} is not parsed yet; Airflow's dag-processor does so soon after it starts."


def _unpause() -> None:
    from airflow_provider_zeus.airflow_compat import DagModel, create_session

    with create_session() as session:
        dag = session.get(DagModel, DAG_ID)
        if dag is not None:
            dag.is_paused = False


def _trigger(run_id: str) -> bool:
    """Whether the run is new; one that is there already stays as it is."""
    from airflow_provider_zeus.airflow_compat import DagRun, DagRunTriggeredByType, trigger_dag

    # the command can be run again after it was cut off
    if DagRun.find(dag_id=DAG_ID, run_id=[run_id]):
        return False
    by = DagRunTriggeredByType.CLI
    trigger_dag(dag_id=DAG_ID, run_id=run_id, triggered_by=by, triggering_user_name=os_user())
    return True


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep Airflow's log lines about each new run off the terminal; warnings stay."""
    import structlog

    # The settings hold for the whole process: after the demo it must log as before.
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


def _patiently(write: Callable[[], T], tries: int = 10) -> T:
    """Write to Airflow's database; again, a second later, if another process is writing: SQLite
    takes one at a time.

    Raises DemoError after so many tries.
    """
    from sqlalchemy.exc import OperationalError

    for more in reversed(range(tries)):
        try:
            return write()
        except OperationalError as error:
            if not more:
                raise DemoError(
                    f"Airflow's database cannot be written to ({error.orig}): try again."
                ) from None
            time.sleep(POLL_S)
    raise AssertionError


def _follow(run_ids: list[str]) -> Iterator[tuple[str, bool]]:
    """Print a line for each run that ends; yield (run id, success).

    Raises DemoError if none ends in time.
    """
    from airflow_provider_zeus.airflow_compat import DagRun

    open_runs = list(run_ids)
    deadline_s = time.monotonic() + RUN_S
    while True:
        # all open runs at one look: one question each would load the database
        states = {
            run.run_id: str(getattr(run.state, "value", run.state))
            for run in DagRun.find(DAG_ID, run_id=open_runs)
        }
        for run_id in [r for r in open_runs if states.get(r) in ("success", "failed")]:
            open_runs.remove(run_id)
            deadline_s = time.monotonic() + RUN_S
            done = len(run_ids) - len(open_runs)
            say(f"{done:>3}/{len(run_ids)}  {run_id}  {_outcome(run_id) or states[run_id]}")
            sys.stdout.flush()
            yield run_id, states[run_id] == "success"
        if not open_runs:
            return
        # A run that somebody deletes would be waited for without end.
        gone = [r for r in open_runs if r not in states]
        if gone:
            raise DemoError(f"{gone[0]} was deleted meanwhile: run 'airflow zeus demo' again.")
        if time.monotonic() > deadline_s:
            now = ", ".join(f"{r} is {states[r]}" for r in open_runs[:3])
            raise DemoError(
                f"No run has ended for {RUN_S:.0f} s ({now}): see the output of Airflow's "
                "scheduler."
            )
        time.sleep(POLL_S)


def _outcome(run_id: str) -> str | None:
    """The closing line of a run by the trial log; None if the log cannot be read, or has
    nothing of it.
    """
    try:
        log = open_store(create=False)
    except StoreError:
        return None
    with contextlib.closing(log):
        own = [trial for trial in log.trials(JOB_ID) if trial.origin.run_id == run_id]
    ended = [trial for trial in own if trial.state is not State.RUNNING]
    if not ended:
        return None
    return closing(ended)


def not_running() -> list[str]:
    """Which servers, of those that a task needs, do not run: by their heartbeats in the
    database, or by a request.
    """
    from airflow_provider_zeus.airflow_compat import get_airflow_health

    health = get_airflow_health()
    parts = {"scheduler": "scheduler", "dag-processor": "dag_processor"}
    states = {name: (health.get(part) or {}).get("status") for name, part in parts.items()}
    missing = [name for name, state in states.items() if state != "healthy"]
    # the api-server has no heartbeat in the database
    if not _answers(f"{ui_url()}/execution/health"):
        missing.append(f"api-server at {ui_url()}")
    return missing


def ui_url() -> str:
    """Address of Airflow's UI, without a slash at its end."""
    from airflow.sdk import conf

    base_url: str = conf.get("api", "base_url", fallback="") or ""
    if base_url.rstrip("/"):
        return base_url.rstrip("/")
    # Airflow serves the UI itself if no address is set.
    scheme = "https" if conf.get("api", "ssl_cert", fallback="") else "http"
    return f"{scheme}://127.0.0.1:{conf.get('api', 'port', fallback='') or 8080}"


def _answers(url: str) -> bool:
    """Whether an HTTP server answers there, whatever it says."""
    # a host of one's own is behind no proxy
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        # the api-server's first answer to a task takes it seconds
        with direct.open(url, timeout=30.0):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # A server whose certificate is refused has answered, which is all that is asked.
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
