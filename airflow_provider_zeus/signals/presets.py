"""Known services: where to ask, and where their answers have times and values. Data alone; nothing is sent here.

Addresses, limits and licences change: compare them with the service's own documents. ``{zone}``, ``{start}`` and
``{end}`` (UTC) are filled in; a key stays in the Connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import quote

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.parse import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One service. ``key_header``: the header of its key; empty: it needs none."""

    host: str  # with its scheme
    path: str  # and query, with {zone}, {start} and {end}
    layout: Layout
    key_header: str = ""
    time_format: str = "%Y-%m-%dT%H:%MZ"  # of start and end; "ms": milliseconds since the epoch

    def url(self, zone: str, start_s: float, end_s: float, host: str = "") -> str:
        """The address for a zone and a span. ``host``: another one, such as a mirror of one's own."""
        path = self.path
        for name, value in (("zone", zone), ("start", self._time(start_s)), ("end", self._time(end_s))):
            path = path.replace("{" + name + "}", quote(value, safe=""))  # other braces are the address's own
        return (host or self.host).rstrip("/") + path

    def _time(self, time_s: float) -> str:
        if self.time_format == "ms":
            return str(round(time_s * 1000))
        return datetime.fromtimestamp(time_s, UTC).strftime(self.time_format)


PRESETS = {
    "energy-charts": Preset(
        host="https://api.energy-charts.info",
        path="/price?bzn={zone}&start={start}&end={end}",
        layout=Layout(times="$.unix_seconds", values="$.price", unit="EUR/MWh", unit_at="$.unit"),
    ),
    "uk-carbon-intensity": Preset(
        host="https://api.carbonintensity.org.uk",
        path="/intensity/{start}/{end}",
        layout=Layout(
            times="$.data[*].from",
            values="$.data[*].intensity.actual",
            forecasts="$.data[*].intensity.forecast",
            ends="$.data[*].to",
            unit="g/kWh",
        ),
    ),
    "electricity-maps": Preset(
        host="https://api.electricitymaps.com",
        path="/v3/carbon-intensity/history?zone={zone}",
        layout=Layout(
            times="$.history[*].datetime",
            values="$.history[*].carbonIntensity",
            estimated="$.history[*].isEstimated",
            step_at="$.temporalGranularity",
            step_s=3600.0,
            zone_at="$.zone",
            unit="g/kWh",
        ),
        key_header="auth-token",
    ),
    "electricity-maps-forecast": Preset(
        host="https://api.electricitymaps.com",
        path="/v3/carbon-intensity/forecast?zone={zone}",
        layout=Layout(
            times="$.forecast[*].datetime",
            forecasts="$.forecast[*].carbonIntensity",
            step_at="$.temporalGranularity",
            step_s=3600.0,
            zone_at="$.zone",
            unit="g/kWh",
        ),
        key_header="auth-token",
    ),
    "awattar": Preset(
        host="https://api.awattar.de",
        path="/v1/marketdata?start={start}&end={end}",
        layout=Layout(
            times="$.data[*].start_timestamp",
            ends="$.data[*].end_timestamp",
            values="$.data[*].marketprice",
            unit="EUR/MWh",
            unit_at="$.data[*].unit",
        ),
        time_format="ms",
    ),
    "carbon-aware-sdk": Preset(
        host="http://127.0.0.1:5073",
        path="/emissions/forecasts/current?location={zone}",  # of all that is forecast: it refuses times outside of it
        layout=Layout(
            times="$[*].forecastData[*].timestamp",
            forecasts="$[*].forecastData[*].value",
            unit="g/kWh",
        ),
    ),
}
for _name in ("electricity-maps", "electricity-maps-forecast"):  # v4 answers with the same names
    PRESETS[f"{_name}-v4"] = replace(PRESETS[_name], path=PRESETS[_name].path.replace("/v3/", "/v4/"))


def preset(name: object) -> Preset:
    """The preset of a name. Raises JobSpecError that lists the known ones."""
    found = PRESETS.get(name) if isinstance(name, str) else None
    if found is None:
        raise JobSpecError.of("preset", name, "not known", f"use one of {', '.join(sorted(PRESETS))}")
    return found
