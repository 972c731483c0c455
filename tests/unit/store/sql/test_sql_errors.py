"""Which errors of a database may pass by themselves."""

from __future__ import annotations

import sqlite3

import psycopg2
import pytest

from airflow_provider_zeus.store.sql.engine import may_pass, no_slot


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ('connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused', True),
        ('connection to server at "db" (10.0.0.1), port 5432 failed: timeout expired', True),
        ("server closed the connection unexpectedly", True),
        (
            'could not translate host name "db" to address: Temporary failure in name resolution',
            True,
        ),
        ('could not translate host name "db" to address: Name or service not known', False),
        ("FATAL:  sorry, too many clients already", True),
        (
            (
                "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER"
                " attribute"
            ),
            True,
        ),
        ('FATAL:  too many connections for role "zeus"', True),
        ("FATAL:  the database system is starting up", True),
        ('FATAL:  password authentication failed for user "zeus"', False),
        ('FATAL:  database "zeus" does not exist', False),
        ("server does not support SSL, but SSL was required", False),
    ],
)
def test_a_connection_that_could_not_be_made(said: str, passes: bool) -> None:
    assert may_pass(psycopg2.OperationalError(said)) is passes


@pytest.mark.parametrize(
    ("state", "passes"),
    [
        ("08006", True),
        ("53300", True),
        ("57P01", True),
        ("57014", True),
        ("55P03", True),
        ("40P01", True),
        ("53100", False),  # a full disk
        ("42P01", False),  # no such table
        ("42501", False),  # no right
        ("23505", False),  # a row that is there
    ],
)
def test_an_error_of_the_server(state: str, passes: bool) -> None:
    class Said(psycopg2.OperationalError):
        sqlstate = state

    assert may_pass(Said("in any language")) is passes
    assert no_slot(Said("in any language")) is (state == "53300")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (sqlite3.OperationalError("database is locked"), True),
        (sqlite3.OperationalError("unable to open database file"), False),
        (sqlite3.OperationalError("database or disk is full"), False),
        (sqlite3.DatabaseError("file is not a database"), False),
        (OverflowError("int too big"), False),
    ],
)
def test_an_error_of_sqlite_or_of_a_value(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes
