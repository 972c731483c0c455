"""Files that others may put there: a link is never followed, and a pipe never waited for,
however late they come."""

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


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "result.json"
    place.write_text("{}")
    opened = os.open

    def replaced(path: Any, flags: int, *mode: int, **where: Any) -> int:
        place.unlink()
        os.mkfifo(place)
        assert flags & os.O_NONBLOCK, "nobody will ever write into it"
        return opened(path, flags, *mode, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", replaced)
        with pytest.raises(ValueError, match="not a plain file"):
            open_plain(place, os.O_RDONLY)
