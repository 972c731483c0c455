"""``benchmarks.style`` counts what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.style import main, style_of


def write(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = folder / f"{name.replace('__DOT__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_functions_importers_and_circles_are_counted(tmp_path: Path) -> None:
    package = write(
        tmp_path / "house",
        __init__="",
        one="from house import two\ndef a():\n    def inner():\n        pass\n    return inner\n",
        two="def b():\n    import house.one\n    return house.one\n",
        three="from .two import b\nclass C:\n    def method(self):\n        return b\n",
        room__DOT____init__="from ..three import C\n",
        room__DOT__four="from . import five\n",
        room__DOT__five="",
    )
    style = style_of(package)
    assert (style.modules, style.functions) == (7, 4)
    assert style.circles == 2, "one and two import each other"
    assert style.one_importer == 3, "one by two, three by room, five by four"
    assert (style.function_most, style.function_median) == (4, 2.5)
    assert style.per_1000_code == pytest.approx(1000 * 4 / 14)
    assert style.import_share == pytest.approx(5 / 14)


def test_code_is_what_is_neither_blank_nor_comment_nor_docstring(tmp_path: Path) -> None:
    text = '''
"""A module."""

A, b = 1, 2  # one constant
c = "
"  # none
class D:
    """A class
    of two fields."""

    e: int = 1
    f: int
    G = 3
'''.replace('"\n"', '"""\n"""')
    style = style_of(write(tmp_path / "house", one=text))
    assert (style.code, style.statements) == (7, 8)
    assert (style.constants_per_1000, style.defaults) == (pytest.approx(1000 / 7), 1)


def test_tests_are_left_out(tmp_path: Path) -> None:
    package = write(tmp_path / "house", one="x = 1\n", tests__DOT__two="def f(): pass\n")
    assert (style_of(package).modules, style_of(package).functions) == (1, 0)


def test_a_folder_without_modules_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        style_of(tmp_path)


@pytest.mark.nightly
def test_the_command_shows_this_package_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("this package", "optuna 5.0.0", "astronomer-cosmos", "zeus 0.16.0"))
    counts = re.findall(r": ([\d,]+) functions in (\d+) files entered", shown)
    assert len(counts) == 2
    assert all(int(functions.replace(",", "")) > int(files) > 20 for functions, files in counts)
    main(["--rooms"])
    assert {"model", "optimizer", "training", "store"} <= {
        line.split("|")[1].strip() for line in capsys.readouterr().out.split("\n")[2:-1]
    }
