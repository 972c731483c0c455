"""Events from begin to end: told once, silenced, kept within bounds, read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import Origin
from airflow_provider_zeus.reports.alert_book import AlertBook, Silence
from airflow_provider_zeus.reports.alerts import FAILING, KINDS, LOST, STORE, Event
from tests.strategies import REPRODUCIBLE


def event(kind: str, sentence: str = "So.", **more: Any) -> Event:
    figures = {"runs": 1, "unit": "J"}
    return Event(kind=kind, name=kind, sentence=sentence, remedy="Do.", figures=figures, **{"since": 1, **more})


def looked(book: AlertBook, *kinds: str, now_s: float = 1.0, at: tuple[str, ...] = KINDS) -> AlertBook:
    return book.updated([event(kind) for kind in kinds], dag_id="d", run_id=f"r{now_s}", now_s=now_s, kinds=at)


@REPRODUCIBLE
@given(st.lists(st.sets(st.sampled_from([FAILING, LOST])), max_size=80))
def test_each_event_is_due_once_until_it_ends(looks: list[set[str]]) -> None:
    book, before = AlertBook(), set[str]()
    for n, holds in enumerate(looks, 1):
        book = looked(book, *holds, now_s=float(n))
        assert {r.kind for r in book.open} == holds
        due = book.due(["mail"])
        assert {r.kind for r in due} == holds - before, "what begins now, and nothing else"
        for record in due:
            book = book.noted(record, ["mail"], "", float(n))
        before = holds
        assert len(book.records) <= 50
        assert AlertBook.from_json(book.to_json()).to_json() == book.to_json()


def test_what_one_notifier_did_not_take_is_due_for_it() -> None:
    book = looked(AlertBook(), FAILING)
    book = book.noted(book.open[0], ["mail"], "chat: TimeoutError", 2.0)
    assert book.due(["mail"]) == []
    (record,) = book.due(["mail", "chat"])
    assert (record.sent_to, record.not_sent, record.sent_s) == (("mail",), "chat: TimeoutError", 2.0)
    (record,) = looked(book.noted(record, ["chat"], "", 3.0), now_s=4.0).records
    assert (record.sent_to, record.not_sent, record.ended_s) == (("mail", "chat"), "", 4.0)


def test_a_look_at_some_kinds_ends_no_other() -> None:
    book = looked(looked(AlertBook(), FAILING, LOST), at=(LOST,), now_s=2.0)
    assert [r.kind for r in book.open] == [FAILING]


def test_an_open_event_says_the_newest() -> None:
    book = looked(AlertBook(), FAILING).updated(
        [event(FAILING, "Now 2.")], dag_id="d", run_id="r2", now_s=2.0, kinds=KINDS
    )
    assert [(r.sentence, r.run_id, r.began_s) for r in book.records] == [("Now 2.", "r1.0", 1.0)]


def test_an_event_of_another_run_or_dag_ends_it_and_is_due_itself() -> None:
    def of(dag_id: str, run_id: str, **more: Any) -> Event:
        return event(FAILING, f"{dag_id} {run_id}", origin=Origin(dag_id=dag_id, run_id=run_id), **more)

    def seen(book: AlertBook, *events: Event) -> AlertBook:
        return book.updated(events, dag_id="a", run_id="looked", now_s=2.0, kinds=KINDS)

    book = seen(AlertBook(), of("a", "r1"))
    book = book.noted(book.open[0], ["mail"], "", 1.0)
    for other in (of("b", "r1", since=2), of("a", "r2", since=2), of("b", "r2", since=2, moves=True)):
        after = seen(book, other)
        assert [(r.sentence, r.ended_s) for r in after.records] == [("a r1", 2.0), (other.sentence, None)]
        assert after.due(["mail"]) == after.open
    both = seen(book, of("a", "r1"), of("b", "r3", since=3))
    assert [r.dag_id for r in both.open] == ["a", "b"]
    assert [r.dag_id for r in both.due(["mail"])] == ["b"], "what A was told is not told to B"
    assert seen(both, of("a", "r1"), of("b", "r9", since=9, moves=True)).open[1].run_id == "r3", (
        "its first run moved on"
    )
    assert AlertBook.from_json(both.to_json()) == both


def test_what_no_trial_showed_is_ended_by_its_own_dag() -> None:
    away = event(STORE, since=None)
    book = AlertBook().updated([away], dag_id="a", run_id="r1", now_s=1.0, kinds=KINDS)
    book = book.updated([away], dag_id="b", run_id="r2", now_s=2.0, kinds=KINDS)
    assert [r.dag_id for r in book.open] == ["a", "b"]
    book = book.updated([], dag_id="b", run_id="r3", now_s=3.0, kinds=KINDS)
    assert [r.dag_id for r in book.open] == ["a"]


def test_a_silenced_kind_is_due_when_it_is_heard_again() -> None:
    book = looked(AlertBook(), FAILING).with_silence(FAILING, Silence(by="ada", at_s=1.0))
    assert (book.due(["mail"]), len(book.open)) == ([], 1)
    assert AlertBook.from_json(book.to_json()) == book
    assert len(book.with_silence(FAILING, None).due(["mail"])) == 1


def test_the_oldest_that_ended_go_first() -> None:
    book = looked(AlertBook(), LOST)
    for n in range(2, 2 * 50):
        book = looked(book, LOST, *([FAILING] if n % 2 else []), now_s=float(n))
    assert len(book.records) == 50
    assert LOST in [r.kind for r in book.open], "what is open stays"


def test_a_text_that_is_no_utf_8_makes_no_book() -> None:
    """JSON may hold half of a pair of surrogates, which no page can send."""
    text = looked(AlertBook(), LOST).to_json().replace("So.", "\\ud800")
    with pytest.raises(ValueError, match="surrogates"):
        AlertBook.from_json(text)


@pytest.mark.parametrize(
    "text", ["[]", '{"v": 2}', "x", '{"v": 1, "records": 5}', '{"v": 1, "records": [{"kind": 1}]}']
)
def test_what_is_no_book_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        AlertBook.from_json(text)
    assert AlertBook.from_json(None) == AlertBook.from_json("  ") == AlertBook()
