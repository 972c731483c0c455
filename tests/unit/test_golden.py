"""Golden tables have no row that no test renders, and a test fails if its row differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import golden

TESTS = Path(golden.__file__).parents[1]
SURFACES = sorted(path.stem for path in golden.FOLDER.glob("*.txt"))


@pytest.fixture(scope="module")
def sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))


@pytest.mark.parametrize("surface", SURFACES)
def test_each_row_is_rendered_by_a_test(surface: str, sources: str) -> None:
    rows = golden.Table(surface).rows()
    assert f'Table("{surface}")' in sources
    assert [title for title in rows if f'"{title}"' not in sources] == []


def test_a_row_that_differs_or_is_missing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    monkeypatch.delenv("ZEUS_GOLDEN", raising=False)
    table = golden.Table("x")
    with pytest.raises(AssertionError, match="the row 'a' of"):
        table.check("a", "one\n\ntwo\n")
    monkeypatch.setenv("ZEUS_GOLDEN", "write")
    table.check("a", "one\n\ntwo\n")
    table.check("b", "three")
    monkeypatch.setenv("ZEUS_GOLDEN", "")

    table.check("a", "one\n\ntwo")
    table.check("b", "three")
    with pytest.raises(AssertionError, match="the row 'b' of"):
        table.check("b", "four")
    assert table.path.read_text() == "== a\none\n\ntwo\n\n== b\nthree\n"
