"""``airflow zeus doctor``: what each check says of what is really there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.cli import checks_host, doctor
from airflow_provider_zeus.cli.finding import Finding
from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.model.trial import DeviceInfo, State
from airflow_provider_zeus.power.device import LimitRange, NoneDevice
from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.schema import HEAD
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.fake_nvml import FakeNvml
from tests.golden import Table
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.power.limits.test_sidecar import Running
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import report, request

CHECKS = ["versions", "configuration", "device", "energy", "permission"]
CHECKS += ["state_dir", "store", "schema", "runs", "executor", "pending costs"]
CHECKS += ["measure", "refused DAGs", "factors"]


def findings(zeus: Zeus, *arguments: str) -> dict[str, Finding]:
    return {f["check"]: Finding(**f) for f in json.loads(zeus("doctor", "--json", *arguments).out)}


def check(situation: str, finding: Finding, folder: Path | None = None) -> None:
    """What people read of one finding is a row of the table."""
    text = f"{finding.status}: {finding.finding}\n-> {finding.remedy or 'nothing to do'}"
    Table("doctor").check(situation, text.replace(str(folder), "FOLDER"))


def test_every_check_in_order_and_nothing_is_changed(zeus: Zeus, home: Path) -> None:
    done = zeus("doctor", "--json")
    found = [Finding(**f) for f in json.loads(done.out)]
    assert [f.check for f in found] == CHECKS
    assert done.status == 0
    assert {f.status for f in found} <= {"ok", "warning"}
    assert all(f.remedy for f in found if f.status == "warning")
    assert not any("\n" in f.finding for f in found)
    assert list(home.iterdir()) == []


@pytest.fixture
def never_started(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``airflow zeus ...`` in a process of its own, whose Airflow has never been started."""
    new = tmp_path / "new"
    new.mkdir()
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW__DATABASE", "_AIRFLOW"))
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys; from airflow.__main__ import main; sys.argv ="
            f" {['airflow', 'zeus', *arguments]!r}; main()"
        )
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "AIRFLOW_HOME": str(new)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.slow
def test_before_the_first_migration_it_says_that_alone(
    never_started: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = never_started("doctor", "--json")
    found = {f["check"]: Finding(**f) for f in json.loads(done.stdout)}
    assert done.returncode == 1
    assert [f.check for f in found.values() if f.status == "error"] == ["airflow"]
    assert "lacks the tables" in found["airflow"].finding
    assert "airflow db migrate" in (found["airflow"].remedy or "")
    undecided = {f.check for f in found.values() if f.status == "undecided"}
    assert undecided == {"store", "schema", "runs", "pending costs", "refused DAGs", "factors"}
    assert found["executor"].status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("command", [("runs", "d.train"), ("repair",)])
def test_before_the_first_migration_other_commands_say_so_too(
    never_started: Callable[..., subprocess.CompletedProcess[str]], command: tuple[str, ...]
) -> None:
    done = never_started(*command)
    assert done.returncode == 1
    assert "lacks the tables of this version of Airflow: run 'airflow db migrate'" in done.stderr
    assert "cannot be looked up" not in done.stderr


def test_people_read_a_line_per_check_and_its_remedy(zeus: Zeus, home: Path) -> None:
    lines = zeus("doctor").out.splitlines()
    assert lines[0].startswith("OK       versions       Airflow 3.")
    assert [line.split()[1] for line in lines if not line.startswith(" ")][:-1] == [
        c.split()[0] for c in CHECKS
    ]
    assert lines[-1].startswith("14 checks: ")
    assert lines[-1].endswith("0 errors.")


@pytest.mark.parametrize(
    ("airflow", "status"),
    [
        ("3.2.2", "ok"),
        ("3.3.2", "ok"),
        ("3.4.0b2", "ok"),
        ("3.4.0", "warning"),
        ("3.1.8", "error"),
        ("4.0", "error"),
    ],
)
def test_versions_of_airflow(airflow: str, status: str) -> None:
    assert doctor.versions(airflow).status == status


def test_what_an_energy_counter_does(tmp_path: Path) -> None:
    gpu = open_simulated("simulated:v100/shufflenet", tmp_path)
    gpu.on_step(1000)
    moving = checks_host.energy(gpu, lambda _: [gpu.on_step(1000) for _ in range(10)])
    assert moving.status == "ok"
    assert moving.finding.startswith("simulated works: ")
    waited: list[float] = []
    check("an energy counter stands still", checks_host.energy(gpu, waited.append))
    assert sum(waited) == pytest.approx(1.0)
    check("nothing has an energy counter", checks_host.energy(NoneDevice(), waited.append))


def test_what_a_device_is(tmp_path: Path) -> None:
    simulated = open_simulated("simulated:v100/shufflenet", tmp_path)
    check("a simulated device", checks_host.device(simulated))
    none = NoneDevice(why="no source of energy. no libnvidia-ml.so; set [zeus] cpu_watts")
    finding = checks_host.device(none)
    model = str(none.info.model)  # of this host
    check("no device", replace(finding, finding=finding.finding.replace(model, "CPU")))


def gpu(**values: Any) -> Any:
    """A GPU as NVML shows one; its setter must never be called."""

    def refuse(limit_w: float) -> None:
        raise AssertionError("a limit was set")

    info = DeviceInfo(model="NVIDIA H200", energy_source="nvml_counter", max_power_w=700.0)
    given = {
        "info": info,
        "uuid": "GPU-1",
        "missing": {},
        "limit_range": lambda: LimitRange(min_w=200.0, max_w=700.0),
    }
    return SimpleNamespace(**{**given, "set_limit_w": refuse, **values})


def test_a_gpu_whose_limits_may_not_be_set() -> None:
    shared = gpu(limit_range=lambda: None, missing={"limit_range": "shared with pid 7"})
    check("a shared GPU", checks_host.device(shared))
    check("who may set the limits of a shared GPU", checks_host.permission(shared, euid=1000))


@pytest.mark.parametrize(
    ("euid", "caps", "status"),
    [
        (0, "0000000000000000", "ok"),
        (1000, "0000000000200000", "ok"),
        (1000, "000001ffffdfffff", "warning"),  # every capability but CAP_SYS_ADMIN
        (1000, "0000000000000000", "warning"),
        (1000, "", "warning"),
    ],
)
def test_who_may_set_limits(tmp_path: Path, euid: int, caps: str, status: str) -> None:
    path = tmp_path / "status"
    path.write_text(f"Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{caps}\n")
    found = checks_host.permission(gpu(), euid=euid, status=path)
    assert found.status == status
    assert ("mode='measure'" in (found.remedy or "")) is (status == "warning")
    for way in (
        "this user itself: ",
        "the sidecar at /run/zeus/power.sock: no",
        "zeusd at /run/zeusd/zeusd.sock: no",
    ):
        assert way in found.finding
    assert checks_host.permission(gpu(), euid=1000, status=tmp_path / "nowhere").status == "warning"


@pytest.mark.parametrize("kind", ["", "zeusd:"])
def test_helpers_that_set_limits_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "power.sock"
    path.touch()
    asked: list[str] = []
    if kind:
        ways = {"environ": {"ZEUSD_SOCK_PATH": str(path)}}
    else:
        monkeypatch.setattr(checks_host, "SIDECAR", str(path))
        ways = {"environ": {}}
    here = {
        **ways,
        "euid": 1000,
        "status": tmp_path / "no",
        "ask": lambda at, uuids: asked.append(at),
    }
    found = checks_host.permission(gpu(), **here)
    assert (found.status, found.remedy) == ("warning", f"set [zeus] power_socket = {kind}{path}")
    assert asked == [f"{kind}{path}"]
    found = checks_host.permission(gpu(), f"{kind}{path}", **here)
    assert found.status == "ok"
    assert f"{path}, as [zeus] power_socket" in found.finding


def test_a_helper_that_will_not_is_named_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "s").touch()

    def refuse(at: str, uuids: list[str]) -> None:
        raise DeviceError("GPU-1 not served")

    found = checks_host.permission(gpu(), str(tmp_path / "s"), euid=0, ask=refuse)
    assert found.status == "warning"
    assert "no, GPU-1 not served" in found.finding
    assert "power_socket empty" in str(found.remedy)


