"""An Airflow of the tests' own: one home and one migrated metadata database per test process,
no servers.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.postgres import database, postgres  # noqa: F401
from tests.run_order import pytest_configure  # noqa: F401

if TYPE_CHECKING:
    from tests.fake_nvml import FakeNvml

# Before anything imports Airflow, which reads its home once; anew in each worker of pytest-xdist.
_HOME = Path(tempfile.mkdtemp(prefix="zeus-airflow-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT="600",  # Airflow's 30 s say how busy the host is
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    # A command of Airflow that a test runs here writes a key into airflow.cfg. Processes that
    # start later would write Variables with it, which this process has no key to read.
    AIRFLOW__CORE__FERNET_KEY="",
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    CUDA_VISIBLE_DEVICES="",  # no test reads, let alone sets, a real GPU
    ZEUS_POWERCAP=str(_HOME / "powercap"),  # nor the counters of this host's processors
    ZEUS_STATE_DIR=str(_HOME / "zeus"),  # nor shares simulated GPUs and locks with other processes
)
(_HOME / "dags").mkdir()
# temporary folders of this run alone: another pytest closes those it finds
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(prefix="zt-")  # a socket's path is short
    atexit.register(shutil.rmtree, os.environ["PYTEST_DEBUG_TEMPROOT"], ignore_errors=True)


# How long an example takes says how busy the host is. Each run draws other examples; more of them,
# as each night: pytest --hypothesis-profile thorough
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.register_profile("any host", deadline=None, max_examples=15)
settings.load_profile("any host")

gc.disable()  # while all tests are imported


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage looks at it again,
    which took a second each time.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _what_stays_is_looked_at_once() -> Iterator[None]:
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """``AIRFLOW_HOME`` with a migrated metadata database."""
    from airflow import settings as airflow_settings
    from airflow.sdk.execution_time import supervisor
    from airflow.utils import db

    # of a test that looked for a Variable before there were tables
    airflow_settings.engine.dispose()
    migrated = Path(os.environ["PYTEST_DEBUG_TEMPROOT"]) / "airflow.db"
    with migrated.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if migrated.exists():
            for older in _HOME.glob("airflow.db*"):  # a journal would put the empty tables back
                older.unlink()
            shutil.copy(migrated, _HOME / "airflow.db")
            db.import_all_models()
        else:  # the first of the test processes makes it for all
            db.initdb()
            airflow_settings.engine.dispose()
            shutil.copy(_HOME / "airflow.db", migrated)
    # older ones make it for each task of dag.test()
    if not hasattr(supervisor.in_process_api_server, "cache_clear"):
        supervisor.in_process_api_server = functools.cache(supervisor.in_process_api_server)
    return _HOME


@pytest.fixture(scope="session")
def airflow_app(airflow_home: Path) -> Iterator[Any]:
    """``airflow api-server`` without a server, with our plugin in it and logins on.

    To make it takes seconds.

    Here, since a session's fixture that another file imports is made anew for that file.
    """
    from airflow.api_fastapi.app import create_app, purge_cached_app

    settings = {
        "AUTH_MANAGER": "tests.unit.plugin.auth_manager.OneDagDenied",
        "SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "SIMPLE_AUTH_MANAGER_USERS": "admin:admin,vic:viewer",
        "SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(airflow_home / "passwords.json"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(f"AIRFLOW__CORE__{name}", value)
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "a secret of these tests " * 4)
        purge_cached_app()
        yield create_app(apps="core")
        purge_cached_app()


@pytest.fixture(autouse=True)
def _as_in_a_new_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """What one test leaves in this process, no other finds: whatever their order,
    each passes or fails alike.

    That is the environment, the supervisor that ``dag.test()`` leaves behind, what Airflow's log
    masks, who hears torch's steps, whether NVML hangs, loggers that commands and migrations set up,
    and the Variables of the metadata database, which serves many tests.
    """
    environment = dict(os.environ)
    yield
    _give_back_environment(environment)
    _forget_what_modules_hold()
    _give_back_loggers()
    if "airflow_home" in request.fixturenames:
        from airflow_provider_zeus.store.variables.airflow import AirflowVariables

        port = AirflowVariables()
        for key in port.keys("zeus-"):
            port.delete(key)


def _give_back_environment(before: dict[str, str]) -> None:
    for name in {*os.environ, *before} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


def _forget_what_modules_hold() -> None:
    """Of modules that are imported already alone: to import them here would slow each test."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    if hasattr(runner, "SUPERVISOR_COMMS"):
        del runner.SUPERVISOR_COMMS
    for copy in ("airflow.sdk._shared.secrets_masker", "airflow._shared.secrets_masker"):
        if copy in sys.modules:
            sys.modules[copy].reset_secrets_masker()
    library = sys.modules.get("airflow_provider_zeus.power.nvml.library")
    if library:
        library._Silence.why = ""
    listener = sys.modules.get("airflow_provider_zeus.training.torch_listener")
    if listener:
        for hearing in listener._hearings:  # of a training whose end was made to fail
            listener._end(hearing)


def _give_back_loggers() -> None:
    if logging.root.manager.disable:
        logging.disable(logging.NOTSET)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if not isinstance(logger, logging.Logger):
            continue
        if not name.startswith("airflow_provider_zeus"):
            continue
        logger.disabled = False
        logger.propagate = True
        if logger.level:  # to set one clears the caches of all loggers
            logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite run log without rows: copying it is quick, making its tables is not."""
    from airflow_provider_zeus.store.sql.store import SqlStore

    path = tmp_path_factory.mktemp("migrated") / "zeus.db"
    SqlStore(f"sqlite:///{path}", create=True).close()
    assert [each.name for each in path.parent.glob("zeus.db-*")] == [], "all of it is in the file"
    return path


@pytest.fixture
def nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A host with the fake driver and no GPU yet, seen by this process and its children alike."""
    from airflow_provider_zeus.power.nvml import library
    from tests import fake_nvml

    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    host = fake_nvml.FakeNvml(tmp_path / "nvml.state")
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setattr(library, "_initialise", functools.cache(library._initialise.__wrapped__))
    return host
