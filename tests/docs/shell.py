"""Commands of the pages: Airflow's own parser takes each,
and this process runs those that need no other host.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.docs.blocks import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@dataclass
class Shell:
    """Takes the commands of one page, in order."""

    folder: Path
    capsys: Any
    # the file of each DAG, for airflow zeus check
    dags: dict[str, Path] = field(default_factory=dict)
    # exit status of commands that end with another one than 0
    expected: dict[str, int] = field(default_factory=dict)
    # beginning of a command -> why it is not run
    only_parsed: dict[str, str] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def take(self, command: str) -> str:
        """Run a command, or look whether it could be run; returns what it printed.

        ``&&`` parts several.
        """
        first, *others = re.split(r" && ", command)
        if others:
            return "".join(self.take(each) for each in (first, *others))
        words = shlex.split(command, comments=True)
        takers = {
            "airflow": self._airflow,
            "pip": self._pip,
            "make": self._make,
            "cat": self._nothing,
            "rm": self._nothing,  # tests/docs/test_removal.py runs it
            "python": self._python,
        }
        if words[0] in takers:
            return takers[words[0]](words)
        raise AssertionError(
            f"no test runs {command!r}: mark its block by <!-- not run: reason -->"
        )

    def _airflow(self, words: list[str]) -> str:
        from airflow.cli.cli_parser import get_parser

        command = " ".join(words)
        if words[1:3] == ["zeus", "check"] and words[3] in self.dags:
            words = [*words, "--file", str(self.dags[words[3]])]
        args = get_parser().parse_args(words[1:])
        why = next(
            (why for begin, why in self.only_parsed.items() if command.startswith(begin)), ""
        )
        if why:
            self.not_run.append(f"{command}: {why}")
            return ""
        self.capsys.readouterr()
        status = 0
        try:
            args.func(args)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        out, err = self.capsys.readouterr()
        assert status == self.expected.get(command, 0), (
            f"{command}: exit status {status}\n{out}\n{err}"
        )
        self.ran.append(command)
        return str(out + err)

    def _pip(self, words: list[str]) -> str:
        """Each package exists, and so does each extra of ours.

        Nothing is installed: that needs a network.
        """
        assert words[1] == "install"
        for word in words:
            flag, _, value = word.partition("=")
            assert flag != "--constraint" or (ROOT / value).is_file(), f"no such file: {value}"
        named = [
            f"{PROJECT['name']}{word[1:]}" if word[0] == "." else word
            for word in words[2:]
            if word[0] != "-"
        ]
        ours = [Requirement(word) for word in named]
        for requirement in ours:
            known = PROJECT["optional-dependencies"] if requirement.name == PROJECT["name"] else ()
            assert requirement.name in (PROJECT["name"], "nvidia-ml-py", "torch"), requirement
            assert requirement.extras <= set(known), f"no such extra: {requirement}"
        self.not_run.append(f"{' '.join(words)}: needs a package index; its names and extras exist")
        return ""

    def _make(self, words: list[str]) -> str:
        """The target exists. It is not run: make test would run itself."""
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert {word for word in words[1:] if "=" not in word} <= set(targets), words
        self.not_run.append(f"{' '.join(words)}: takes minutes; make knows it")
        return ""

    def _python(self, words: list[str]) -> str:
        """A benchmark that is there. It is not run: it takes minutes, and has tests of its own."""
        assert words[1] == "-m"
        assert words[2].startswith("benchmarks.")
        assert find_spec(words[2]) is not None, words
        self.not_run.append(
            f"{' '.join(words[:3])}: takes minutes; the module is there, and tests/unit/benchmarks"
        )
        return ""

    def _nothing(self, words: list[str]) -> str:
        return ""


def header(text: str) -> str:
    """The names of a table's columns, as a command prints or a page shows it;
    empty where there is no table.
    """
    found = re.search(r"^(.+ \| .+)\n=+\+", text, re.M)
    return "|".join(name.strip() for name in found[1].split("|")) if found else ""
