"""Three jobs side by side, some recurrences killed: nothing piles up. ``python -m benchmarks.soak`` has 500 of them."""

from __future__ import annotations

import pytest

from benchmarks import soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_sixty_recurrences_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    status = soak.main(["--recurrences", "60", "--seed", "1"])
    said = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{said}")
    assert status == 0, said
    assert said.count("| end | 20 |") == 3


def test_what_piles_up_is_seen() -> None:
    start = {"done": 4, "mib": 200.0, "files": 15, "threads": 3, "children": 0}
    assert list(soak._piled_up("one", [start, {**start, "done": 20}])) == []
    for worse in ({"mib": 213.0}, {"files": 30}, {"threads": 9}, {"children": 1}):
        assert list(soak._piled_up("one", [start, {**start, "done": 20, **worse}])), worse
