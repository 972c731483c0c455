"""Series from the documented answers of services, from files, and from what is neither."""

from __future__ import annotations

import gzip
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.parse import MOST_CHARACTERS, Layout, parsed, text_of
from airflow_provider_zeus.signals.series import MOST_STEPS, Series
from airflow_provider_zeus.signals.service import PRESETS, preset
from tests.strategies import REPRODUCIBLE

T0 = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
ANSWERS: dict[str, tuple[Any, list[tuple[float, float, float, bool]]]] = {
    "energy-charts": (
        {
            "license_info": "CC BY 4.0",
            "unix_seconds": [T0, T0 + 900, T0 + 1800],
            "price": [95.0, -5.0, None],
            "unit": "EUR / MWh",
        },
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
                {
                    "from": "2026-01-05T00:30Z",
                    "to": "2026-01-05T01:00Z",
                    "intensity": {"forecast": None},
                },
                {
                    "from": "2026-01-05T01:00Z",
                    "to": "2026-01-05T01:30Z",
                    "intensity": {"forecast": 190},
                },
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
                {
                    "zone": "DE",
                    "carbonIntensity": 300,
                    "datetime": "2026-01-05T00:00:00.000Z",
                    "isEstimated": True,
                },
                {
                    "zone": "DE",
                    "carbonIntensity": 310,
                    "datetime": "2026-01-05T01:00:00.000Z",
                    "isEstimated": False,
                },
            ],
        },
        [(0, 3600, 300.0, True), (3600, 7200, 310.0, False)],
    ),
    "electricity-maps-forecast": (
        {
            "zone": "DE",
            "forecast": [{"carbonIntensity": 300, "datetime": "2026-01-05T00:00:00.000Z"}],
        },
        [(0, 3600, 300.0, True)],
    ),
    "electricity-maps-v4": (
        {
            "zone": "DE",
            "history": [
                {
                    "carbonIntensity": 300,
                    "datetime": "2026-01-05T00:00:00.000Z",
                    "isEstimated": False,
                }
            ],
            "temporalGranularity": "15_minutes",
        },
        [(0, 900, 300.0, False)],
    ),
    "electricity-maps-forecast-v4": (
        {
            "zone": "DE",
            "forecast": [
                {"carbonIntensity": 300, "datetime": "2026-01-05T00:00:00.000Z"},
                {"carbonIntensity": 200, "datetime": "2026-01-05T01:00:00.000Z"},
            ],
            "updatedAt": "2026-01-04T23:32:21.002Z",
            "temporalGranularity": "hourly",
        },
        [(0, 3600, 300.0, True), (3600, 7200, 200.0, True)],
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
    assert (
        preset("uk-carbon-intensity")
        .url("", T0, T0, host="http://uk:80/")
        .startswith("http://uk:80/intensity/")
    )
    with pytest.raises(JobSpecError, match="awattar"):
        preset("wattime")


def test_a_forecast_is_asked_for_as_a_whole() -> None:
    """The Carbon Aware SDK answers 400 to a ``dataStartAt`` or ``dataEndAt`` outside of what it forecasts."""
    found = preset("carbon-aware-sdk").url(
        "eastus", T0 - 8 * 86_400, T0 + 2 * 86_400, host="http://sdk:80"
    )
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
    assert [(s.start_s - T0, s.value, s.estimated) for s in found.steps] == [
        (0, 0.3, True),
        (7200, 0.2, False),
    ]
    with pytest.raises(JobSpecError, match="column"):
        parsed(text, Layout(times="when", values="price", unit="EUR/kWh"))


def test_a_file_whose_forecasts_are_a_column_of_their_own() -> None:
    text = (
        "time,was,will_be\n2026-01-05T00:00Z,300,280\n2026-01-05T01:00Z,,290\n2026-01-05T02:00Z,,\n"
    )
    found = parsed(text, Layout(times="time", values="was", forecasts="will_be", unit="g/kWh"))
    assert [(s.value, s.estimated) for s in found.steps] == [(300.0, False), (290.0, True)]
    alone = parsed(text, Layout(times="time", forecasts="will_be", unit="g/kWh"))
    assert [(s.value, s.estimated) for s in alone.steps] == [(280.0, True), (290.0, True)]


SIMPLE = Layout(times="$.t", values="$.v", unit="g/kWh")


@pytest.mark.parametrize(
    "said", [{}, {"temporalGranularity": "15_minutes"}, {"temporalGranularity": 900}]
)
@pytest.mark.parametrize("name", ["electricity-maps", "electricity-maps-v4"])
def test_quarters_of_an_hour_fill_no_hour(name: str, said: dict[str, Any]) -> None:
    minutes = [0, 15, 30, 60, 75]  # one is missing
    history = [
        {"carbonIntensity": 300 + m, "datetime": f"2026-01-05T0{m // 60}:{m % 60:02}:00.000Z"}
        for m in minutes
    ]
    found = read({"zone": "DE", "history": history, **said}, preset(name).layout)
    assert [s.end_s - s.start_s for s in found.steps] == [900.0] * 5
    assert found.at(T0 + 50 * 60) is None


@pytest.mark.parametrize(
    ("said", "length_s"),
    [("hourly", 3600.0), ("5_minutes", 300.0), ("1_year", 3600.0), (900, 900.0), (0, 3600.0)],
)
def test_one_value_is_as_long_as_its_answer_says(said: object, length_s: float) -> None:
    history = [{"carbonIntensity": 300, "datetime": "2026-01-05T00:00Z"}]
    answer = {"zone": "DE", "history": history, "temporalGranularity": said}
    (step,) = read(answer, preset("electricity-maps").layout).steps
    assert step.end_s - step.start_s == length_s


LISTS = Layout(times="$.data[*].t", values="$.data[*].v", unit="EUR/kWh")
SECRET = "7391"


def rows(*pairs: tuple[Any, Any]) -> str:
    return json.dumps({"data": [{"t": t, "v": v} for t, v in pairs]})


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"values": [{"t": 7391, "v": 1}]}', "no such name at part 1"),
        ('{"data": {"t": 7391, "v": 1}}', "no list at part 2"),
        ('{"data": [{"time": 7391, "v": 1}]}', "no such name at part 3"),
        ('{"data": [{"t": 7391, "price": 7391}]}', "no such name at part 3"),
        ('{"data": [[7391, 1], [7392, 2]]}', "no such name at part 3"),
        ('{"data": [[{"t": 7391, "v": 1}]]}', "no such name at part 3"),
        ('{"error": "key 7391"}', "no such name at part 1"),
        ("[]", "no such name at part 1"),
        ('{"data": []}', "an empty list"),
        ('{"data": null}', "no list at part 2"),
        (rows((0, None), (7391, None)), "none of its entries is a number"),
        (rows((0, "n/a"), (7391, [1])), "none of its entries is a number"),
        (
            '{"data": [{"t": 0, "v": NaN}, {"t": 7391, "v": Infinity}]}',
            "none of its entries is a number",
        ),
        (rows((None, 1), (None, 2)), "none of its entries is a time"),
        (
            rows(("05.01.7391 00:00", 1), ("05.01.7391 01:00", 2)),
            "entry 1 of 2 is a time of another form",
        ),
        (rows(("01/05/7391", 1), ("01/05/7391", 2)), "entry 1 of 2 is a time of another form"),
        (
            rows((0, 1), ("Mon, 05 Jan 7391 00:00:00 GMT", 2)),
            "entry 2 of 2 is a time of another form",
        ),
        (rows((0, 1), (3600, "7,391.5")), "entry 2 of 2 is a number of another form"),
        (rows((0, "0,7391"), (3600, 1)), "entry 1 of 2 is a number of another form"),
        (rows((0, "\u20ac 7391"), (3600, 1)), "entry 1 of 2 is a number of another form"),
        (rows((0, "7391 EUR"), (3600, 1)), "entry 1 of 2 is a number of another form"),
        (rows((2024, 1), (2025, 7391), (2026, 1)), "less than a minute apart"),
        (
            rows((46_027, 1), (46_027 + 1 / 24, 7391), (46_027 + 2 / 24, 1)),
            "less than a minute apart",
        ),
        ("", "empty"),
        ("\r\n", "empty"),
        (rows((7391, 1)), "no step has a length"),
        (rows((0, 1), (31 * 86_400, 7391)), "none of 25 h at most"),
        (rows((0, 1), (0, 7391), (3600, 2), (3600, 3)), "several values for each time"),
        (rows((0, "0.1"), (3600, f"{7391:09999d}")), "an entry has over"),
    ],
)
def test_an_answer_that_tells_nothing_is_named_without_a_word_of_it(text: str, named: str) -> None:
    with pytest.raises(JobSpecError) as error:
        parsed(text, LISTS)
    assert named in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("column", ["values", "forecasts"])
