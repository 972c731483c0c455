"""The notifiers of a task: how they are named, made, and handed an event."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow_provider_zeus.reports.alert_book import Record

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.alerts import configured, notifiers_of, send

RECORD = Record(
    kind="failing", name="failing", since=3, sentence="S.", remedy="R.", dag_id="d", run_id="r 1", began_s=1.0
)
HEARD: list[str] = []


class Says(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str = "{{ zeus.job }} {{ zeus.trial }} {{ zeus.sentence }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text = text

    def notify(self, context: Any) -> None:
        HEARD.append(self.text)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__NOTIFIERS", "")
    HEARD.clear()


def test_a_notifier_is_used_for_several_events_and_the_context_stays() -> None:
    (named,) = notifiers_of([Says()])
    context = {"dag": None}
    assert [send(named, context, RECORD, job, 5.0) for job in ("a", "b")] == ["", ""]
    assert HEARD == ["a 3 S.", "b 3 S."]
    assert context == {"dag": None}


def test_those_of_the_configuration_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"classpath": f"{__name__}.Says", "kwargs": {"text": "{{ zeus.kind }}"}}
    monkeypatch.setenv("AIRFLOW__ZEUS__NOTIFIERS", json.dumps([entry, {"classpath": "no.such.Notifier"}]))
    found = notifiers_of([Says(), print])
    assert [named.name for named in found] == ["Says", "Notifier", "Says 2", "print"]
    assert send(found[0], {}, RECORD, "a", 5.0) == ""
    assert HEARD == ["failing"]
    assert send(found[1], {}, RECORD, "a", 5.0) == "Notifier: ModuleNotFoundError"


def test_what_hangs_is_left_and_what_raises_tells_its_class_alone(caplog: pytest.LogCaptureFixture) -> None:
    def hangs(context: Any) -> None:
        time.sleep(60)

    def raises(context: Any) -> None:
        raise OSError("https://hooks.example/secret")

    def leaves(context: Any) -> None:
        raise SystemExit(3)

    slow, bad, gone = notifiers_of([hangs, raises, leaves])
    assert send(slow, {}, RECORD, "a", 0.05).endswith(": no answer for 0 s")
    assert send(bad, {}, RECORD, "a", 5.0).endswith("raises: OSError")
    assert send(gone, {}, RECORD, "a", 5.0).endswith("leaves: SystemExit")
    assert "OSError, raised at " in caplog.text
    assert "hooks.example" not in caplog.text, "the log is read by more people than the address"


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no connection to https://hooks.example/secret"),
        BaseExceptionGroup("https://hooks.example/secret", [KeyboardInterrupt()]),
    ],
)
def test_an_error_of_another_kind_tells_its_class_alone_too(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(context: Any) -> None:
        raise error

    (bad,) = notifiers_of([raises])
    assert send(bad, {}, RECORD, "a", 5.0).endswith(f"raises: {type(error).__name__}")
    assert f"{type(error).__name__}, raised at " in caplog.text
    assert "hooks.example" not in caplog.text


@pytest.mark.parametrize("text", ["x", "{}", "[1]", '[{"classpath": "x"}]', '[{"classpath": "a.B", "kwargs": []}]'])
def test_an_option_that_is_wrong_names_the_form_and_no_secret(text: str) -> None:
    with pytest.raises(JobSpecError, match=r"\[zeus\] notifiers = .*give a list as"):
        configured(text)
