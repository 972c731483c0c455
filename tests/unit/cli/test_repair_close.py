"""``airflow zeus repair --close``: closes one trial permanently, and does nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.utils.platform import getuser as airflows_own

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import report, request


@pytest.fixture(autouse=True)
def ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")


def test_an_open_trial_is_closed_before_its_lease_is_over(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    key = store.ask(request(2)).trial.key
    done = zeus("repair", "--close", "d.train", "2.1", "--yes")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Closed attempt 2.1 of d.train (DAG run run2, ")
    assert "by ann" in done.out
    trial = store.trials("d.train")[-1]
    assert trial.state is State.ABANDONED
    assert "by ann" in (trial.reason or "")
    assert store.heartbeat(key, report(energy_j=70.0)) == trial.reason
    again = store.trials("d.train")[-1]
    assert (again.state, again.observation.energy_j) == (State.ABANDONED, 70.0)


def test_without_yes_it_asks(zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.ask(request(1))
    for answer, state in (("n", State.RUNNING), ("y", State.ABANDONED)):
        monkeypatch.setattr("builtins.input", lambda _question, answer=answer: answer)
        assert zeus("repair", "--close", "d.train", "1.1").status == (0 if answer == "y" else 1)
        assert store.trials("d.train")[0].state is state


def test_what_cannot_be_closed_is_named(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    for arguments, said in (
        (("d.trian", "1.1"), "JOB = 'd.trian': no such job"),
        (
            ("d.train", "2.1"),
            "ATTEMPT = '2.1': d.train has no such attempt that can be read. Its newest one is 1.1",
        ),
        (("d.train", "first"), "ATTEMPT = 'first': d.train has no such attempt"),
        (("d.train", "0"), "ATTEMPT = '0': d.train has no such attempt"),
        (("d.train", "1.1"), "ATTEMPT = '1.1': it is closed already (reached target)"),
    ):
        done = zeus("repair", "--close", *arguments, "--yes")
        assert (done.status, done.out) == (1, "")
        assert said in done.err
    assert store.trials("d.train")[0].state is State.CONVERGED


def test_a_user_without_a_name_is_a_number(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_name() -> str:
        raise KeyError("uid not found")

    airflows_own()  # which asks once
    monkeypatch.setattr("getpass.getuser", no_name)
    store.ask(request(1))
    assert zeus("repair", "--close", "d.train", "1.1", "-y").status == 0
    assert (store.trials("d.train")[0].reason or "").startswith("closed by hand by user ")


def test_no_log_no_trial(zeus: Zeus, home: Path) -> None:
    done = zeus("repair", "--close", "d.train", "1.1", "-y")
    assert done.status == 1
    assert "no run log yet" in done.err
    assert not (home / "zeus.db").exists()


def test_it_does_nothing_else(zeus: Zeus, store: Store) -> None:
    store.ask(request(1))
    store.ask(request(1, job_id="expired", ti_id="expired", lease_s=-1.0))
    done = zeus("repair", "--close", "d.train", "1.1", "--yes")
    assert done.out.count("\n") == 1
    assert store.trials("expired")[0].closed_at is None


def test_a_job_without_a_trial_is_no_answer(zeus: Zeus) -> None:
    assert zeus("repair", "--close", "d.train").status == 2
