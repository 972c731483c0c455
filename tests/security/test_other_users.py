"""Other users of the host: what is made is private or a group's,
and what another user put there first does nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.power.factory import open_nvml
from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.store.pending import drain, pending_key, remember
from airflow_provider_zeus.store.sql import migrate
from airflow_provider_zeus.store.sql.backup import backup, restore
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.fake_nvml import FakeNvml
from tests.security.users import ALICE, BOB, GROUP, as_user, said
from tests.unit.store.store_kit import DictPort, began_alone, report, request

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run processes as other users"
)

GPU = "simulated-v100-shufflenet.gpu"

# Everything that this package makes on a host, in the folder named by the first argument.
MAKES_ALL = """
import os, sys
from pathlib import Path
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.power.limits.gpu_lock import GpuLock
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.training.attempt_dir import AttemptDir
from tests.unit.store.store_kit import began_alone, report, request
home = Path(sys.argv[1])
os.umask(int(sys.argv[2], 8))
state = home / "zeus"
lock = GpuLock(state, ["GPU-1"], how="share", wait_s=0.0)
attempt = AttemptDir(str(home / "attempts"))
trial = began_alone(9, opened_at=1.0)
remember(None, TrialKey("ti-9"), State.FAILED, report(), "d.train", trial=trial, state_dir=state)
store = SqlStore(f"sqlite:///{home / 'zeus.db'}", create=True)
store.ask(request(1))
with LimitControl(open_simulated("simulated:v100/shufflenet", state), state) as control:
    assert control.set_w(150.0)
    for path in [home / name for name in ("zeus", "attempts")] + sorted(home.rglob("*")):
        found = path.lstat()
        print(oct(found.st_mode), found.st_gid, path.relative_to(home))
"""

# A training with the plan of its environment; prints what it kept and how it ended.
TRAINS = """
import json, logging, os, sys
logging.basicConfig(level=logging.WARNING)
os.umask(0o022)
from airflow_provider_zeus.training.run import ZeusRun
def train(run):
    for epoch in run.epochs():
        for _ in range(20):
            run.step()
        run.report(acc=0.95)
    return run.batch_size
print("kept", ZeusRun.from_env().train(train))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may look into."""
    place = Path(tempfile.mkdtemp(prefix="zeus-users-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def folder(path: Path, mode: int, owner: int = 0, group: int = 0) -> Path:
    path.mkdir()
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


def plan(state_dir: Path | None, **spec: Any) -> str:
    from airflow_provider_zeus.model.job import ZeusJob
    from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
    from airflow_provider_zeus.training.protocol.plan import Plan

    values = {
        "batch_sizes": [256],
        "default_batch_size": 256,
        "target": "acc >= 0.9",
        "max_epochs": 3,
    }
    job = ZeusJob(**{**values, "device": "simulated:v100/shufflenet", **spec})  # type: ignore[arg-type]
    attempt = PlannedAttempt(batch_size=256, phase=Phase.INCUMBENT, why="known")
    made = Plan(
        job_id="d.train",
        ti_id="ti-1",
        number=1,
        first_attempt=1,
        spec=job.to_dict(),
        attempts=(attempt,),
        state_dir=str(state_dir) if state_dir else None,
    )
    return made.to_json()


def tell_lock(state_dir: Path, uid: int, **kwargs: Any) -> str:
    """What a training of that user learns of the GPU's lock."""
    code = (
        "import sys\nfrom airflow_provider_zeus.power.limits.gpu_lock import GpuLock\n"
        "print(GpuLock(sys.argv[1], ['GPU-1'], how='wait', wait_s=0.0).why_shared)"
    )
    return said(as_user(uid, code, state_dir, **kwargs))


# --- what is made


def test_everything_made_is_its_users_alone(place: Path) -> None:
    home = folder(place / "home", 0o755, ALICE, ALICE)
    lines = said(as_user(ALICE, MAKES_ALL, home, "000")).splitlines()
    modes = {name: int(mode, 8) for mode, _, name in (line.split(" ", 2) for line in lines)}
    assert {
        "zeus.db",
        "zeus.db-wal",
        "zeus.db-shm",
        "zeus.db.turn",
        "zeus/gpu-GPU-1.lock",
        f"zeus/{GPU}",
    } < set(modes)
    assert sum(name.startswith("zeus/limit-") for name in modes) == 1
    assert sum(name.startswith("zeus/zeus-untold-") for name in modes) == 1
    assert [name for name, mode in modes.items() if mode & 0o077] == []


