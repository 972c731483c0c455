"""The facet ``zeus_cost`` of OpenLineage's run events.

Imported if OpenLineage's provider is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.facet_v2 import RunFacet

FACET = "zeus_cost"
SCHEMA = json.loads(
    (Path(__file__).parents[1] / "schemas/1-0-0/ZeusRunFacet.json").read_text(encoding="utf-8")
)


class _OfOurSchema(RunFacet):
    @staticmethod
    def _get_schema() -> str:
        return str(SCHEMA["$id"])


# From the schema, so that facet and schema cannot differ. None is left out: a figure that is not
# known is no 0.
_fields = {name: attr.ib(default=None) for name in SCHEMA["properties"] if not name.startswith("_")}
ZeusRunFacet = attr.make_class(
    "ZeusRunFacet", _fields, bases=(_OfOurSchema,), kw_only=True, slots=True
)


def _in_camel_case(name: str) -> str:
    """``energyJ`` for ``energy_j``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def lineage_of(figures: Mapping[str, Any]) -> OperatorLineage[Any, RunFacet]:
    """The figures of a run as OpenLineage's provider takes them."""
    facet = ZeusRunFacet(**{_in_camel_case(name): value for name, value in figures.items()})
    return OperatorLineage(run_facets={FACET: facet})
