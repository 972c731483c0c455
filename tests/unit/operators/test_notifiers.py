"""The notifiers of a task: how they are named, made, and handed an event."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.event import FAILING, Event
from airflow_provider_zeus.operators import alerts
from airflow_provider_zeus.operators.alerts import configured, event_of, notifiers_of, send
from tests.unit.plugin.kit import trial

RUN = trial(4, "r 2")
FAILED = event_of(Event(kind=FAILING, since=3, run_id="r 1", sentence="S.", remedy="R."), RUN)
HEARD: list[str] = []


class Says(BaseNotifier):
    template_fields = ("text",)

    def __init__(
        self, text: str = "{{ zeus.job }} {{ zeus.trial }} {{ zeus.sentence }}", **kwargs: Any
    ) -> None:
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
    for job in ("a", "b"):
        send(named, context, {**FAILED, "job": job})
    assert HEARD == ["a 3 S.", "b 3 S."]
    assert context == {"dag": None}


def test_those_of_the_configuration_come_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = {"classpath": f"{__name__}.Says", "kwargs": {"text": "{{ zeus.kind }}"}}
    monkeypatch.setenv(
        "AIRFLOW__ZEUS__NOTIFIERS", json.dumps([entry, {"classpath": "no.such.Notifier"}])
    )
    found = notifiers_of([Says(), print])
    assert [named.name for named in found] == ["Says", "Notifier", "Says", "print"]
    send(found[0], {}, FAILED)
    assert HEARD == ["failing"]
    send(found[1], {}, FAILED)
    assert "notifier Notifier did not take the event 'failing': ModuleNotFoundError" in caplog.text


def test_an_event_names_the_run_that_showed_it_and_its_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FAILED["page"] == ""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team/")
    of_none = event_of(Event(kind=FAILING, sentence="S.", remedy="R."), RUN)
    assert (of_none["run"], of_none["trial"]) == ("r 2", None)
    assert of_none["page"].startswith("https://airflow.example.com/team/dags/d/runs/r%202")


def test_what_hangs_is_left_and_what_raises_tells_its_class_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(context: Any) -> None:
        time.sleep(60)

    def raises(context: Any) -> None:
        raise OSError("https://hooks.example/secret")

    def leaves(context: Any) -> None:
        raise SystemExit(3)

    slow, bad, gone = notifiers_of([hangs, raises, leaves])
    send(bad, {}, FAILED)
    send(gone, {}, FAILED)
    monkeypatch.setattr(alerts, "SEND_S", 0.05)
    send(slow, {}, FAILED)
    assert "hangs did not take the event 'failing'" in caplog.text
    assert "OSError, raised at " in caplog.text
    assert "SystemExit, raised at " in caplog.text
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
    send(bad, {}, FAILED)
    assert f"{type(error).__name__}, raised at " in caplog.text
    assert "hooks.example" not in caplog.text


@pytest.mark.parametrize(
    "text", ["x", "{}", "[1]", '[{"classpath": "x"}]', '[{"classpath": "a.B", "kwargs": []}]']
)
def test_an_option_that_is_wrong_names_the_form_and_no_secret(text: str) -> None:
    with pytest.raises(JobSpecError, match=r"\[zeus\] notifiers = .*give a list as"):
        configured(text)


def test_the_templates_of_the_manual_escape_what_a_training_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "alerts.md").read_text()
    slack = page.partition('TEXT = """')[2].partition('"""')[0]
    mail = page.partition('"html_content": "')[2].partition('"')[0]
    hostile = {**FAILED, "sentence": "<!channel> & <https://evil.example|see> it's"}
    for template in (slack, mail):
        (named,) = notifiers_of([Says(text=template)])
        send(named, {}, hostile)
    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|see&gt; it's" in HEARD[0]
    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|see&gt; it&#39;s" in HEARD[1]
