"""What commands know of who runs them."""

from __future__ import annotations

import getpass
import os

import pytest

from airflow_provider_zeus.cli.shell import os_user


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_has_a_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def unknown() -> str:
        raise error("no such user")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert os_user() == f"user {os.getuid()}"
