"""The example ``zeus_month`` with a real receiver of mail on 127.0.0.1."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from tests.unit.dags.conftest import DAGS


class Inbox:
    """Mails that have come."""

    def __init__(self) -> None:
        self.mails: list[tuple[str, list[str], Message]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # aiosmtpd asks for this name
        self.mails.append((envelope.mail_from, envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 OK"


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found = Inbox()
    receiver = Controller(found, hostname="127.0.0.1", port=port)
    receiver.start()
    plain = {"disable_ssl": True, "disable_tls": True}
    conn = {"conn_type": "smtp", "host": "127.0.0.1", "port": port, "extra": plain}
    monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(conn))
    yield found
    receiver.stop()


def test_the_report_of_the_month_before_is_mailed(run_dag: Any, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DAGS))
    sys.modules.pop("zeus_month", None)
    import zeus_month

    first = datetime(2026, 11, 1, 6, tzinfo=UTC)
    run = run_dag(zeus_month.zeus_month(), logical_date=first, run_after=first)
    assert run.state == "success"
    ((sender, receivers, mail),) = inbox.mails
    assert (sender, receivers) == (zeus_month.FROM, [zeus_month.TO])
    assert mail["Subject"] == "Zeus, 2026-10"
    page, *figures = (part for part in mail.walk() if not part.is_multipart())
    assert b"<h1>October 2026</h1>" in (page.get_payload(decode=True) or b"")
    assert [part.get_filename() for part in figures] == ["zeus-2026-10.csv", "zeus-2026-10-groups.csv"]
