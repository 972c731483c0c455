"""Who changed a job's live settings last in the UI, beside the settings in their Variable."""

from __future__ import annotations

import json

import pytest

from airflow_provider_zeus.store.settings import last_change, read_settings, with_change

WHO = {"by": "ada", "at": "2026-05-04T08:00:00+00:00", "what": "batch size pinned to 64"}


def test_a_change_keeps_what_else_stands_there_and_tells_who_made_it() -> None:
    text = with_change('{"eta": 0.8, "pause_exploration": true}', {"pin_batch_size": 64}, **WHO)
    assert read_settings(lambda _: text, "j") == {"eta": 0.8, "pause_exploration": True, "pin_batch_size": 64}
    assert last_change(text) == WHO
    text = with_change(text, {"pin_batch_size": None, "pause_exploration": None}, **{**WHO, "by": "bob"})
    assert read_settings(lambda _: text, "j") == {"eta": 0.8}
    assert last_change(text)["by"] == "bob"


def test_the_change_is_no_setting(caplog: pytest.LogCaptureFixture) -> None:
    assert read_settings(lambda _: with_change(None, {}, **WHO), "j") == {}
    assert caplog.records == []


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"changed": 3}', json.dumps({"changed": {"by": 1}})])
def test_odd_texts_tell_of_no_change_and_can_be_written_over(text: str | None) -> None:
    assert last_change(text) == {}
    assert read_settings(lambda _: with_change(text, {"pin_batch_size": 16}, **WHO), "j") == {"pin_batch_size": 16}
