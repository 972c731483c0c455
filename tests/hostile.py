"""Documents that someone spoilt: one of ours with a few of its parts replaced,
removed or added, or cut as a text.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from airflow_provider_zeus.errors import ZeusError

HOSTILE = settings(
    derandomize=True,
    max_examples=max(50, settings().max_examples),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
)

LEAVES: list[Any] = [
    *(
        None,
        True,
        False,
        "",
        "x",
        "12",
        "\0",
        "\ud800",
        "é\n",
        "{{ x }}",
        "' OR 1=1 --",
        "a" * 5_000,
    ),
    *(0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308, 1e15),
    *([], {}, [None], [[]], [1, 2], {"a": 1}, {"": None}, [{}]),
]


@st.composite
def spoilt(draw: st.DrawFn, document: Any) -> Any:
    """``document`` (plain JSON) after one to three changes anywhere in it."""
    document = deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            return draw(st.sampled_from(LEAVES))
        holder, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["leaf", "leaf", "leaf", "drop", "swap", "more"]))
        if how == "drop":
            del holder[key]
        elif how == "swap":
            holder[key] = deepcopy(draw(st.sampled_from(places))[0])
        elif how == "more" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "v", "of_the_future", "__class__"]))] = deepcopy(
                draw(st.sampled_from(LEAVES))
            )
        else:
            holder[key] = deepcopy(draw(st.sampled_from(LEAVES)))
    return document


_SHARP = ["\0", "\ud800", None, -1, 2**31, 2**63, 1e-320]  # what passes for text or number


def each_change(document: Any) -> Any:
    """``document`` with one of its parts replaced or left out,
    for every part and what is most like one of ours.
    """
    for index in range(len(list(_places(document)))):
        for leaf in [*_SHARP, _Gone]:
            changed = deepcopy(document)
            holder, key = list(_places(changed))[index]
            if leaf is _Gone:
                del holder[key]
            else:
                holder[key] = deepcopy(leaf)
            yield changed


class _Gone:
    """In place of a leaf: the part is left out."""


def texts(document: Any) -> st.SearchStrategy[str]:
    """Texts that stand where ``document`` should: spoilt, cut off, no JSON, nested too deep."""
    whole = json.dumps(document)
    cut = st.integers(0, len(whole)).map(lambda n: whole[:n])
    deep = st.sampled_from(["[" * 5_000, '{"v":' * 5_000, whole[:-1] + ',"x":' + "[" * 5_000])
    odd = st.sampled_from(
        ["", " ", "NaN", "null", "1" * 5_000, '{"v": 1}', '{"v": 1, "v": 2}', "\ufeff" + whole]
    )
    return st.one_of(*[spoilt(document).map(_dumped)] * 6, cut, odd, deep, st.text(max_size=50))


def is_ours(error: BaseException) -> bool:
    """Whether an error is one of the package's own, with a remedy to read."""
    return isinstance(error, ZeusError) and len(str(error)) > 20


def _dumped(document: Any) -> str:
    return json.dumps(document)


def _places(document: Any) -> Any:
    """(container, key) of every part of a document."""
    if isinstance(document, dict):
        pairs = list(document.items())
    elif isinstance(document, list):
        pairs = list(enumerate(document))
    else:
        return
    for key, value in pairs:
        yield document, key
        yield from _places(value)
