"""The password in a field where it does not belong: no error, log,
traceback or output of the doctor repeats it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from airflow.sdk.log import mask_secret, redact

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.hooks.zeus import ZeusHook
from airflow_provider_zeus.model.trial import Observation, PowerPoint, State
from airflow_provider_zeus.operators.result_writer import masked_line
from airflow_provider_zeus.store.open import open_store, store_url
from airflow_provider_zeus.store.sql import engine as sql_engine
from airflow_provider_zeus.training.error_text import error_text
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.unit.cli.conftest import Zeus, home, zeus  # noqa: F401  fixtures

PLANTED = "hunter2-Planted"
CLOSED = {"host": "127.0.0.1", "port": 1}  # no server listens there
FIELDS: dict[str, dict[str, Any]] = {
    "host": {"host": PLANTED, "schema": "zeus"},
    "host and password": {"host": PLANTED, "password": PLANTED},
    "host as user:password@": {**CLOSED, "host": f"zeus:{PLANTED}@127.0.0.1"},
    "host as user:password@, alone": {
        "host": f"zeus:{PLANTED}@db",
        "login": "zeus",
        "password": "x",
    },
    "host as a folder": {"host": f"/{PLANTED}"},
    "host as a URL": {"host": f"postgresql://zeus:{PLANTED}@127.0.0.1:1/zeus"},
    "host as a URL with @ in the password": {
        "host": f"postgresql://zeus:a@{PLANTED}@127.0.0.1:1/zeus"
    },
    "host as a URL, the password as database": {"host": f"postgresql://zeus@127.0.0.1:1/{PLANTED}"},
    "host as a URL, the password as port": {"host": f"postgresql://zeus@127.0.0.1:{PLANTED}/zeus"},
    "host as a URL of another database": {"host": f"mysql://zeus@db/{PLANTED}"},
    "host of SQLite": {"conn_type": "sqlite", "host": PLANTED},
    "host of SQLite as a URL": {
        "conn_type": "sqlite",
        "host": f"postgresql://zeus:{PLANTED}@127.0.0.1:1/zeus",
    },
    "login": {**CLOSED, "login": PLANTED},
    "login and password": {**CLOSED, "login": f"zeus:{PLANTED}"},
    "schema": {**CLOSED, "schema": PLANTED},
    "schema as a query": {**CLOSED, "schema": f"zeus?password={PLANTED}"},
    "port": {"host": "127.0.0.1", "port": PLANTED},
    "conn_type": {"conn_type": PLANTED, "host": "127.0.0.1"},
    "extra": {**CLOSED, "extra": PLANTED},
    "extra as a JSON text": {**CLOSED, "extra": json.dumps(PLANTED)},
    "extra as a list": {**CLOSED, "extra": [PLANTED]},
    "extra store": {**CLOSED, "extra": {"store": "hunter2Planted"}},
    "extra, name of an option": {**CLOSED, "extra": {PLANTED: "x"}},
    "extra, value of an option": {**CLOSED, "extra": {"sslmode": PLANTED}},
    "extra, options": {**CLOSED, "extra": {"options": f"-c {PLANTED}=1"}},
    "extra, sslpassword": {**CLOSED, "extra": {"sslpassword": PLANTED}},
    "extra, URL": {"extra": {"sqlalchemy_url": f"postgresql://zeus:{PLANTED}@127.0.0.1:1/zeus"}},
    "extra, no URL": {"extra": {"sqlalchemy_url": PLANTED}},
    "extra, URL of another database": {
        "extra": {"sqlalchemy_url": f"oracle://zeus:x@db/{PLANTED}"}
    },
    "extra, query": {**CLOSED, "extra": {"sqlalchemy_query": {"sslmode": PLANTED}}},
    "extra, host": {**CLOSED, "host": "", "extra": {"host": PLANTED}},
}
AS_A_PASSWORD = (  # where a text shows that a part of it is a password
    "host as user:password@",
    "host as user:password@, alone",
    "host as a URL",
    "host as a URL with @ in the password",
    "host of SQLite as a URL",
    "schema as a query",
    "extra, sslpassword",
    "extra, URL",
)


def connect(patch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    patch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "zeus", **fields}))


def everything(error: BaseException) -> Iterator[str]:
    """What a person may come to see of an error: its traceback, its arguments,
    its causes and what it holds.
    """
    yield "".join(traceback.format_exception(error))
    cause: BaseException | None = error
    while cause is not None:
        yield f"{cause!r} {cause.args!r} {vars(cause)!r}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


@pytest.mark.parametrize("field", FIELDS)
def test_no_error_and_no_log_repeats_it(
    field: str,
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    connect(monkeypatch, FIELDS[field])
    with (
        caplog.at_level(logging.DEBUG),
        caplog.at_level(logging.DEBUG, "sqlalchemy"),
        caplog.at_level(logging.DEBUG, "sqlalchemy.pool"),
        pytest.raises(StoreError) as caught,
    ):
        open_store()
    seen = [
        *everything(caught.value),
        caplog.text,
        *capfd.readouterr(),
        str(ZeusHook().test_connection()),
    ]
    assert [text for text in seen if PLANTED in text or "hunter2Planted" in text] == []
    assert len(str(caught.value)) > 40, "it names the field or the remedy"


@pytest.mark.parametrize("field", FIELDS)
def test_the_doctor_does_not_repeat_it(
    field: str,
    zeus: Zeus,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, FIELDS[field])
    done = zeus("doctor")
    assert done.status == 1
    assert "store" in done.out
    assert PLANTED not in done.out + done.err
    assert "hunter2Planted" not in done.out + done.err


@pytest.mark.parametrize("field", AS_A_PASSWORD)
def test_airflows_masker_knows_it(
    field: str,
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    password = f"hunter{AS_A_PASSWORD.index(field)}-Unique"  # the masker forgets none
    log_line = f"somebody logs a@{password} and {password}"
    assert password in str(redact(log_line))
    connect(monkeypatch, json.loads(json.dumps(FIELDS[field]).replace(PLANTED, password)))
    with pytest.raises(StoreError):
        open_store()
    assert f"a@{password}" not in str(redact(log_line))
    assert "@ in the password" in field or password not in str(redact(log_line))


def test_a_quoted_password_is_masked_as_it_is_and_as_it_is_written(
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    password = "p@ss/word:1"
    connect(monkeypatch, {"host": f"postgresql://zeus:{quote(password, safe='')}@127.0.0.1:1/zeus"})
    with pytest.raises(StoreError):
        open_store()
    said = str(redact(f"{password} {quote(password, safe='')}"))
    assert "ss" not in said
    assert "word" not in said


def test_a_database_that_refuses_a_name_does_not_repeat_it(
    database: str,
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A real server's own words: no such database, no such role, no such parameter."""
    there = sa.make_url(database)
    extra = dict(there.query)
    whole = {"host": "", "login": there.username, "schema": there.database, "extra": extra}
    for wrong in (
        {"schema": PLANTED},
        {"login": PLANTED},
        {"extra": {**extra, "options": f"-c {PLANTED}=1"}},
    ):
        connect(monkeypatch, {**whole, **wrong})
        with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "sqlalchemy"):
            with pytest.raises(StoreError) as caught:
                open_store()
            seen = [*everything(caught.value), caplog.text]
        assert [text for text in seen if PLANTED in text] == []
        assert "FATAL" in str(caught.value), "the server answered"