def test_a_group_shares_what_is_made_in_its_folder(place: Path) -> None:
    home = folder(place / "home", 0o2770, ALICE, GROUP)
    place.chmod(0o755)
    for user in (ALICE, BOB):  # the second one uses what the first one made
        lines = said(as_user(user, MAKES_ALL, home, "022", groups=(GROUP,))).splitlines()
        for mode, gid, name in (line.split(" ", 2) for line in lines):
            bits = stat.S_IMODE(int(mode, 8))
            if name.startswith("attempts/") and name.endswith(".lock"):
                assert bits == 0o600, "a marker is its process's alone"
            else:
                assert (int(gid), bits) == (
                    GROUP,
                    0o2770 if stat.S_ISDIR(int(mode, 8)) else 0o660,
                ), name
    with closing(SqlStore(f"sqlite:///{home}/zeus.db")) as store:
        assert [trial.number for trial in store.trials("d.train")] == [1]


def test_a_folder_of_a_group_shares_nothing_that_the_option_does_not_name(place: Path) -> None:
    home = folder(place / "home", 0o2770, ALICE, GROUP)
    place.chmod(0o755)
    lines = said(
        as_user(ALICE, MAKES_ALL, home, "022", groups=(GROUP,), ZEUS_SHARED_GROUP="")
    ).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if int(line.split(" ", 2)[0], 8) & 0o077] == []


