"""Exceptions that end a training function early. They are no ``Exception``, so user code does not
catch them.

Also finds the ``except`` that caught one all the same, so that the log can name it.
"""

from __future__ import annotations

import ast
import linecache

from airflow_provider_zeus import patterns


class AttemptOver(BaseException):
    """This attempt is given up; the run handle calls the function again with another batch size."""


class TrainingKilled(BaseException):
    """The task is being stopped (``on_kill``); the training must end."""


def raise_again(interrupt: BaseException | None) -> None:
    """Raise an interrupt that is set, without its old traceback: that would grow with each call."""
    if interrupt is not None:
        raise interrupt.with_traceback(None)


def swallowing_except(error: BaseException) -> str:
    """Text and ``file:line`` of the handler that caught ``error``, if the source can be read.

    The first entry of a caught exception's traceback is the frame that caught it, with the line
    inside its ``try``.
    """
    trace = error.__traceback__
    if trace is None:
        return "an except clause that could not be found"
    frame = trace.tb_frame
    line = trace.tb_lineno
    filename = frame.f_code.co_filename
    try:
        tree = ast.parse("".join(linecache.getlines(filename, frame.f_globals)))
    except SyntaxError:  # the file was edited meanwhile: its line alone is named then
        tree = ast.Module([], [])
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try | ast.TryStar)]
    # The innermost first: an outer try holds the line, too, and did not catch it.
    for node in sorted(tries, key=lambda n: n.lineno, reverse=True):
        end = node.body[-1].end_lineno or line
        if not node.body[0].lineno <= line <= end:
            continue
        for handler in node.handlers:
            catches = "BaseException"
            if handler.type is not None:
                catches = ast.unparse(handler.type)
            if patterns.search("BaseException|AttemptOver", catches):
                source = linecache.getline(filename, handler.lineno).strip()
                return f"`{source}` at {filename}:{handler.lineno}"
    return f"an except or finally around {filename}:{line}"
