"""Series that a store keeps: one of all callers is to ask, and the text comes back unchanged."""

from __future__ import annotations

from airflow_provider_zeus.store.base import FRESH_S, RETRY_S
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import Clock


def test_one_of_all_callers_is_to_ask(opens: Opens, clock: Clock) -> None:
    assert opens().signal("zeus_price.1a") == (None, True)
    assert [opens().signal("zeus_price.1a") for _ in range(3)] == [(None, False)] * 3
    opens().keep_signal("zeus_price.1a", '["ä", 1]')
    assert opens().signal("zeus_price.1a") == ('["ä", 1]', False)
    assert opens().signal("zeus_carbon.2b") == (None, True), "each name for itself"
    clock.t += FRESH_S
    assert [opens().signal("zeus_price.1a")[1] for _ in range(3)] == [True, False, False]


def test_without_an_answer_another_caller_asks_soon_and_what_was_kept_stays(
    opens: Opens, clock: Clock
) -> None:
    opens().signal("s")
    opens().keep_signal("s", "kept")
    clock.t += FRESH_S
    assert opens().signal("s") == ("kept", True)
    opens().keep_signal("s", None)
    assert opens().signal("s") == ("kept", False)
    clock.t += RETRY_S
    assert opens().signal("s") == ("kept", True)


def test_who_asks_and_tells_nothing_holds_the_others_up_for_a_moment(
    opens: Opens, clock: Clock
) -> None:
    """Its process may have died meanwhile."""
    assert opens().signal("s") == (None, True)
    clock.t += RETRY_S - 1.0
    assert opens().signal("s") == (None, False)
    clock.t += 1.0
    assert opens().signal("s") == (None, True)
    clock.t += RETRY_S / 2
    opens().keep_signal("s", "kept")
    clock.t += FRESH_S - 1.0
    assert opens().signal("s") == ("kept", False), "it is as old as its answer"


def test_a_clock_that_was_set_back_blocks_nobody(opens: Opens, clock: Clock) -> None:
    opens().signal("s")
    opens().keep_signal("s", "kept")
    clock.t -= 500.0
    assert opens().signal("s") == ("kept", True)


def test_who_only_reads_keeps_nobody_from_asking(opens: Opens, clock: Clock) -> None:
    assert opens().kept_signal("s") is None
    assert opens().signal("s") == (None, True)
    opens().keep_signal("s", "kept")
    clock.t += FRESH_S
    assert opens().kept_signal("s") == "kept"
    assert opens().signal("s") == ("kept", True)
