"""Files that others may put there: a link is never followed, however late it comes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.untrusted_files import open_plain


def test_a_link_that_comes_between_the_look_and_the_opening_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "result.json"
    victim = tmp_path / "victim"
    look = os.stat

    def look_and_link(path: Any, **how: Any) -> os.stat_result:
        try:
            return look(path, **how)
        except FileNotFoundError:
            if path == place:
                place.symlink_to(victim)
            raise

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", look_and_link)
        with pytest.raises(OSError, match="symbolic link"):
            open_plain(place, os.O_WRONLY | os.O_CREAT)
    assert place.is_symlink()
    assert not victim.exists()
