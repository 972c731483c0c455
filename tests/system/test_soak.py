"""Three jobs side by side, some recurrences killed: nothing piles up.

``python -m tests.system.soak`` runs 500.
"""

from __future__ import annotations

import pytest

from tests.system import soak


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_recurrences_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    status = soak.main(["--recurrences", "24", "--seed", "1"])
    said = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{said}")
    assert status == 0, said
    assert said.count(" | 8 | ") >= 3


def test_what_piles_up_is_seen() -> None:
    start, middle = (
        {"done": n, "mib": 200.0, "files": 15, "threads": 3, "children": 0} for n in (4, 12)
    )
    assert list(soak._piled_up("one", [start, middle, {**start, "done": 20}])) == []
    for worse in ({"files": 30}, {"threads": 9}, {"children": 1}):
        assert list(soak._piled_up("one", [start, middle, {**start, "done": 20, **worse}])), worse


@pytest.mark.parametrize(
    ("mib", "leaks"),
    [
        ((200, 203, 206, 209, 212), True),
        ((200, 202, 204, 206, 208), False),
        ((200, 208, 208, 216, 216), False),
        ((200, 200, 240, 240, 240), True),
    ],
)
def test_what_grows_in_each_part_leaks_and_so_does_what_is_much(
    mib: tuple[float, ...], leaks: bool
) -> None:
    figures = [
        {"done": 4 * part, "mib": float(each), "files": 15, "threads": 3, "children": 0}
        for part, each in enumerate(mib, start=1)
    ]
    assert bool(list(soak._piled_up("one", figures))) == leaks