def test_on_a_host_with_a_gpu_and_a_sidecar(
    zeus: Zeus, nvml: FakeNvml, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add(may_set=2)
    sidecar = Running(home)
    monkeypatch.setenv("AIRFLOW__ZEUS__POWER_SOCKET", str(sidecar.socket))
    try:
        found = findings(zeus)["permission"]
        assert found.status == "ok"
        assert f"the sidecar at {sidecar.socket}: yes" in found.finding
        sidecar.end()
        found = findings(zeus)["permission"]
        assert found.status == "warning"
        assert f"the sidecar at {sidecar.socket}: no, no socket there" in found.finding
    finally:
        sidecar.process.kill()
        sidecar.process.communicate()
    assert nvml.sets == []


def test_orphaned_limit_records_are_named_and_left(zeus: Zeus, home: Path) -> None:
    state_dir = home / "state"
    state_dir.mkdir()
    written = {"found_w": 250.0, "set_w": [150.0]}
    held = record.create(str(state_dir / "limit-held.json"), written)
    assert findings(zeus)["state_dir"].status == "ok"
    os.close(record.create(str(state_dir / "limit-dead.json"), written))
    found = findings(zeus)["state_dir"]
    assert found.status == "warning"
    assert "limit-dead.json" in found.finding
    assert "limit-held.json" not in found.finding
    assert found.remedy is not None
    assert "airflow zeus repair" in found.remedy
    assert len(list(state_dir.iterdir())) == 2
    os.close(held)


def test_a_limit_record_with_an_odd_name_is_named_readably(tmp_path: Path) -> None:
    os.close(
        record.create(str(tmp_path / "limit-\x1b[2J.json"), {"found_w": 250.0, "set_w": [150.0]})
    )
    (tmp_path / "limit-\x1b[3J.json").write_text("{")
    assert checks_host.orphans(tmp_path) == (["limit-\\x1b[2J.json"], ["limit-\\x1b[3J.json"])


def test_a_state_folder_that_cannot_be_written(zeus: Zeus, home: Path) -> None:
    (home / "state").write_text("a file")
    done = zeus("doctor")
    assert done.status == 1
    assert "is not a folder" in done.out


def test_a_configuration_that_cannot_work(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__LEASE_S", "5")
    found = findings(zeus)
    assert found["configuration"].status == "error"
    assert "lease_s = 5.0" in found["configuration"].finding
    assert list(found) == CHECKS


def test_an_estimate_is_named_as_one(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", "10")
    found = findings(zeus)
    assert "energy from estimate" in found["device"].finding
    assert found["energy"].finding.startswith("estimate works")


# --- the store


def test_a_store_that_is_there(zeus: Zeus, store: Store, home: Path) -> None:
    found = findings(zeus)
    assert found["store"] == Finding("store", "ok", f"sqlite:{home}/zeus.db can be reached")
    assert found["schema"] == Finding("schema", "ok", f"{HEAD}, up to date")


@pytest.mark.parametrize("version", ["9999", "0000"])
def test_tables_of_another_version(zeus: Zeus, store: Store, home: Path, version: str) -> None:
    write_version(home, version)
    found = findings(zeus)["schema"]
    assert (found.status, found.finding) == ("error", f"{version}; this version knows {HEAD} alone")
    assert "export it with that version" in str(found.remedy)


def write_version(home: Path, version: str) -> None:
    import sqlite3

    from airflow_provider_zeus.store.sql.schema import VERSION_TABLE

    with sqlite3.connect(home / "zeus.db") as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", [version])
    connection.close()


def test_a_file_on_other_hosts_is_an_error(
    zeus: Zeus, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    found = findings(zeus)
    assert [found[c].status for c in ("store", "schema", "executor")] == ["error"] * 3
    assert "no Connection 'zeus_default'" in found["store"].finding
    empty = home / "empty.db"
    empty.touch()
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(empty)})
    )
    found = findings(zeus)
    assert [found[c].status for c in ("store", "schema", "executor")] == ["ok", "error", "error"]
    assert "airflow zeus db upgrade" in str(found["schema"].remedy)
    assert "its own SQLite file" in found["executor"].finding


def test_the_store_in_variables(zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_LOGS", '{"conn_type": "zeus", "extra": {"store": "variable"}}')
    found = findings(zeus, "--conn-id", "logs")
    assert [found[c].status for c in ("store", "schema", "executor")] == ["ok"] * 3
    assert "Airflow Variables" in found["store"].finding


def test_a_database_that_cannot_be_reached(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://u:s3cr3t@127.0.0.1:9/zeus")
    done = zeus("doctor")
    assert done.status == 1
    assert "s3cr3t" not in done.out + done.err
    assert "postgresql://127.0.0.1:9/***" in done.out, (
        "what stands after the host may be a password"
    )


def test_untold_costs_wait(zeus: Zeus, store: Store) -> None:
    key = store.ask(request(1)).trial.key
    remember(AirflowVariables(), key, State.CONVERGED, report(), "d.train")
    found = findings(zeus)["pending costs"]
    assert found.status == "warning"
    assert found.finding.endswith(": Variable zeus-untold:ti-1:1")
    zeus("repair")
    assert findings(zeus)["pending costs"].status == "ok"


def test_a_check_that_fails_is_a_finding_too(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Finding:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "executor", fails)
    found = findings(zeus)
    assert found["executor"].status == "error"
    assert "RuntimeError: boom" in found["executor"].finding
    assert list(found) == CHECKS


def test_trials_that_cannot_be_read_are_named(zeus: Zeus, store: Store, home: Path) -> None:
    for n in (1, 2, 3):
        recur(store, n)
    assert findings(zeus)["runs"] == Finding("runs", "ok", "3 attempts, all can be read")
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET spec = '{' WHERE number = 2")
    found = findings(zeus)["runs"]
    assert found.status == "warning"
    assert "backup" in str(found.remedy)
    assert found.finding.startswith("1 of 3 ")
    assert ": d.train/2: spec " in found.finding
    assert zeus("doctor").status == 0


def test_damage_in_variables_is_named_too(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT",
        json.dumps({"conn_type": "zeus", "extra": {"store": "variable"}}),
    )
    variables = open_store(overlap_possible=False)
    for n in (1, 2):
        recur(variables, n)
    port = AirflowVariables()
    log = json.loads(port.get("zeus-log:d.train") or "")
    log["trials"][0]["decision"] = 7
    port.set("zeus-log:d.train", json.dumps(log))
    assert "1 of 2 attempts cannot be read" in findings(zeus)["runs"].finding
