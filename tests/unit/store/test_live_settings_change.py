"""A change of a job's live settings: what else stands in the Variable stays,
and what a person wrote is never lost.
"""

from __future__ import annotations

import json

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.live_settings import (
    CHANGED,
    after_change,
    last_change,
    parsed,
    read_settings,
)

WHO = {"by": "ada", "at": "2026-05-04T08:00:00+00:00", "what": "batch size pinned to 64"}
BROKEN = ['{"eta": 0.8,}', "{", "[]", "3", "null", '"eta"', "[" * 100_000, '{"eta": 0.8} # for now']


def changed(text: str | None, changes: dict[str, object], by: str = "ada") -> str:
    return json.dumps(after_change("j", text, {**changes, CHANGED: {**WHO, "by": by}}))


def test_a_change_keeps_what_else_stands_there_and_tells_who_made_it() -> None:
    text = changed('{"eta": 0.8, "pause_exploration": true, "note": null}', {"pin_batch_size": 64})
    assert json.loads(text)["note"] is None
    assert read_settings(lambda _: text, "j") == {
        "eta": 0.8,
        "pause_exploration": True,
        "pin_batch_size": 64,
    }
    assert last_change(text) == WHO
    text = changed(text, {"pin_batch_size": None, "pause_exploration": None}, by="bob")
    assert read_settings(lambda _: text, "j") == {"eta": 0.8}
    assert last_change(text)["by"] == "bob"


def test_the_change_is_no_setting(caplog: pytest.LogCaptureFixture) -> None:
    assert read_settings(lambda _: changed(None, {}), "j") == {}
    assert caplog.records == []


@pytest.mark.parametrize(
    "text", [None, "", " \n", '{"changed": 3}', json.dumps({"changed": {"by": 1}})]
)
def test_texts_without_a_setting_tell_of_no_change_and_can_be_changed(text: str | None) -> None:
    assert last_change(text) == {}
    assert parsed(text)[1] == ""
    assert read_settings(lambda _: changed(text, {"pin_batch_size": 16}), "j") == {
        "pin_batch_size": 16
    }


@pytest.mark.parametrize("text", BROKEN)
def test_a_text_that_is_no_json_object_is_refused_without_the_text_and_with_the_remedy(
    text: str,
) -> None:
    assert parsed(text)[1]
    assert last_change(text) == read_settings(lambda _: text, "j") == {}
    with pytest.raises(StoreError) as refused:
        changed(text, {"pin_batch_size": 16})
    for part in ("zeus-settings:j", parsed(text)[1], "Correct it"):
        assert part in str(refused.value)


def test_a_broken_text_is_not_repeated() -> None:
    with pytest.raises(StoreError) as refused:
        changed('{"password": "hunter2",}', {"pin_batch_size": 16})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["\ud800", "\0"])
def test_a_text_that_no_database_takes_is_no_setting_and_shown_without_it(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """JSON may hold both: the run keeps its log, and the pages their answer."""
    variable = json.dumps({"eta": 0.8, "job_version": text, "changed": {**WHO, "by": text}})
    assert read_settings(lambda _: variable, "j") == {"eta": 0.8}
    assert "job_version" in caplog.text
    assert last_change(variable) == {**WHO, "by": "?"}