LONG = "hunter2Planted" + "Ab3-" * 30  # as a token that a cloud gives out for a password


@pytest.mark.parametrize(
    "wrong",
    [
        {"schema": LONG},
        {"login": LONG},
        {"extra": {"options": f"-c {LONG}=1"}},
        {"extra": {"options": "-c hunter2-Planted=1"}},
    ],
    ids=str,
)
def test_a_database_does_not_repeat_what_it_shortens_or_rewrites(
    wrong: dict[str, Any],
    database: str,
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    there = sa.make_url(database)
    whole = {"host": "", "login": there.username, "schema": there.database}
    connect(monkeypatch, {**whole, **wrong, "extra": {**there.query, **wrong.get("extra", {})}})
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as caught:
        open_store()
    seen = [*everything(caught.value), caplog.text, *capfd.readouterr()]
    assert [text for text in seen if re.search("hunter2.?Planted", text)] == []
    assert "server on socket" in str(caught.value) or "63 bytes" in str(caught.value), (
        "what is wrong is said"
    )


def test_an_engine_does_not_show_it(
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(monkeypatch, {**CLOSED, "login": "zeus", "password": PLANTED})
    url = sql_engine.read_url(str(store_url("zeus_default")))
    engine = sql_engine.engine_of(url)
    with pytest.raises(sa.exc.OperationalError) as caught:
        engine.connect()
    sql_engine.forget(engine)
    assert PLANTED not in f"{engine!r} {url!r} {sql_engine.shown(url)}"
    assert [text for text in everything(caught.value) if PLANTED in text] == []


def test_a_connection_that_is_none_is_an_error_and_no_second_log(
    home: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow takes a Connection that it cannot read for none:
    the log would go on in a file of this host.
    """
    connect(monkeypatch, FIELDS["port"])
    with pytest.raises(StoreError, match="cannot be looked up"):
        open_store()
    assert not (home / "zeus.db").exists()


TEXTS = (
    "device_model",
    "energy_source",
    "gpu_uuid",
    "price_source",
    "price_currency",
    "g_co2e_source",
)


def test_every_text_of_a_training_elsewhere_is_masked() -> None:
    mask_secret(password := "every-Text")
    seen = Observation(**dict.fromkeys(TEXTS, password), reasons={"energy_j": password})
    point = PowerPoint(t_s=1.0, power_w=None, limit_w=None, phase=password)
    line = ResultLine(
        kind="end", start_id="1", attempt=1, observation=seen, reason=password, points=(point,)
    )
    assert password not in masked_line(line).to_json()


@pytest.mark.parametrize("before", [480, 985])
def test_a_password_that_was_cut_before_it_came_here_is_masked(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask_secret(password := "cut-P@ss word that is long")
    with monkeypatch.context() as elsewhere:  # there Airflow's masker is not known
        elsewhere.delitem(sys.modules, "airflow.sdk._shared.secrets_masker")
        texts = [error_text(ValueError(before * "x" + password)), before * "x" + password]
    for text in texts:
        line = ResultLine(kind="end", start_id="1", attempt=1, state=State.FAILED, reason=text)
        reason = str(masked_line(ResultLine.from_json(line.to_json())).reason)
        assert "cut-P" not in reason
        assert reason.startswith(text[:before])
