"""Series from the documented answers of services, from files, and from what is neither."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.parse import MOST_CHARACTERS, Layout, parsed
from airflow_provider_zeus.signals.presets import PRESETS, preset
from airflow_provider_zeus.signals.series import Series
from tests.strategies import REPRODUCIBLE

T0 = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
ANSWERS: dict[str, tuple[Any, list[tuple[float, float, float, bool]]]] = {
    "energy-charts": (
        {"license_info": "CC BY 4.0", "unix_seconds": [T0, T0 + 900, T0 + 1800], "price": [95.0, -5.0, None]},
        [(0, 900, 0.095, False), (900, 1800, -0.005, False)],
    ),
    "uk-carbon-intensity": (
        {
            "data": [
                {
                    "from": "2026-01-05T00:00Z",
                    "to": "2026-01-05T00:30Z",
                    "intensity": {"forecast": 210, "actual": None},
                },
                {"from": "2026-01-05T00:30Z", "to": "2026-01-05T01:00Z", "intensity": {"forecast": None}},
                {"from": "2026-01-05T01:00Z", "to": "2026-01-05T01:30Z", "intensity": {"forecast": 190}},
                {
                    "from": "2026-01-05T01:30Z",
                    "to": "2026-01-05T02:00Z",
                    "intensity": {"forecast": 190, "actual": 150},
                },
            ]
        },
        [(0, 1800, 210.0, True), (3600, 5400, 190.0, True), (5400, 7200, 150.0, False)],
    ),
    "electricity-maps": (
        {
            "zone": "DE",
            "history": [
                {"zone": "DE", "carbonIntensity": 300, "datetime": "2026-01-05T00:00:00.000Z", "isEstimated": True},
                {"zone": "DE", "carbonIntensity": 310, "datetime": "2026-01-05T01:00:00.000Z", "isEstimated": False},
            ],
        },
        [(0, 3600, 300.0, True), (3600, 7200, 310.0, False)],
    ),
    "electricity-maps-forecast": (
        {"zone": "DE", "forecast": [{"carbonIntensity": 300, "datetime": "2026-01-05T00:00:00.000Z"}]},
        [(0, 3600, 300.0, True)],
    ),
    "awattar": (
        {
            "object": "list",
            "data": [
                {
                    "start_timestamp": 1000 * T0,
                    "end_timestamp": 1000 * (T0 + 3600),
                    "marketprice": 42.0,
                    "unit": "Eur/MWh",
                }
            ],
        },
        [(0, 3600, 0.042, False)],
    ),
    "carbon-aware-sdk": (
        [
            {
                "generatedAt": "2026-01-05T00:00:00+00:00",
                "forecastData": [
                    {"timestamp": "2026-01-05T00:00:00+00:00", "duration": 5, "value": 359.2},
                    {"timestamp": "2026-01-05T00:05:00+00:00", "duration": 5, "value": 360.0},
                ],
            }
        ],
        [(0, 300, 359.2, True), (300, 600, 360.0, True)],
    ),
}


def read(answer: Any, layout: Layout, zone: str = "DE") -> Series:
    return parsed(json.dumps(answer), layout, zone=zone)


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_documented_answer_of_each_service(name: str) -> None:
    answer, expected = ANSWERS[name]
    found = read(answer, preset(name).layout)
    steps = [(s.start_s - T0, s.end_s - T0, s.value, s.estimated) for s in found.steps]
    assert steps == [(a, b, pytest.approx(v), e) for a, b, v, e in expected]


def test_an_address_has_its_zone_and_span_and_no_key() -> None:
    found = preset("energy-charts").url("DE-LU&x=1", T0, T0 + 3600)
    assert found == (
        "https://api.energy-charts.info/price?bzn=DE-LU%26x%3D1&start=2026-01-05T00%3A00Z&end=2026-01-05T01%3A00Z"
    )
    assert f"start={round(1000 * T0)}&" in preset("awattar").url("", T0, T0)
    assert preset("uk-carbon-intensity").url("", T0, T0, host="http://uk:80/").startswith("http://uk:80/intensity/")
    with pytest.raises(JobSpecError, match="awattar"):
        preset("wattime")


def test_a_forecast_is_asked_for_as_a_whole() -> None:
    """The Carbon Aware SDK answers 400 to a ``dataStartAt`` or ``dataEndAt`` outside of what it forecasts."""
    found = preset("carbon-aware-sdk").url("eastus", T0 - 8 * 86_400, T0 + 2 * 86_400, host="http://sdk:80")
    assert found == "http://sdk:80/emissions/forecasts/current?location=eastus"


def test_one_value_alone_may_be_a_forecast() -> None:
    answer = {"data": ANSWERS["uk-carbon-intensity"][0]["data"][:1]}
    (step,) = read(answer, preset("uk-carbon-intensity").layout).steps
    assert (step.value, step.estimated) == (210.0, True)


def test_an_answer_for_another_zone_is_refused() -> None:
    answer, _ = ANSWERS["electricity-maps"]
    with pytest.raises(JobSpecError, match="zone"):
        read(answer, preset("electricity-maps").layout, zone="FR")


def test_columns_of_a_csv_file() -> None:
    text = "time,price,guess\n2026-01-05T00:00Z,0.30,true\n2026-01-05T01:00Z,n/a,false\n2026-01-05T02:00Z,0.2,\n"
    layout = Layout(times="time", values="price", estimated="guess", unit="EUR/kWh", step_s=3600.0)
    found = parsed(text, layout)
    assert [(s.start_s - T0, s.value, s.estimated) for s in found.steps] == [(0, 0.3, True), (7200, 0.2, False)]
    with pytest.raises(JobSpecError, match="column"):
        parsed(text, Layout(times="when", values="price", unit="EUR/kWh"))


def test_a_file_whose_forecasts_are_a_column_of_their_own() -> None:
    text = "time,was,will_be\n2026-01-05T00:00Z,300,280\n2026-01-05T01:00Z,,290\n2026-01-05T02:00Z,,\n"
    found = parsed(text, Layout(times="time", values="was", forecasts="will_be", unit="g/kWh"))
    assert [(s.value, s.estimated) for s in found.steps] == [(300.0, False), (290.0, True)]
    alone = parsed(text, Layout(times="time", forecasts="will_be", unit="g/kWh"))
    assert [(s.value, s.estimated) for s in alone.steps] == [(280.0, True), (290.0, True)]


SIMPLE = Layout(times="$.t", values="$.v", unit="g/kWh")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no JSON"),
        ("<html>", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "leads nowhere"),
        ('{"t": [1, 2], "v": [3]}', "different lengths"),
        (" " * (MOST_CHARACTERS + 1), "too long"),
        (json.dumps({"t": list(range(50_000)), "v": list(range(50_000))}), "too long"),
    ],
)
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    with pytest.raises(JobSpecError, match=named):
        parsed(text, SIMPLE)


@pytest.mark.parametrize("path", ["data", "$data", "$.a[0]", "$.a..b", "$.a[*", "$." + "a" * 20 + "("])
def test_a_path_of_another_form_is_named(path: str) -> None:
    with pytest.raises(JobSpecError, match=r"path|column"):
        parsed("{}", Layout(times=path, values="$.v", unit="g/kWh"))


def test_a_value_that_is_none_is_a_gap_and_not_0() -> None:
    found = parsed('{"t": [0, 3600, 7200, 10800], "v": [1, null, "x", true]}', SIMPLE)
    assert [(s.start_s, s.value) for s in found.steps] == [(0.0, 1.0)]
    nan = parsed('{"t": [0, 3600], "v": [NaN, 2]}', SIMPLE)
    assert [s.value for s in nan.steps] == [2.0]


@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_that_no_float_can_hold_is_a_gap(sign: str) -> None:
    digits = sign + "1" + 399 * "0"
    found = parsed(f'{{"t": [0, 3600], "v": [{digits}, 2]}}', SIMPLE)
    assert [(s.start_s, s.value) for s in found.steps] == [(3600.0, 2.0)]
    assert parsed(f'{{"t": [{digits}, 3600, 7200], "v": [1, 2, 3]}}', SIMPLE).steps[0].value == 2.0, "no time either"


@REPRODUCIBLE
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda c: st.lists(c, max_size=3) | st.dictionaries(st.sampled_from(["t", "v", "x"]), c, max_size=3),
        max_leaves=12,
    )
)
def test_any_answer_gives_a_series_or_an_error_of_ours(answer: Any) -> None:
    try:
        found = read(answer, SIMPLE)
    except JobSpecError:
        return
    assert all(s.end_s > s.start_s for s in found.steps)
