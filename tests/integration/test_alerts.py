"""Events of a job by mail and by HTTP, from real Airflow runs to real receivers on 127.0.0.1."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseNotifier, task

from airflow_provider_zeus.errors import DeviceError, StoreError
from airflow_provider_zeus.model.event import LIMITS, NO_METRIC, STORE, Event
from airflow_provider_zeus.operators import alerts, asking
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.store.open import open_store
from tests.integration.jobs import job, log_of, loop, zeus_dag
from tests.ports import kept_port

MAIL = {
    "to": "ml@example.com",
    "from_email": "airflow@example.com",
    "subject": "{{ zeus.job }}: {{ zeus.kind }}",
    "html_content": "{{ zeus.sentence | e }} {{ zeus.page }}",
}
SMTP = [{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": MAIL}]


class WebhookNotifier(BaseNotifier):
    """As in docs/how-to/alerts.md: posts an event as JSON."""

    template_fields = ("text",)

    def __init__(self, url: str, text: str = "{{ zeus.sentence }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url
        self.text = text

    def notify(self, context: Any) -> None:
        body = json.dumps({"text": self.text, "event": context["zeus"]}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=60
        ).close()


class Inbox:
    """Mails that have come."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, list[str], Message]] = []

    # aiosmtpd asks for this name
    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(
            (envelope.mail_from, envelope.rcpt_tos, message_from_bytes(envelope.content))
        )
        return "250 OK"


