"""The page of all commands, read off the parser's definition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

from airflow_provider_zeus.cli.definition import get_zeus_cli_commands
from docs_site.tables import code, table

HEAD = """# Commands

Every command of `airflow zeus` with all its arguments. What each prints, with examples: [the command line](../cli.md).
`airflow zeus COMMAND --help` says the same on a terminal.
"""


def page() -> str:
    """Every command with its arguments."""
    parts = [HEAD]
    for path, command in commands(get_zeus_cli_commands()):
        words = command.description or f"{command.help}."
        parts += [
            f"## {' '.join(path)}\n",
            f"{words}\n",
            _usage(path, command.args),
            _arguments(command.args),
        ]
    return "\n".join(parts)


def commands(
    found: Iterable[CLICommand], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ActionCommand]]:
    """Each command with the words that call it."""
    for command in found:
        if isinstance(command, GroupCommand):
            yield from commands(command.subcommands, (*path, command.name))
        else:
            assert isinstance(command, ActionCommand)
            yield (*path, command.name), command


def _usage(path: tuple[str, ...], args: Iterable[Arg]) -> str:
    named = [_named(arg) for arg in args if not arg.flags[0].startswith("-")]
    return f"```text\n{' '.join(['airflow', *path, *named, '[options]'])}\n```\n"


def _named(arg: Arg) -> str:
    name = str(arg.kwargs.get("metavar") or arg.flags[0].upper())
    return f"[{name}]" if arg.kwargs.get("nargs") == "?" else name


def _arguments(args: Iterable[Arg]) -> str:
    rows = []
    for arg in args:
        option = arg.flags[0].startswith("-")
        value = arg.kwargs.get("metavar") if option else None
        shown = ", ".join(code(flag) for flag in arg.flags) if option else code(_named(arg))
        choices = ", ".join(map(str, arg.kwargs.get("choices") or ()))
        needed = "needed" if arg.kwargs.get("required") else ""
        rows.append([shown, code(value or choices), needed, arg.kwargs.get("help", "")])
    return table(["argument", "value", "", "meaning"], rows)
