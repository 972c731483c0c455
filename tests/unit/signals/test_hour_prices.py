"""Each signal is read for itself: one that hangs or fails takes no other one's figure away, and its reason is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.signals.hours import HourPrices
from airflow_provider_zeus.signals.series import Series, Step, Unit

NOW_S = time.time()


def always(value: float, unit: str) -> Series:
    return Series.of(Unit.parse(unit), [Step(NOW_S - 86_400, NOW_S + 86_400, value)], source="test")


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def priced(signals: dict[str, Any], most_s: float = 60.0, **prices: Any) -> Observation:
    """An attempt of 90 s that has ended; ``signals``: a series, a reason, an error, or an event that never comes."""

    def read(name: str, start_s: float, end_s: float) -> Series | str | None:
        found = signals.get(name)
        if isinstance(found, threading.Event):
            found.wait(60)
            return None
        if isinstance(found, Exception):
            raise found
        return found

    seen = Observation(energy_j=1e6, time_s=90.0, energy_source="nvml_counter")
    return HourPrices(began_s=NOW_S - 100, reader=read, **prices).priced(seen, None, most_s)


@pytest.mark.parametrize(("hangs", "answers"), [("carbon", "price"), ("price", "carbon")])
@pytest.mark.slow
def test_a_signal_that_hangs_costs_the_other_one_nothing(
    over: threading.Event, hangs: str, answers: str
) -> None:
    field = {"price": "price_per_kwh", "carbon": "g_co2e_per_kwh"}
    there = always(0.3, "EUR/kWh" if answers == "price" else "g/kWh")
    seen = priced({hangs: over, answers: there}, most_s=3.0)
    assert getattr(seen, field[answers]) == pytest.approx(0.3)
    assert getattr(seen, field[hangs]) is None
    assert f"Signal {hangs!r}: no answer in " in seen.reasons[field[hangs]]


def test_each_signal_has_an_equal_share_of_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares_s: list[float] = []

    def read_one(_: HourPrices, name: str, over: object, most_s: float) -> str:
        shares_s.append(most_s)
        return f"no {name}"

    monkeypatch.setattr(HourPrices, "_read_one", read_one)
    priced({}, most_s=600.0)
    assert shares_s == pytest.approx([300.0, 600.0], rel=0.1), "the first took no time"


def test_where_the_hours_cannot_be_priced_the_cost_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged(*_: object) -> None:
        raise KeyError("s3cret")

    monkeypatch.setattr(HourPrices, "_read", damaged)
    seen = priced({})
    assert (seen.energy_j, seen.price_per_kwh) == (1e6, None)
    assert "the hours of this run could not be priced (KeyError)" in caplog.text
    assert "s3cret" not in caplog.text


def test_without_energy_or_a_span_no_signal_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[object] = []
    prices = HourPrices(began_s=NOW_S - 100, reader=lambda *signal: asked.append(signal))
    for seen in (Observation(time_s=90.0), Observation(energy_j=1e6)):
        assert prices.priced(seen, None, 60.0) == seen
    assert asked == []
    assert caplog.text == ""


def test_an_error_of_any_kind_is_the_reason_of_its_own_figure() -> None:
    seen = priced({"price": KeyError("http://host?key=s3cret"), "carbon": always(300.0, "g/kWh")})
    assert seen.g_co2e_per_kwh == pytest.approx(300.0)
    assert "KeyError" in seen.reasons["price_per_kwh"]
    assert "s3cret" not in seen.reasons["price_per_kwh"]


def test_each_own_signal_prices_what_no_connection_of_all_does() -> None:
    signals = {
        "carbon": always(300.0, "g/kWh"),
        "tibber": always(0.25, "EUR/kWh"),
        "grid": always(9.0, "g/kWh"),
    }
    assert priced(signals, own=["carbon", "tibber"]).price_per_kwh == pytest.approx(0.25)
    assert priced(signals, own=["grid", "tibber"]).g_co2e_per_kwh == pytest.approx(300.0)


def test_why_an_own_signal_gives_nothing_names_no_connection() -> None:
    """Pages show the reason, also to those who may not read Connections."""
    why = "Signal 'tibber': Connection 'tibber' gave no answer (TimeoutError)"
    assert "tibber" not in str(priced({"tibber": why}, own=["tibber"]).reasons)


def test_why_an_own_signal_gives_nothing_is_said() -> None:
    seen = priced({"carbon": always(300.0, "g/kWh"), "tibber": "no answer"}, own=["tibber"])
    assert (seen.reasons, seen.g_co2e_per_kwh) == (
        {"price_per_kwh": "no answer"},
        pytest.approx(300.0),
    )
    assert priced({}, own=["tibber"]).reasons == {}, "no Connection of that name"


@pytest.mark.parametrize(
    ("ended_ago_s", "span_ago_s"),
    [
        (5, (95, 5)),
        (40, (100, 40)),  # it says that it took longer than its run
        (9_000, (100, 100)),  # by the clock of another host
    ],
)
def test_an_attempt_is_priced_within_its_run(
    ended_ago_s: float, span_ago_s: tuple[float, float]
) -> None:
    asked = []

    def read(name: str, start_s: float, end_s: float) -> None:
        asked.append((start_s, end_s))

    seen = Observation(energy_j=1e6, time_s=90.0, energy_source="nvml_counter")
    HourPrices(began_s=NOW_S - 100, reader=read).priced(seen, NOW_S - ended_ago_s, 60.0)
    begin_ago_s, end_ago_s = span_ago_s
    assert set(asked) == {(NOW_S - begin_ago_s, NOW_S - end_ago_s)}