@pytest.fixture(autouse=True)
def _patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to look, and to send."""
    for name in ("READ_S", "SEND_S", "ALL_S"):
        monkeypatch.setattr(alerts, name, 60.0)


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    found = Inbox()
    with kept_port() as port:
        receiver = Controller(found, hostname="127.0.0.1", port=port, ready_timeout=60)
        receiver.start()
        plain = {"disable_ssl": True, "disable_tls": True}
        conn = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": plain}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(conn))
        yield found
        receiver.stop()


class Hook:
    """An HTTP receiver. While ``answers`` is unset it takes requests and says nothing."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.answers.wait(60)
                hook.bodies.append(body)
                self.send_response(hook.status)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.answers.set()
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fields of a job whose runs end well and raise one event: no power limit can be set."""

    def refuse(self: SimulatedGpu, limit_w: float) -> None:
        raise DeviceError("this process may not set it")

    monkeypatch.setattr(SimulatedGpu, "set_limit_w", refuse)
    return {"device": "simulated:v100/bert_sa", "power_limits_w": [150, 250]}


def fails(batch_size: int) -> int:
    raise RuntimeError("disk full <b>")


def fine(batch_size: int) -> int:
    return 4


def held(job_id: str) -> list[Event]:
    """The events of a job that hold."""
    by_dag = open_store().events(job_id)
    return [event for of_dag in by_dag.values() for event in of_dag.events]


def text_of(mail: Message) -> str:
    parts = [part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart()]
    return b"".join(part for part in parts if isinstance(part, bytes)).decode()


def test_a_failing_job_is_mailed_once_until_it_ends(
    run_dag: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__NOTIFIERS", json.dumps(SMTP))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/team")
    outcomes = iter([fails, fails, fine, fails])

    def epochs(b: int) -> int:
        return outcome(b)

    dag = zeus_dag("zeus_alert_mail", job(batch_sizes=[32]), epochs)
    states = []
    counts = []
    for outcome in outcomes:  # noqa: B007 - epochs() reads it
        states.append(run_dag(dag).state)
        counts.append(len(inbox.mails))
    assert states == ["failed", "failed", "success", "failed"]
    assert counts == [1, 1, 1, 2], "once while it lasts, and again when it began anew"
    sender, receivers, mail = inbox.mails[0]
    assert (sender, receivers) == (MAIL["from_email"], [MAIL["to"]])
    assert mail["Subject"] == "zeus_alert_mail.train: failing"
    text = text_of(mail)
    assert "The newest run left no model (run 1): RuntimeError: disk full &lt;b&gt;." in text
    assert "https://airflow.example.com/team/dags/zeus_alert_mail/runs/" in text
    (event,) = held("zeus_alert_mail.train")
    assert (event.since, event.kind) == (4, "failing")


@pytest.mark.slow
def test_a_jobs_own_notifiers_hear_of_it_over_http(
    run_dag: Any, hook: Hook, refused: dict[str, Any]
) -> None:
    own = [WebhookNotifier(hook.url), SmtpNotifier(**MAIL)]
    dag = zeus_dag("zeus_alert_http", job(**refused, notify=own))
    assert run_dag(dag).state == "success"
    (body,) = hook.bodies
    event = body["event"]
    assert (event["kind"], event["job"], event["dag"], event["trial"]) == (
        LIMITS,
        "zeus_alert_http.train",
        dag.dag_id,
        1,
    )
    assert body["text"] == event["sentence"]
    assert event["figures"] == {"runs": 1, "limit_w": 250.0}
    assert "notify" not in log_of("zeus_alert_http.train")[0].spec
    assert run_dag(dag).state == "success"
    assert len(hook.bodies) == 1


@pytest.mark.slow
def test_what_raises_changes_no_state_and_is_not_sent_again(
    run_dag: Any, hook: Hook, refused: dict[str, Any]
) -> None:
    hook.status = 500
    dag = zeus_dag("zeus_alert_again", job(**refused, notify=WebhookNotifier(hook.url)))
    assert run_dag(dag).state == "success"
    hook.status = 200
    assert run_dag(dag).state == "success"
    assert len(hook.bodies) == 1
    assert [event.kind for event in held("zeus_alert_again.train")] == [LIMITS]


@pytest.mark.slow
def test_a_notifier_that_hangs_adds_nothing_to_the_tasks_time(
    run_dag: Any,
    hook: Hook,
    refused: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(alerts, "SEND_S", 1.0)
    hook.answers.clear()
    ended: list[bool] = []
    begun = threading.Event()

    class Hangs(WebhookNotifier):
        def notify(self, context: Any) -> None:
            ended.append(context["ti"].end_date is not None)
            begun.set()
            super().notify(context)

    dag = zeus_dag(
        "zeus_alert_hangs", job(**refused, notify=[Hangs(hook.url), WebhookNotifier(hook.url)])
    )
    run = run_dag(dag)
    assert run.state == "success"
    assert begun.wait(60)
    assert ended == [True], "Airflow has the task's state before anything is sent"
    assert run.get_task_instance("train").xcom_pull(task_ids="train", key="return_value") == 32
    assert "notifier Hangs did not take the event" in caplog.text


@pytest.mark.slow
def test_a_store_that_is_away_is_told_once_a_day(
    run_dag: Any, hook: Hook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asks_briefly: None
) -> None:
    def away(*args: Any, **kwargs: Any) -> Any:
        raise StoreError("no route to host")

    monkeypatch.setenv("AIRFLOW__ZEUS__STATE_DIR", str(tmp_path / "state"))
    dag = zeus_dag("zeus_alert_away", job(notify=WebhookNotifier(hook.url)))
    with monkeypatch.context() as outage:
        outage.setattr(asking, "open_store", away)
        assert [run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert [body["event"]["kind"] for body in hook.bodies] == [STORE]
    assert "default batch size 32" in hook.bodies[0]["text"]
    assert run_dag(dag).state == "success"
    assert len(hook.bodies) == 1


@pytest.mark.slow
def test_a_try_that_airflow_repeats_sends_nothing(run_dag: Any, hook: Hook) -> None:
    outcomes = iter([fails, fine, fails, fails])

    def epochs(b: int) -> int:
        return next(outcomes)(b)

    dag = zeus_dag(
        "zeus_alert_retry", job(batch_sizes=[32], notify=WebhookNotifier(hook.url)), epochs
    )
    train = dag.get_task("train")
    train.retries, train.retry_delay = 1, timedelta(0)
    assert run_dag(dag).state == "success"
    assert hook.bodies == []
    assert run_dag(dag).state == "failed"
    assert len(hook.bodies) == 1


@pytest.mark.slow
def test_mapped_tasks_of_a_job_send_an_event_once(
    run_dag: Any, hook: Hook, refused: dict[str, Any]
) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    def mapped() -> DAG:
        with DAG(
            "zeus_alert_mapped", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)
        ) as dag:

            @task.zeus(job(**refused, notify=[WebhookNotifier(hook.url)]))
            def train(run=None, city=None):
                loop(run, 4)

            train.expand(city=["ewr", "jfk"])
        return dag

    one, other = (
        json.dumps(DagSerialization.serialize_dag(mapped()), sort_keys=True) for _ in range(2)
    )
    assert one == other, "no new version of the DAG at each parse"
    assert run_dag(mapped()).state == "success"
    assert [body["event"]["kind"] for body in hook.bodies] == [LIMITS]


def test_a_training_elsewhere_is_told_by_its_teardown(run_dag: Any, hook: Hook) -> None:
    with DAG("zeus_alert_trial", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        spec = job(device="auto", notify=WebhookNotifier(hook.url))
        with ZeusTrial(spec):
            EmptyOperator(task_id="train")
    run_dag(dag)
    assert [body["event"]["kind"] for body in hook.bodies] == [NO_METRIC]
    assert "no result" in hook.bodies[0]["text"]


def test_a_limit_that_cannot_be_set_is_told(
    run_dag: Any, hook: Hook, refused: dict[str, Any]
) -> None:
    dag = zeus_dag("zeus_alert_limit", job(**refused, notify=WebhookNotifier(hook.url)))
    assert run_dag(dag).state == "success"
    (body,) = hook.bodies
    assert body["event"]["kind"] == LIMITS
    assert (
        "in the newest run (run 1): this process may not set it. The newest one ended at 250 W."
        in body["text"]
    )
