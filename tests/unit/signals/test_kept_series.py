"""Series that are kept: one asks for all, the past is remembered, and a service or a log that fails costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from http.client import BadStatusLine

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.signals.reading import KEPT_S, ReadOnlyKeeper, kept_series
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.store.base import FRESH_S, RETRY_S
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import Clock, DictPort

H = 3600.0


def hours(first: int, last: int, value: float = 1.0, unit: str = "g/kWh") -> Series:
    return Series.of(
        Unit.parse(unit),
        [Step(i * H, (i + 1) * H, value) for i in range(first, last)],
        source="api",
    )


class Service:
    """Answers what ``says`` returns; counts how often it is asked."""

    def __init__(self, says: Callable[[], Series]) -> None:
        self.says = says
        self.asked = 0

    def __call__(self) -> Series:
        self.asked += 1
        return self.says()


def fails() -> Series:
    raise OSError("refused")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keeper(clock: Clock) -> VariableStore:
    return VariableStore(DictPort(), now=clock)


def asking(keeper: VariableStore, service: Service, clock: Clock) -> Series:
    return kept_series(
        keeper, "price", service, clock=clock, sleep=lambda s: setattr(clock, "t", clock.t + s)
    )


def test_one_request_serves_all_for_a_while(keeper: VariableStore, clock: Clock) -> None:
    service = Service(lambda: hours(0, 5))
    assert asking(keeper, service, clock) == hours(0, 5)
    clock.t += FRESH_S - 1
    assert [asking(keeper, service, clock) for _ in range(200)] == [hours(0, 5)] * 200
    assert service.asked == 1
    clock.t += 2
    asking(keeper, service, clock)
    assert service.asked == 2


def test_what_a_service_no_longer_tells_is_remembered_and_the_newer_value_counts(
    keeper: VariableStore, clock: Clock
) -> None:
    clock.t = 9 * H
    asking(keeper, Service(lambda: hours(0, 5)), clock)
    clock.t += FRESH_S
    found = asking(keeper, Service(lambda: hours(3, 8, 2.0)), clock)
    assert [s.value for s in found.steps] == [1.0] * 3 + [2.0] * 5
    clock.t = 4 * H + KEPT_S
    assert asking(keeper, Service(lambda: hours(8, 9)), clock).steps[0].start_s == 4 * H, (
        "and for so long alone"
    )


def test_a_service_that_fails_leaves_what_is_kept_and_is_asked_again_soon(
    keeper: VariableStore, clock: Clock
) -> None:
    with pytest.raises(OSError, match="refused"):
        asking(keeper, Service(fails), clock)
    clock.t += RETRY_S + 1
    asking(keeper, Service(lambda: hours(0, 5)), clock)
    clock.t += FRESH_S
    failing = Service(fails)
    assert asking(keeper, failing, clock) == hours(0, 5)
    assert asking(keeper, failing, clock) == hours(0, 5)
    assert failing.asked == 1
    clock.t += RETRY_S + 1
    asking(keeper, failing, clock)
    assert failing.asked == 2


@pytest.mark.parametrize(
    "error", [BadStatusLine("220"), KeyError("a"), TypeError("None"), AttributeError("get")]
)
def test_any_fault_of_a_service_leaves_what_is_kept(
    keeper: VariableStore, clock: Clock, error: Exception
) -> None:
    def fails() -> Series:
        raise error

    with pytest.raises(type(error)):
        asking(keeper, Service(fails), clock)
    clock.t += RETRY_S + 1
    asking(keeper, Service(lambda: hours(0, 5)), clock)
    clock.t += FRESH_S
    assert asking(keeper, Service(fails), clock) == hours(0, 5)
    clock.t += RETRY_S + 1
    assert keeper.signal("price")[1], "it is asked again soon"


def test_who_comes_while_another_asks_waits_for_its_answer(
    keeper: VariableStore, clock: Clock
) -> None:
    assert keeper.signal("price") == (None, True)

    def pause(seconds: float) -> None:
        clock.t += seconds
        if clock.t > 1002.0:
            keeper.keep_signal("price", hours(0, 3).to_json())

    service = Service(fails)
    assert kept_series(keeper, "price", service, clock=clock, sleep=pause) == hours(0, 3)
    assert service.asked == 0


def test_where_the_other_never_answers_that_is_said(keeper: VariableStore, clock: Clock) -> None:
    keeper.signal("price")
    begun_s = clock.t
    with pytest.raises(TimeoutError):
        asking(keeper, Service(fails), clock)
    assert clock.t <= begun_s + 6.0 + 1


@pytest.mark.parametrize(
    "text", ["", "[]", "[1,2,3,4]", '["g/kWh","","",[[0,"x",1]]]', '["?","","",[]]', "{" * 9999]
)
def test_a_damaged_series_is_asked_for_anew(keeper: VariableStore, clock: Clock, text: str) -> None:
    keeper.keep_signal("price", text)
    clock.t += FRESH_S
    assert asking(keeper, Service(lambda: hours(0, 5)), clock) == hours(0, 5)
    assert asking(keeper, Service(fails), clock) == hours(0, 5)


def test_a_log_that_fails_or_none_means_that_the_service_is_asked(clock: Clock) -> None:
    port = DictPort()
    keeper, service = VariableStore(port, now=clock), Service(lambda: hours(0, 5))
    port.down = True
    assert asking(keeper, service, clock) == kept_series(None, "price", service) == hours(0, 5)
    assert service.asked == 2
    with pytest.raises(StoreError):
        keeper.signal("price")


def test_a_series_in_another_unit_replaces_the_kept_one(
    keeper: VariableStore, clock: Clock
) -> None:
    asking(keeper, Service(lambda: hours(0, 5)), clock)
    clock.t += FRESH_S
    assert asking(keeper, Service(lambda: hours(0, 2, unit="EUR/kWh")), clock) == hours(
        0, 2, unit="EUR/kWh"
    )


SERIES = Series.of(Unit.parse("g/kWh"), [Step(0.0, 3600.0, 100.0)])


def ask() -> Series:
    pytest.fail("the service is asked")


def test_what_is_kept_is_read_and_nothing_is_changed() -> None:
    store = VariableStore(DictPort(), now=Clock())
    with pytest.raises(FileNotFoundError):
        kept_series(ReadOnlyKeeper(store.kept_signal), "s", ask)
    assert store.signal("s") == (None, True), "another caller is still to ask"
    store.keep_signal("s", SERIES.to_json())
    assert kept_series(ReadOnlyKeeper(store.kept_signal), "s", ask) == SERIES


def test_a_log_that_cannot_be_read_keeps_nothing() -> None:
    def broken(name: str) -> str:
        raise StoreError("gone")

    with pytest.raises(OSError, match="gone"):
        kept_series(ReadOnlyKeeper(broken), "s", ask)
