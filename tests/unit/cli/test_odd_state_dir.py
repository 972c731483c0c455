"""Rubbish in ``[zeus] state_dir``: doctor and repair name it, leave it alone,
and do the rest of their work.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.power.limits import record
from airflow_provider_zeus.power.simulated.gpu import open_simulated
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.store import Store
from tests.rubbish import EVERYTHING
from tests.unit.cli.conftest import Zeus
from tests.unit.cli.test_doctor import findings
from tests.unit.store.store_kit import DictPort, report, request

NAMES = ["limit-bad.json", "zeus-untold-bad-1.json"]


@pytest.fixture(params=EVERYTHING)
def rubbish(request: pytest.FixtureRequest, home: Path) -> list[Path]:
    """Odd things under the names of a limit record and of a kept cost."""
    state_dir = home / "state"
    state_dir.mkdir()
    made = [state_dir / name for name in NAMES]
    for path in made:
        EVERYTHING[request.param](path)
    return made


def test_doctor_names_it(zeus: Zeus, rubbish: list[Path]) -> None:
    found = findings(zeus)
    assert found["state_dir"].status == "warning"
    assert "limit-bad.json" in found["state_dir"].finding
    assert found["pending costs"].status == "warning"
    assert all(os.path.lexists(path) for path in rubbish)


def test_repair_names_it_and_does_the_rest(
    zeus: Zeus, store: Store, rubbish: list[Path], home: Path
) -> None:
    gpu = open_simulated("simulated:v100/shufflenet", home / "state")
    left = {"restore": gpu.restore_record(), "found_w": 225.0, "set_w": [150.0]}
    os.close(record.create(str(home / "state" / "limit-dead.json"), left))
    gpu.set_limit_w(150.0)
    key = store.ask(request(1, lease_s=-1.0)).trial.key
    down = DictPort()
    down.down = True
    remember(down, key, State.CONVERGED, report(), "d.train", state_dir=home / "state")
    done = zeus("repair")
    assert gpu.limit_w() == 225.0
    assert open_store().trials("d.train")[0].state is State.CONVERGED
    assert done.status == 1, "the kept cost that cannot be read is left"
    assert f"left: file {home}/state/zeus-untold-bad-1.json" in done.out
    assert "limit-bad.json: " in done.out
    assert all(os.path.lexists(path) for path in rubbish)


def test_names_that_are_no_text_are_escaped(zeus: Zeus, store: Store, home: Path) -> None:
    (home / "state").mkdir()
    for name in (b"limit-\xff.json", b"zeus-untold-\xff.json"):
        Path(os.fsdecode(os.fsencode(home / "state") + b"/" + name)).touch()
    assert "limit-\\xff.json" in zeus("doctor").out.encode("utf-8").decode()
    assert "zeus-untold-\\xff.json" in zeus("repair").out.encode("utf-8").decode()
