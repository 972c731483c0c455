"""Events from begin to end: told once, silenced, kept within bounds, read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.reports.alert_book import AlertBook, Silence
from airflow_provider_zeus.reports.alerts import FAILING, KINDS, LOST, Event
from tests.strategies import REPRODUCIBLE


def event(kind: str, sentence: str = "So.") -> Event:
    return Event(kind=kind, name=kind, since=1, sentence=sentence, remedy="Do.", figures={"runs": 1, "unit": "J"})


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
            book = book.noted(record.name, ["mail"], "", float(n))
        before = holds
        assert len(book.records) <= 50
        assert AlertBook.from_json(book.to_json()).to_json() == book.to_json()


def test_what_one_notifier_did_not_take_is_due_for_it() -> None:
    book = looked(AlertBook(), FAILING).noted(FAILING, ["mail"], "chat: TimeoutError", 2.0)
    assert book.due(["mail"]) == []
    (record,) = book.due(["mail", "chat"])
    assert (record.sent_to, record.not_sent, record.sent_s) == (("mail",), "chat: TimeoutError", 2.0)
    (record,) = looked(book.noted(FAILING, ["chat"], "", 3.0), now_s=4.0).records
    assert (record.sent_to, record.not_sent, record.ended_s) == (("mail", "chat"), "", 4.0)


def test_a_look_at_some_kinds_ends_no_other() -> None:
    book = looked(looked(AlertBook(), FAILING, LOST), at=(LOST,), now_s=2.0)
    assert [r.kind for r in book.open] == [FAILING]


def test_an_open_event_says_the_newest() -> None:
    book = looked(AlertBook(), FAILING).updated(
        [event(FAILING, "Now 2.")], dag_id="d", run_id="r2", now_s=2.0, kinds=KINDS
    )
    assert [(r.sentence, r.run_id, r.began_s) for r in book.records] == [("Now 2.", "r1.0", 1.0)]


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
