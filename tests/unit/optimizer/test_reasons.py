"""Each sentence of a decision gets the figures that it names, wherever it is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.optimizer.reasons import Why


def made() -> Iterator[tuple[str, set[str]]]:
    """(name of a sentence, figures that it is given), for each place that makes one."""
    for path in Path(optimizer.__path__[0]).rglob("*.py"):
        for call in (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "of":
                for node in ast.walk(call.func.value):
                    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Why":
                        yield node.attr, {str(keyword.arg) for keyword in call.keywords}


def test_a_sentence_gets_the_figures_that_it_names() -> None:
    for name, figures in made():
        assert figures == {
            field for _, field, _, _ in Formatter().parse(Why[name].value) if field
        }, name


def test_each_sentence_is_used() -> None:
    text = "\n".join(path.read_text() for path in Path(optimizer.__path__[0]).rglob("*.py"))
    assert [why.name for why in Why if f"Why.{why.name}" not in text] == []
