"""Sentences in the code speak of runs and attempts, those too that no test makes the code say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.words import found

PACKAGE = Path(__file__).parents[2] / "airflow_provider_zeus"
MODULES = sorted(PACKAGE.rglob("*.py"))
OF_CODE = ("trial.env", ", trials[")  # a name that people type, a path in JSON


def sentences(text: str) -> Iterator[str]:
    """The texts of a module that have more than one word, without its docstrings."""
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        is_sql = node.value.startswith("\n")
        if id(node) not in docstrings and not is_sql and " " in node.value.strip():
            yield node.value


def wrong(text: str) -> list[str]:
    """The sentences of a module that have a forbidden word."""
    hits = []
    for sentence in sentences(text):
        for name in OF_CODE:
            sentence = sentence.replace(name, "")
        hits += found(sentence)
    return hits


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sentences_speak_of_runs_and_attempts(module: Path) -> None:
    assert wrong(module.read_text(encoding="utf-8")) == []


def test_a_sentence_is_read_wherever_it_stands_and_a_docstring_is_not() -> None:
    text = '"""The trial log."""\ndef why(n):\n    return f"the trial log has {n} rows", "trial"\n'
    assert wrong(text) == ["the trial log has "]
