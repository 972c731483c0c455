"""Which tasks ``[zeus] measure`` names: by DAG id, by ``dag_id.task_id``, or by a tag of their
DAG. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Self

TAG = "tag:"
LEAVES_OUT = "!"
ANY_TEXT = "*"


class TaskPatterns:
    """Patterns in which ``*`` stands for any text; ``excluded`` ones win over ``included`` ones.

    A plain class: each task's process imports this module, and to make a dataclass takes a
    millisecond.
    """

    def __init__(self, included: Sequence[str] = (), excluded: Sequence[str] = ()) -> None:
        self.included = included
        self.excluded = excluded

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``tag:zeus, sales_*, !sales_daily.wait_*``."""
        patterns = [part.strip() for part in text.split(",")]
        included = [
            pattern for pattern in patterns if pattern and not pattern.startswith(LEAVES_OUT)
        ]
        excluded = [pattern[1:].strip() for pattern in patterns if pattern.startswith(LEAVES_OUT)]
        return cls(included, [pattern for pattern in excluded if pattern])

    def name(self, dag_id: str, task_id: str, tags: Collection[str]) -> bool:
        """Whether they name this task."""
        names = names_of(dag_id, task_id, tags)
        if not any(matches(pattern, names) for pattern in self.included):
            return False
        return not any(matches(pattern, names) for pattern in self.excluded)


def names_of(dag_id: str, task_id: str, tags: Collection[str]) -> tuple[str, ...]:
    """All names by which a pattern may name a task."""
    return (dag_id, f"{dag_id}.{task_id}", *(f"{TAG}{tag}" for tag in tags))


def matches(pattern: str, names: Collection[str]) -> bool:
    """Whether a pattern fits one of the names."""
    return any(fits(pattern, name) for name in names)


def fits(pattern: str, name: str) -> bool:
    """Whether a pattern is this name, if each ``*`` in it stands for some text.

    Without a regular expression, since each task's process would compile it, for 0.2 ms.
    """
    begin, star, rest = pattern.partition(ANY_TEXT)
    if not star:
        return name == pattern
    *middle, end = rest.split(ANY_TEXT)
    # Begin and end must not share characters of the name.
    if len(name) < len(begin) + len(end):
        return False
    if not name.startswith(begin) or not name.endswith(end):
        return False
    rest_of_name = name[len(begin) : len(name) - len(end)]
    for part in filter(None, middle):  # the first place leaves the most for the parts after it
        _, separator, rest_of_name = rest_of_name.partition(part)
        if not separator:
            return False
    return True
