"""Which tasks ``[zeus] measure`` names."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.task_patterns import TaskPatterns, fits

TEXT = "tag:zeus, sales_*, reports.build, !sales_daily.wait_*"
NAMES = st.text("abc_.-", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("dag_id", "task_id", "tags", "is_named"),
    [
        ("any", "task", ["zeus"], True),
        ("any", "task", ["Zeus"], False),
        ("any", "task", [], False),
        ("sales_weekly", "load", [], True),
        ("sales_daily", "load", [], True),
        ("sales_daily", "wait_for_file", ["zeus"], False),
        ("reports", "build", [], True),
        ("reports", "send", [], False),
    ],
)
def test_dags_tasks_and_tags_are_named_and_left_out(
    dag_id: str, task_id: str, tags: list[str], is_named: bool
) -> None:
    assert TaskPatterns.parse(TEXT).name(dag_id, task_id, tags) is is_named


@pytest.mark.parametrize(
    ("pattern", "tag", "is_named"),
    [
        ("tag:[prod]", "[prod]", True),
        ("tag:[prod]", "p", False),
        ("tag:why?", "why?", True),
        ("tag:why?", "whyx", False),
        ("tag:team: sales", "team: sales", True),
        ("tag:a*b*c", "a, b, c", True),
        ("tag:a*b*c", "acb", False),
        ("tag:ab*ba", "aba", False),
        ("tag:ab*ba", "abba", True),
        ("tag:größe*", "größe-XL", True),
        ("tag:!kept", "!kept", True),
        ("tag:", "", True),
        ("tag:", "zeus", False),
    ],
)
def test_no_character_but_the_star_stands_for_another(
    pattern: str, tag: str, is_named: bool
) -> None:
    assert TaskPatterns.parse(pattern).name("dag", "task", [tag]) is is_named


@given(st.text("ab*", max_size=7), st.text("ab", max_size=8))
def test_a_star_stands_for_any_text(pattern: str, name: str) -> None:
    assert fits(pattern, name) is fnmatchcase(name, pattern)


@pytest.mark.parametrize("text", ["", "  ", ",", "!sales_*", " , !"])
def test_without_a_pattern_that_names_something_no_task_is_named(text: str) -> None:
    patterns = TaskPatterns.parse(text)
    assert not patterns.included
    assert not patterns.name("sales_daily", "load", ["zeus"])


@given(NAMES, NAMES, st.lists(NAMES, max_size=3))
def test_what_is_left_out_wins_and_a_star_names_all(
    dag_id: str, task_id: str, tags: list[str]
) -> None:
    assert TaskPatterns.parse("*").name(dag_id, task_id, tags)
    assert TaskPatterns.parse(f"{dag_id}.{task_id}").name(dag_id, task_id, tags)
    assert not TaskPatterns.parse(f"*, !{dag_id}").name(dag_id, task_id, tags)
    for tag in tags:
        assert TaskPatterns.parse(f"tag:{tag}").name(dag_id, task_id, tags)