def test_the_option_makes_shared_folders_and_keeps_the_modes_of_those_that_are_there(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(private_files.SHARED_GROUP, str(GROUP))
    there = folder(place / "there", 0o750)
    settings = ZeusConfig(
        state_dir=place / "a" / "zeus",
        attempt_root=str(there),
        heartbeat_s=15.0,
        lease_s=90.0,
        cpu_watts=None,
        power_read_only=False,
        shared_group=str(GROUP),
    )
    settings.share_folders()
    made = settings.state_dir.stat()
    assert (stat.S_IMODE(made.st_mode), made.st_gid) == (0o2770, GROUP)
    assert stat.S_IMODE(there.stat().st_mode) == 0o750
    assert tell_lock(settings.state_dir, ALICE, groups=(GROUP,)) == ""
    assert tell_lock(settings.state_dir, BOB, groups=(GROUP,)) == ""
    assert "is not known" in tell_lock(settings.state_dir, BOB)


# --- two users of one host (run_as_user)


def test_a_training_of_another_user_goes_on_without_what_it_may_not_open(place: Path) -> None:
    home = folder(place / "home", 0o755, ALICE, ALICE)
    said(as_user(ALICE, MAKES_ALL, home, "022"))
    code = (
        TRAINS + "from airflow_provider_zeus.store.sql.store import SqlStore\nfrom"
        " airflow_provider_zeus.errors import StoreError\ntry:\n    SqlStore(sys.argv[1],"
        " create=True)\nexcept StoreError as error:\n    print(error)"
    )
    kept, error = said(
        as_user(BOB, code, f"sqlite:///{home}/zeus.db", ZEUS_PLAN=plan(home / "zeus"))
    ).split("\n", 1)
    assert kept == "kept 256"
    assert "shared_group" in error, "the error names the remedy"


def test_of_two_users_on_one_gpu_the_second_does_not_take_it_for_its_own(place: Path) -> None:
    state_dir = folder(place / "state", 0o1777)
    assert tell_lock(state_dir, ALICE) == ""
    why = tell_lock(state_dir, BOB)
    assert "is not known" in why
    assert "[zeus] shared_group" in why
    assert tell_lock(state_dir, ALICE) == "", "its own lock is not touched by that"


def test_a_gpu_whose_lock_cannot_be_opened_is_not_measured_and_gets_no_limit(
    nvml: FakeNvml, place: Path
) -> None:
    card = nvml.add()
    state_dir = folder(place / "state", 0o1777)
    lock = state_dir / f"gpu-{card.uuid.decode()}.lock"
    lock.touch()
    os.chown(lock, BOB, BOB)
    device = open_nvml(lock=partial(GpuLock, state_dir, how="wait", wait_s=0.0))
    assert (device.info.energy_source, device.energy_j(), device.limit_range()) == (
        None,
        None,
        None,
    )
    assert "is not known" in device.missing["energy_j"]
    with LimitControl(device, state_dir) as control:
        assert not control.set_w(150.0)
    assert nvml.sets == []
    device.close()


def test_a_lock_cannot_be_held_by_another_user(place: Path) -> None:
    state_dir = folder(place / "state", 0o1777)
    tell_lock(state_dir, ALICE)
    holds = "import fcntl, os, sys\nfcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    assert "PermissionError" in as_user(BOB, holds, state_dir / "gpu-GPU-1.lock").stderr


# --- users without an account or a home (containers)


@pytest.mark.parametrize("home", [{"HOME": "/"}, {"HOME": ""}, {"HOME": "/nowhere"}])
def test_any_uid_of_group_root_trains_and_has_a_lock(place: Path, home: dict[str, str]) -> None:
    temporary = folder(place / "tmp", 0o1777)
    environ = {"TMPDIR": str(temporary), **home}
    code = (
        TRAINS + "from airflow_provider_zeus.power.device import default_state_dir\nfrom"
        " airflow_provider_zeus.power.limits.gpu_lock import"
        " GpuLock\nprint(default_state_dir())\nprint('shared:', GpuLock(default_state_dir(),"
        " ['GPU-1'], how='wait', wait_s=0.0).why_shared)"
    )
    kept, state_dir, shared = said(
        as_user(ALICE, code, gid=0, ZEUS_PLAN=plan(None), **environ)
    ).split("\n")
    assert (kept, state_dir, shared) == ("kept 256", str(temporary / f"zeus-{ALICE}"), "shared:")
    assert stat.S_IMODE(Path(state_dir).stat().st_mode) == 0o700


def test_a_default_folder_that_another_user_made_is_not_used(place: Path) -> None:
    temporary = folder(place / "tmp", 0o1777)
    planted = folder(temporary / f"zeus-{ALICE}", 0o777, BOB, BOB)
    environ = {"TMPDIR": str(temporary)}
    done = as_user(ALICE, TRAINS, ZEUS_PLAN=plan(None), **environ)
    assert said(done) == "kept 256"
    why = tell_lock(planted, ALICE)
    assert "ZEUS_STATE_DIR" in why
    planted.chmod(0o2770)
    os.chown(planted, BOB, GROUP)
    assert "ZEUS_STATE_DIR" in tell_lock(planted, ALICE, groups=(GROUP,)), (
        "a group shares by the will of root alone"
    )
    assert list(planted.iterdir()) == []


# --- what another user put there first; this user is root here, who may open everything


@pytest.fixture
def open_to_all(place: Path) -> Path:
    return folder(place / "state", 0o1777)


@pytest.fixture
def victim(place: Path) -> Iterator[Path]:
    """A file of this user, which must stay as it is."""
    path = place / "victim"
    path.write_bytes(b"precious")
    yield path
    assert path.read_bytes() == b"precious"


def plant(link: Path, target: Path) -> None:
    link.symlink_to(target)
    os.lchown(link, BOB, BOB)


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_a_link_in_the_place_of_a_gpus_lock_leads_nowhere(
    open_to_all: Path, victim: Path, kind: str
) -> None:
    lock = open_to_all / "gpu-GPU-1.lock"
    plant(lock, victim) if kind == "symbolic" else os.link(victim, lock)
    taken = GpuLock(open_to_all, ["GPU-1"], how="share", wait_s=0.0)
    assert "is not known" in taken.why_shared
    taken.close()


def test_a_link_in_the_place_of_a_simulated_gpu_leads_nowhere(
    open_to_all: Path, victim: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    plant(open_to_all / GPU, place / "made")
    plant(open_to_all / f"{GPU}.{bytes(8).hex()}.new", victim)
    gpu = SimulatedGpu("v100", load="shufflenet", state_file=open_to_all / GPU)
    gpu.set_limit_w(150.0)
    gpu.on_step(256)
    assert not (place / "made").exists()


def planted_record(state_dir: Path, gpu: SimulatedGpu, owner: int) -> Path:
    """The record of a dead training of that user, which asks for 225 W."""
    gpu.set_limit_w(150.0)
    path = state_dir / f"limit-{owner}.json"
    document = {"restore": gpu.restore_record(), "found_w": 225.0, "set_w": [150.0]}
    os.close(record.create(str(path), document))
    os.chown(path, owner, owner)
    return path


def test_a_limit_record_of_another_user_is_not_served(open_to_all: Path, place: Path) -> None:
    gpu = SimulatedGpu("v100", load="shufflenet", state_file=place / GPU)
    planted = planted_record(open_to_all, gpu, BOB)
    assert record.restore_orphans(open_to_all) == 0
    assert gpu.limit_w() == 150.0
    assert planted.exists()
    planted_record(open_to_all, gpu, os.geteuid())
    assert record.restore_orphans(open_to_all) == 1
    assert gpu.limit_w() == 225.0


def test_a_cost_that_another_user_put_there_is_not_told(open_to_all: Path, place: Path) -> None:
    with closing(SqlStore(f"sqlite:///{place}/zeus.db", create=True)) as store:
        keep = partial(
            remember,
            None,
            TrialKey("ti-9"),
            State.FAILED,
            report(),
            "d.train",
            state_dir=open_to_all,
        )
        keep(trial=began_alone(9, opened_at=1.0))
        (kept,) = open_to_all.iterdir()
        os.chown(kept, BOB, BOB)
        assert drain(store, DictPort(), "d.train", state_dir=open_to_all) == 0
        assert store.trials("d.train") == []
        os.chown(kept, 0, 0)
        assert drain(store, DictPort(), "d.train", state_dir=open_to_all) == 1


def test_a_link_in_the_place_of_a_cost_leads_nowhere(open_to_all: Path, victim: Path) -> None:
    name = pending_key(TrialKey("ti-9")).replace(":", "-")
    plant(open_to_all / f"{name}.tmp", victim)
    trial = began_alone(9, opened_at=1.0)
    remember(
        None,
        TrialKey("ti-9"),
        State.FAILED,
        report(),
        "d.train",
        trial=trial,
        state_dir=open_to_all,
    )
    kept = open_to_all / f"{name}.json"
    assert json.loads(kept.read_text())["job_id"] == "d.train"
    assert not kept.is_symlink()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_link_in_the_place_of_the_trial_log_is_not_followed(
    open_to_all: Path, victim: Path, suffix: str
) -> None:
    database = open_to_all / "zeus.db"
    if suffix:
        SqlStore(f"sqlite:///{database}", create=True).close()
    plant(open_to_all / f"zeus.db{suffix}", victim)
    with pytest.raises(StoreError, match=f"symbolic link that user {BOB} made"):
        SqlStore(f"sqlite:///{database}", create=True).ask(request(1))


def test_no_backup_is_put_back_through_the_link_of_another_user(
    open_to_all: Path, victim: Path, place: Path
) -> None:
    log = place / "zeus.db"
    SqlStore(f"sqlite:///{log}", create=True).close()
    backup(log, place / "log.backup")
    plant(open_to_all / "zeus.db", victim)
    with pytest.raises(StoreError, match=f"symbolic link that user {BOB} made"):
        restore(place / "log.backup", open_to_all / "zeus.db")


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
def test_a_file_in_the_place_of_the_trial_log_is_not_read_where_every_user_may_write(
    open_to_all: Path, suffix: str
) -> None:
    database = open_to_all / "zeus.db"
    SqlStore(f"sqlite:///{database}", create=True).close()
    planted = open_to_all / f"zeus.db{suffix}"
    planted.touch()
    os.chown(planted, BOB, BOB)
    with pytest.raises(StoreError, match=f"file that user {BOB} made"):
        SqlStore(f"sqlite:///{database}").ask(request(1))
    open_to_all.chmod(0o770)  # whom the owner of the folder lets in may have made it
    os.chown(planted, 0, 0)
    planted.unlink() if suffix else None
    SqlStore(f"sqlite:///{database}").ask(request(1))


def test_no_folder_is_made_behind_the_link_of_another_user(open_to_all: Path, place: Path) -> None:
    target = folder(place / "target", 0o755)
    plant(open_to_all / "link", target)
    with pytest.raises(PermissionError):
        private_files.make_folder(open_to_all / "link" / "state")
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("kind", ["link to a folder", "hard link to a file"])
def test_a_member_who_swaps_a_folder_that_is_being_shared_opens_no_other_one(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv(private_files.SHARED_GROUP, str(GROUP))
    home = folder(place / "home", 0o2770, 0, GROUP)
    closed = place / "closed"
    if kind == "link to a folder":
        folder(closed, 0o700)
    else:
        closed.touch(0o700)
    made = os.mkdir

    def swapped(path: Any, mode: int) -> None:
        made(path, mode)
        os.rmdir(path)
        if kind == "link to a folder":
            plant(Path(path), closed)
        else:
            os.link(closed, path)

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(OSError, match="state"):
        private_files.make_folder(home / "state")
    assert (stat.S_IMODE(closed.stat().st_mode), closed.stat().st_gid) == (0o700, 0)


def test_a_lock_that_is_kept_for_ever_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_S", 0.2)
    with (place / "zeus.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"zeus\.db\.lock"):
            SqlStore(f"sqlite:///{place}/zeus.db", create=True)


def test_no_trial_log_is_made_where_a_link_leads(open_to_all: Path, place: Path) -> None:
    plant(open_to_all / "zeus.db", place / "made")
    with pytest.raises(StoreError):
        SqlStore(f"sqlite:///{open_to_all}/zeus.db", create=True).ask(request(1))
    assert not (place / "made").exists()


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_lies_in_the_place_of_the_turn_costs_no_trial(
    open_to_all: Path, place: Path, kind: str
) -> None:
    turn = open_to_all / "zeus.db.turn"
    os.mkfifo(turn) if kind == "pipe" else plant(turn, place / "made")
    with closing(SqlStore(f"sqlite:///{open_to_all}/zeus.db", create=True)) as store:
        assert store.ask(request(1)).trial.number == 1
    assert not (place / "made").exists()
