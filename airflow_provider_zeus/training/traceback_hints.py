"""Finds the ``except`` that swallowed a signal, so that the log can name it."""

from __future__ import annotations

import ast
import linecache
from types import FrameType


def swallowing_except(error: BaseException) -> str:
    """Text and ``file:line`` of the handler that caught ``error``, if the source can be read.

    The first entry of a caught exception's traceback is the frame that caught it, with the line inside its ``try``.
    """
    trace = error.__traceback__
    if trace is None:
        return "an except clause that could not be found"
    frame, line = trace.tb_frame, trace.tb_lineno
    handler = _handler(frame, line)
    filename = frame.f_code.co_filename
    if handler is None:
        return f"an except or finally around {filename}:{line}"
    return f"`{linecache.getline(filename, handler).strip()}` at {filename}:{handler}"


def _handler(frame: FrameType, line: int) -> int | None:
    """Line of the innermost handler around ``line`` that catches a BaseException."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Try | ast.TryStar) and node.body[0].lineno <= line <= (node.body[-1].end_lineno or line)
    ]
    for node in sorted(around, key=lambda n: n.lineno, reverse=True):
        for handler in node.handlers:
            caught = "BaseException" if handler.type is None else ast.unparse(handler.type)
            if "BaseException" in caught or "AttemptOver" in caught:
                return handler.lineno
    return None
