"""Events of a job by mail and by HTTP, from real Airflow runs to real receivers on 127.0.0.1."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseNotifier, task

from airflow_provider_zeus.errors import DeviceError, StoreError
from airflow_provider_zeus.operators import alerts, asking
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.reports.alert_book import AlertBook
from airflow_provider_zeus.reports.alerts import FAILING, LIMITS, NO_METRIC, STORE
from airflow_provider_zeus.store.alerts import change_book, read_book
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.integration.jobs import job, log_of, loop, zeus_dag
from tests.integration.test_month_mail import Inbox, inbox
from tests.unit.plugin.kit import trial

__all__ = ["inbox"]

MAIL = {
    "to": "ml@example.com",
    "from_email": "airflow@example.com",
    "subject": "{{ zeus.job }}: {{ zeus.kind }}",
    "html_content": "{{ zeus.sentence | e }} {{ zeus.page }}",
}
SMTP = [{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": MAIL}]


class WebhookNotifier(BaseNotifier):
    """As in docs/alerts.md: posts an event as JSON."""

    template_fields = ("text",)

    def __init__(self, url: str, text: str = "{{ zeus.sentence }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url, self.text = url, text

    def notify(self, context: Any) -> None:
        body = json.dumps({"text": self.text, "event": context["zeus"]}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=4).close()


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
                hook.answers.wait(30)
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


def kept(job_id: str) -> AlertBook:
    return read_book(AirflowVariables(), job_id)


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

    dag, states = zeus_dag("zeus_alert_mail", job(batch_sizes=[32]), epochs), []
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
    assert "The newest run left no model (trial 1): RuntimeError: disk full &lt;b&gt;." in text
    assert "https://airflow.example.com/team/dags/zeus_alert_mail/runs/" in text
    first, second = kept("zeus_alert_mail.train").records
    assert (first.sent_to, first.not_sent, first.since) == (("SmtpNotifier",), "", 1)
    assert first.ended_s is not None
    assert "Each of the newest 2 runs left no model, since trial 1" in first.sentence
    assert (second.since, second.ended_s) == (4, None)


@pytest.mark.slow
def test_a_jobs_own_notifiers_hear_of_it_over_http(run_dag: Any, hook: Hook, refused: dict[str, Any]) -> None:
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
    (record,) = kept("zeus_alert_http.train").records
    assert record.sent_to == ("WebhookNotifier",)
    assert record.not_sent.startswith("SmtpNotifier: "), "nothing listens there"
    assert run_dag(dag).state == "success"
    assert len(hook.bodies) == 1, "the other notifier alone is tried again"


@pytest.mark.slow
def test_what_raises_is_shown_and_tried_by_the_next_run(run_dag: Any, hook: Hook, refused: dict[str, Any]) -> None:
    hook.status = 500
    dag = zeus_dag("zeus_alert_again", job(**refused, notify=WebhookNotifier(hook.url)))
    assert run_dag(dag).state == "success"
    (record,) = kept("zeus_alert_again.train").records
    assert (record.sent_to, record.not_sent) == ((), "WebhookNotifier: HTTPError")
    hook.status = 200
    assert run_dag(dag).state == "success"
    (record,) = kept("zeus_alert_again.train").records
    assert (record.sent_to, record.not_sent) == (("WebhookNotifier",), "")


@pytest.mark.slow
def test_a_notifier_that_hangs_adds_nothing_to_the_tasks_time(
    run_dag: Any, hook: Hook, refused: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "SEND_S", 1.0)
    hook.answers.clear()
    ended: list[bool] = []

    class Hangs(WebhookNotifier):
        def notify(self, context: Any) -> None:
            ended.append(context["ti"].end_date is not None)
            super().notify(context)

    dag = zeus_dag("zeus_alert_hangs", job(**refused, notify=[Hangs(hook.url), WebhookNotifier(hook.url)]))
    run = run_dag(dag)
    assert run.state == "success"
    assert ended == [True], "Airflow has the task's state before anything is sent"
    assert run.get_task_instance("train").xcom_pull(task_ids="train", key="return_value") == 32
    (record,) = kept("zeus_alert_hangs.train").records
    assert "Hangs: no answer for 1 s" in record.not_sent


@pytest.mark.slow
def test_a_store_that_is_away_is_told_once_until_it_is_back(
    run_dag: Any, hook: Hook, monkeypatch: pytest.MonkeyPatch, asks_briefly: None
) -> None:
    def away(*args: Any, **kwargs: Any) -> Any:
        raise StoreError("no route to host")

    monkeypatch.setattr(asking, "open_store", away)
    dag = zeus_dag("zeus_alert_away", job(notify=WebhookNotifier(hook.url)))
    assert [run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert [body["event"]["kind"] for body in hook.bodies] == [STORE]
    assert "default batch size 32" in hook.bodies[0]["text"]
    monkeypatch.undo()
    assert run_dag(dag).state == "success"
    (record,) = kept("zeus_alert_away.train").records
    assert record.ended_s is not None


def test_a_run_that_ends_while_its_decision_is_sent_tells_it_once(hook: Hook, airflow_home: Any) -> None:
    def away() -> Any:
        raise StoreError("no route to host")

    sending, ended = threading.Event(), threading.Event()

    class Slow(WebhookNotifier):
        def notify(self, context: Any) -> None:
            sending.set()
            ended.wait(3)
            super().notify(context)

    context = {"task": SimpleNamespace(notify=(Slow(hook.url),))}
    run = trial(0, "run", job_id="zeus_alert_short")
    looks = alerts.RunAlerts(context=context, trial=run, stored=False, reopen=away)
    threading.Thread(target=looks.look).start()
    assert sending.wait(30)
    threading.Timer(0.3, ended.set).start()  # by then the look at the end has begun
    looks.look(ended=True)
    assert [body["event"]["kind"] for body in hook.bodies] == [STORE]


def test_a_silenced_kind_is_kept_and_not_sent(run_dag: Any, hook: Hook) -> None:
    from airflow_provider_zeus.reports.alert_book import Silence

    job_id = "zeus_alert_silent.train"
    quiet = Silence(by="ada", at_s=time.time())
    change_book(AirflowVariables(), job_id, lambda book: book.with_silence(FAILING, quiet))
    dag = zeus_dag("zeus_alert_silent", job(batch_sizes=[32], notify=WebhookNotifier(hook.url)), fails)
    assert run_dag(dag).state == "failed"
    assert hook.bodies == []
    (record,) = kept(job_id).open
    assert (record.kind, record.sent_to) == (FAILING, ())


@pytest.mark.slow
def test_mapped_tasks_of_a_job_send_an_event_once(run_dag: Any, hook: Hook, refused: dict[str, Any]) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    def mapped() -> DAG:
        with DAG("zeus_alert_mapped", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

            @task.zeus(job(**refused, notify=[WebhookNotifier(hook.url)]))
            def train(run=None, city=None):
                loop(run, 4)

            train.expand(city=["ewr", "jfk"])
        return dag

    one, other = (json.dumps(DagSerialization.serialize_dag(mapped()), sort_keys=True) for _ in range(2))
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


def test_a_limit_that_cannot_be_set_is_told(run_dag: Any, hook: Hook, refused: dict[str, Any]) -> None:
    dag = zeus_dag("zeus_alert_limit", job(**refused, notify=WebhookNotifier(hook.url)))
    assert run_dag(dag).state == "success"
    (body,) = hook.bodies
    assert body["event"]["kind"] == LIMITS
    assert "in the newest run (trial 1): this process may not set it. The newest one ended at 250 W." in body["text"]