def test_a_column_without_a_number_is_named_by_its_path(column: str) -> None:
    named: dict[str, Any] = {column: "$.data[*].v"}
    layout = Layout(times="$.data[*].t", unit="EUR/kWh", **named)
    with pytest.raises(JobSpecError, match=re.escape(f"{column} = '$.data[*].v'")):
        parsed(rows((0, None), (3600, None)), layout)


def test_steps_may_be_short_where_their_times_are_times() -> None:
    text = "time,value\n" + "".join(f"2026-01-05T00:00:{s:02d}Z,{s}\n" for s in (0, 20, 40))
    series = parsed(text, Layout(times="time", values="value", unit="g/kWh"))
    assert [step.value for step in series.steps] == [0.0, 20.0, 40.0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("time,value\n", "an empty list"),
        ("time,value\n2026-01-05T00:00Z,0,30\n", "more cells"),
        ("time,value\n2026-01-05T00:00Z,1,391.5\n", "more cells"),
        ("time;value\n2026-01-05T00:00Z;0,30\n2026-01-05T01:00Z;0,31\n", "number of another form"),
        ("time;value\n05.01.2026 00:00;0.30\n", "time of another form"),
        ('{"time": 1}', "not in the file"),
        ("<!DOCTYPE html>\n<time>", "a page (HTML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, named: str) -> None:
    with pytest.raises(JobSpecError) as error:
        parsed(text, Layout(times="time", values="value", unit="EUR/kWh"))
    assert named in str(error.value)


def test_other_separators_of_a_file_are_read() -> None:
    for separator in (";", "\t", ", "):
        lines = ["time", "value"], ["2026-01-05T00:00Z", "0.3"], ["2026-01-05T01:00 UTC", "0.2"]
        text = "\r\n".join(separator.join(line) for line in lines)
        found = parsed(text, Layout(times="time", values="value", unit="EUR/kWh"))
        assert [(s.start_s - T0, s.value) for s in found.steps] == [(0, 0.3), (3600, 0.2)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le"])
@pytest.mark.parametrize("packed", [False, True])
def test_marks_of_the_order_of_bytes_and_gzip_are_read(encoding: str, packed: bool) -> None:
    for text, layout in (
        (rows((0, 1.5), (3600, 2)), LISTS),
        ("time,value\n0,1.5\n3600,2\n", Layout(times="time", values="value", unit="EUR/kWh")),
    ):
        data = text.encode(encoding)
        found = parsed(text_of(gzip.compress(data) if packed else data), layout)
        assert [s.value for s in found.steps] == [1.5, 2.0]


def test_gzip_that_is_damaged_or_without_end_is_named() -> None:
    with pytest.raises(JobSpecError, match="gzip"):
        text_of(b"\x1f\x8b" + bytes(range(40)))
    with pytest.raises(JobSpecError, match="too long"):
        parsed(text_of(gzip.compress(b" " * (MOST_CHARACTERS + 1))), LISTS)


@pytest.mark.parametrize("scale", [1, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("kind", [int, float, lambda s: str(int(s))])
def test_times_since_the_epoch_are_read_by_their_size(scale: float, kind: Any) -> None:
    found = parsed(rows((kind(T0 * scale), 1), (kind((T0 + 3600) * scale), 2)), LISTS)
    assert [s.start_s - T0 for s in found.steps] == pytest.approx([0, 3600], abs=1e-3)


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9])
def test_the_first_time_that_is_read_in_a_finer_unit_is_of_march_1973(scale: float) -> None:
    """The same number of the coarser unit would be of the year 5138."""
    found = parsed(rows((int(1e8 * scale), 1), (int((1e8 + 3600) * scale), 2)), LISTS)
    assert [s.start_s for s in found.steps] == pytest.approx([1e8, 1e8 + 3600])


@pytest.mark.parametrize(
    ("first", "second"), [("202601050000", 202601050100), ("20260105T00", "20260105T01")]
)
def test_dates_without_separators_are_no_epoch(first: Any, second: Any) -> None:
    assert [s.start_s - T0 for s in parsed(rows((first, 1), (second, 2)), LISTS).steps] == [0, 3600]
    assert parsed(rows(("20260105", 1), ("20260106", 2)), LISTS).steps[0].start_s == T0


def test_order_repetition_and_a_change_of_the_clock_leave_no_gap() -> None:
    spring = [
        "2026-03-29T03:00+02:00",
        "2026-03-29T01:00+01:00",
        "2026-03-29T04:00+02:00",
        "2026-03-29T01:00+01:00",
    ]
    found = parsed(rows(*((t, 1) for t in spring)), LISTS)
    assert [s.end_s - s.start_s for s in found.steps] == [3600.0] * 3
    assert found.steps[0].end_s == found.steps[1].start_s
    days = [{"t": "2026-10-25T00:00+02:00", "e": "2026-10-26T00:00+01:00", "v": 1}]  # of 25 h
    (day,) = parsed(
        json.dumps({"data": days}),
        Layout(times="$.data[*].t", ends="$.data[*].e", values="$.data[*].v", unit="g/kWh"),
    ).steps
    assert day.end_s - day.start_s == 25 * 3600


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ("EUR/MWh", True),
        ("Eur / mwh", True),
        ("\u20ac/MWh", True),
        ("see text", True),
        (7, True),
        ("EUR/kWh", False),
        ("ct/kWh", False),
        ("GBP/MWh", False),
    ],
)
def test_an_answer_in_another_unit_is_refused(said: object, good: bool) -> None:
    answer = {"unix_seconds": [0, 3600], "price": [95, 96], "unit": said}
    if good:
        assert read(answer, preset("energy-charts").layout).steps[0].value == pytest.approx(0.095)
        return
    with pytest.raises(JobSpecError, match="unit"):
        read(answer, preset("energy-charts").layout)


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


def test_a_path_through_too_many_items_is_refused_though_it_leads_to_few() -> None:
    layout = Layout(times="$[*][*].t", values="$[*][*].v", unit="g/kWh")
    days = [[{"t": 0, "v": 1}, {"t": 3600, "v": 2}], *[[]] * MOST_STEPS]
    assert len(parsed(json.dumps(days[:MOST_STEPS]), layout).steps) == 2
    with pytest.raises(JobSpecError, match="too long"):
        parsed(json.dumps(days), layout)


@pytest.mark.parametrize(
    "path", ["data", "$data", "$.a[0]", "$.a..b", "$.a[*", "$." + "a" * 20 + "("]
)
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
    assert (
        parsed(f'{{"t": [{digits}, 3600, 7200], "v": [1, 2, 3]}}', SIMPLE).steps[0].value == 2.0
    ), "no time either"


@REPRODUCIBLE
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4),
        lambda c: (
            st.lists(c, max_size=3)
            | st.dictionaries(st.sampled_from(["t", "v", "x"]), c, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_any_answer_gives_a_series_or_an_error_of_ours(answer: Any) -> None:
    try:
        found = read(answer, SIMPLE)
    except JobSpecError:
        return
    assert all(s.end_s > s.start_s for s in found.steps)


def test_a_negative_carbon_intensity_is_a_gap_and_a_negative_price_a_value() -> None:
    text = "time,value\n2026-01-05T00:00Z,300\n2026-01-05T01:00Z,-999\n2026-01-05T02:00Z,310\n"
    carbon, price = (
        parsed(text, Layout(times="time", values="value", unit=unit))
        for unit in ("g/kWh", "EUR/kWh")
    )
    assert [step.value for step in carbon.steps] == [300, 310]
    assert carbon.at(T0 + 3600) is None
    assert [step.value for step in price.steps] == [300, -999, 310]


def test_a_forecast_counts_where_the_carbon_intensity_is_negative() -> None:
    layout = Layout(
        times="time", values="value", forecasts="forecast", step_s=3600.0, unit="kg/MWh"
    )
    (step,) = parsed("time,value,forecast\n2026-01-05T00:00Z,-1,280\n", layout).steps
    assert (step.value, step.estimated) == (280, True)


def test_carbon_intensities_that_are_all_negative_are_named() -> None:
    text = "time,value\n2026-01-05T00:00Z,-999\n2026-01-05T01:00Z,-999\n"
    with pytest.raises(JobSpecError, match="at least 0"):
        parsed(text, Layout(times="time", values="value", unit="g/kWh"))


NIGHT = "time,value\n{},{}\n{},{}\n{},{}\n{},{}\n"


@pytest.mark.parametrize("two", ["2026-10-25 02:00", "2026-10-25T02:00:00", "202610250200"])
def test_two_values_at_one_time_without_an_offset_are_refused(two: str) -> None:
    """Which of them is the later one is not known: in the night of 25 October there are two of 02:00."""
    text = NIGHT.format("2026-10-25 01:00", 0.3, two, 0.2, two, 0.1, "2026-10-25 03:00", 0.3)
    with pytest.raises(
        JobSpecError, match=r"entry 3 of 4 .* no offset: .* clocks are put back .* UTC"
    ):
        parsed(text, Layout(times="time", values="value", unit="EUR/kWh"))


def test_a_line_that_is_there_twice_and_times_with_an_offset_are_read() -> None:
    layout = Layout(times="time", values="value", unit="EUR/kWh")
    text = NIGHT.format(
        "2026-10-25 01:00",
        0.3,
        "2026-10-25 02:00",
        0.2,
        "2026-10-25 02:00",
        0.2,
        "2026-10-25 03:00",
        0.3,
    )
    assert [step.value for step in parsed(text, layout).steps] == [0.3, 0.2, 0.3]
    times = ("01:00+02:00", "02:00+02:00", "02:00+01:00", "03:00+01:00")
    text = NIGHT.format(
        *(part for i, each in enumerate(times) for part in (f"2026-10-25T{each}", i))
    )
    assert [step.value for step in parsed(text, layout).steps] == [0, 1, 2, 3]


PAIRS = {
    "Prometheus": (
        {
            "data": {
                "resultType": "matrix",
                "result": [{"metric": {}, "values": [[T0 + 0.5, "9.5"], [T0 + 60.5, "NaN"]]}],
            }
        },
        "$.data.result[0].values[*]",
    ),
    "InfluxDB": (
        {
            "results": [
                {
                    "series": [
                        {
                            "columns": ["time", "v"],
                            "values": [["2026-01-05T00:00:00.5Z", 9.5], [None, 3]],
                        }
                    ]
                }
            ]
        },
        "$.results[0].series[0].values[*]",
    ),
    "the plain list": ([[1000 * T0 + 500, 9.5], [1000 * T0 + 60_500]], "$[*]"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_time_and_value_are_read(name: str) -> None:
    answer, path = PAIRS[name]
    layout = Layout(times=f"{path}[0]", values=f"{path}[1]", unit="EUR/kWh", step_s=60.0)
    (step,) = read(answer, layout).steps
    assert (step.start_s, step.end_s, step.value) == (T0 + 0.5, T0 + 60.5, 9.5)


def test_an_item_that_no_list_has_is_named() -> None:
    with pytest.raises(JobSpecError, match=r"no such item of a list at part 2"):
        read([[T0, 1], [T0 + 60, 2]], Layout(times="$[*][0]", values="$[*][2]", unit="EUR/kWh"))
