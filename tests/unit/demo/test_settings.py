"""What the demo's environment variables may hold, and what Airflow gets to see."""

from __future__ import annotations

import pytest
from weather import slices

from demo.settings import HOME, TAB, WEEKS, DemoError, Options, airflow_env


def test_defaults() -> None:
    assert Options.read({}, terminal=True) == Options(slices=20, port=8080, stay=True)
    assert len(slices.all_keys()) == WEEKS


@pytest.mark.parametrize(
    ("env", "terminal", "stay"),
    [
        ({}, False, False),
        ({"DEMO_EXIT": "1"}, True, False),
        ({"DEMO_EXIT": "0"}, True, True),
        ({}, True, True),
    ],
)
def test_it_stays_up_in_a_terminal_only_and_not_when_told(
    env: dict[str, str], terminal: bool, stay: bool
) -> None:
    assert Options.read(env, terminal=terminal).stay is stay


@pytest.mark.parametrize("text", ["0", "41", "-1", "twelve", "1.5"])
def test_a_bad_number_of_slices_is_named_with_its_range(text: str) -> None:
    with pytest.raises(DemoError, match=rf"DEMO_SLICES={text}: .* from 1 to 40"):
        Options.read({"DEMO_SLICES": text}, terminal=True)


def test_airflow_hears_on_loopback_and_of_nobody_elses_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://somebody/elses")
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgres://somebody/elses")
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    env = airflow_env(8123)
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8123/execution/"
    assert env["AIRFLOW_HOME"] == str(HOME)
    assert "somebody" not in "".join(env.values())
    assert "_AIRFLOW_PROCESS_CONTEXT" not in env


def test_the_address_shown_at_the_end_is_the_tab_s() -> None:
    from airflow_provider_zeus.plugin import DAG_ROUTE

    assert f"plugin/{DAG_ROUTE}" == TAB
