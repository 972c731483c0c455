"""The README: short, and its figures are those of the page that their command has written."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TEXT = " ".join(README.split())
CHOOSING = (ROOT / "docs" / "evidence" / "choosing.md").read_text()


def rows(title: str) -> list[dict[str, str]]:
    """The table of a section, by column."""
    section = CHOOSING.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_its_prose_is_read_in_a_screen_and_a_half() -> None:
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    prose = re.sub(
        r"!\[[^]]*\]\([^)]*\)|\]\([^)]*\)",
        " ",
        "\n".join(x for x in prose.splitlines() if x[:1] != "|"),
    )
    assert len(prose.split()) <= 800


def test_what_works_from_a_clone_comes_first_and_the_index_last() -> None:
    commands = re.findall(r"^(?:make|pip install|airflow) .*", README, re.M)
    assert [command.split("#")[0].strip() for command in commands[:2]] == ["make demo", "make test"]
    assert README.count("pip install airflow-provider-zeus") == 1
    assert "From the first release on: `pip install airflow-provider-zeus`" in TEXT


def test_every_function_is_called_alike() -> None:
    """``def train(run, …)`` everywhere."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "dags").glob("*.py")]
    odd = [page.name for page in pages if re.search(r"def train\(run\s*=", page.read_text())]
    assert odd == []


def test_each_page_says_first_whom_it_is_for() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    without = [
        page.name for page in pages if not re.match(r"# .+\n\nFor anyone who ", page.read_text())
    ]
    assert without == []


def test_what_the_package_costs_on_all_pairs() -> None:
    """Of all 24 pairs, and in brackets of the twelve on which nothing was tuned."""
    pairs = {row[""].strip("*"): row for row in rows("Over all pairs")}
    untuned = {row[""].strip("*"): row for row in rows("The pairs on which nothing was tuned")}
    for name, column in (
        ("default policy", "cost, all runs"),
        ("default policy", "cost, 10 runs"),
        ("zeus 0.16", "cost, all runs"),
    ):
        of_all, of_untuned = (found[name][column].partition(" ")[0] for found in (pairs, untuned))
        assert f"| {of_all} % ({of_untuned} %) |" in TEXT
    saved = pairs["default policy"]["cost, all runs"].partition(" ")[0]
    assert f"cost **{saved.removeprefix('-')} % less** than always training the default" in TEXT
    best = pairs["best in hindsight"]["cost, all runs"].partition(" ")[0]
    assert f"(the best in hindsight: {best} %)" in TEXT
    dearer, *_, of, count = pairs["default policy"]["dearer on"].replace(",", "").split()
    assert (of, count) == ("of", "24")
    assert f"on {dearer} of the {count} pairs it is still dearer" in TEXT


def test_what_the_package_costs_on_real_series() -> None:
    """The range over the series of each kind of default, of the column of the default policy."""
    costs: dict[str, list[int]] = {}
    for row in rows("Real retraining series"):
        found = re.match(r"\**([+-][\d.]+)", row["default policy"])
        assert found, row
        size = next(value for value in row.values() if value in ("small", "near-optimal", "large"))
        costs.setdefault(size, []).append(round(float(found[1])))
    for size, (first, last) in {
        "near-optimal": (min, max),
        "small": (max, min),
        "large": (min, max),
    }.items():
        assert f"| {first(costs[size]):+d} to {last(costs[size]):+d} % |" in TEXT
