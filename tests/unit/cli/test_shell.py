"""What commands know of who runs them, and the tables that they print."""

from __future__ import annotations

import getpass
import os

import pytest

from airflow_provider_zeus.cli.shell import os_user, show


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_has_a_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown() -> str:
        raise error("no such user")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert os_user() == f"user {os.getuid()}"


@pytest.mark.parametrize("plain", [True, False])
def test_a_control_character_in_a_table_is_shown_by_its_number(
    plain: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show([{"job": "a\x1b[31m\n"}], empty="", plain=plain)
    out = capsys.readouterr().out
    assert "a\\x1b[31m\\n" in out
    assert out.replace("\n", "").isprintable()
