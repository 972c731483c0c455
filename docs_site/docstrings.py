"""Docstrings as Markdown: roles of Sphinx become code, and the colons before an example one."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr):`~?\.?([^`]+)`")
_EXAMPLE = re.compile(r"::(?=\n)")


class PlainDocstrings(griffe.Extension):
    """Changes each docstring when it is found."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(":", _ROLE.sub(r"`\1`", obj.docstring.value))
