"""The facet ``zeus_cost`` of OpenLineage's run events. Imported where OpenLineage's provider is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.facet_v2 import RunFacet

FACET = "zeus_cost"
SCHEMA_URL = "urn:airflow-provider-zeus:schemas:1-0-0:ZeusRunFacet"  # schemas/1-0-0/ZeusRunFacet.json of this package


@attr.define(kw_only=True)
class ZeusRunFacet(RunFacet):
    """What a run cost. Energies [J], times [s], limit [W], CO2e [g]; None, so left out, where it is not known."""

    jobId: str | None = None  # noqa: N815
    batchSize: int | None = None  # noqa: N815
    powerLimitW: float | None = None  # noqa: N815
    energyJ: float | None = None  # noqa: N815
    energySource: str | None = None  # noqa: N815
    timeS: float | None = None  # noqa: N815
    timeSource: str | None = None  # noqa: N815
    money: float | None = None
    currency: str | None = None
    moneySource: str | None = None  # noqa: N815
    co2eG: float | None = None  # noqa: N815
    co2eSource: str | None = None  # noqa: N815
    savedJ: float | None = None  # noqa: N815
    savedLowJ: float | None = None  # noqa: N815
    savedHighJ: float | None = None  # noqa: N815
    savedS: float | None = None  # noqa: N815
    savedLowS: float | None = None  # noqa: N815
    savedHighS: float | None = None  # noqa: N815
    savedVerdict: str | None = None  # noqa: N815
    savedSource: str | None = None  # noqa: N815
    defaultBatchSize: int | None = None  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return SCHEMA_URL


def lineage_of(figures: Mapping[str, Any]) -> OperatorLineage[Any, RunFacet]:
    """The figures of a run as OpenLineage's provider takes them."""
    names = {name: re.sub("_(.)", lambda found: found[1].upper(), name) for name in figures}  # energy_j is energyJ
    facet = ZeusRunFacet(**{names[name]: value for name, value in figures.items()})
    return OperatorLineage(run_facets={FACET: facet})
