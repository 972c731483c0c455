"""Provider metadata.

Imported with ``airflow.sdk``: nothing heavy and nothing from Airflow in here.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_zeus import __version__


def _option(kind: str, default: str, description: str, example: str) -> dict[str, Any]:
    return {
        "type": kind,
        "default": default,
        "description": description,
        "example": example,
        "version_added": "0.2.0",
    }


def _connection_form() -> dict[str, Any]:
    """The fields of Connection type ``zeus`` in Airflow's UI."""
    return {
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"schema": "Database", "login": "User"},
            "placeholders": {
                "host": "PostgreSQL server: its name, the folder of its socket, or postgresql://host:5432/database",
                "schema": "database of the run log",
                "port": "5432",
            },
        },
        "conn-fields": {
            "store": {
                "label": "Store",
                "description": "sql: the PostgreSQL database named above, made ready by "
                "`airflow zeus db upgrade`. "
                "variable: Airflow Variables, for jobs whose runs never overlap; all other fields "
                "stay empty.",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["sql", "variable"],
                    "default": "sql",
                },
            },
            "sslmode": {
                "label": "Encryption (sslmode)",
                "description": "As PostgreSQL's clients know it; empty: prefer.",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"],
                    "default": None,
                },
            },
        },
    }


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata, for the ``apache_airflow_provider`` entry point."""
    name = "Zeus"
    return {
        "package-name": "airflow-provider-zeus",
        "name": name,
        "description": "Energy-aware retraining: picks batch size and GPU power limit, shows what "
        "a run cost.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": name,
                "external-doc-url": "https://ml.energy/zeus",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": name,
                "python-modules": [
                    f"airflow_provider_zeus.operators.{module}"
                    for module in ("train", "command", "trial")
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": name,
                "python-modules": ["airflow_provider_zeus.operators.start_trigger"],
            },
        ],
        "hooks": [
            {
                "integration-name": name,
                "python-modules": [
                    "airflow_provider_zeus.hooks.zeus",
                    "airflow_provider_zeus.hooks.zeus_signal",
                ],
            }
        ],
        "connection-types": [
            {
                "connection-type": "zeus",
                "hook-class-name": "airflow_provider_zeus.hooks.zeus.ZeusHook",
                "hook-name": "Zeus run log",
                **_connection_form(),
            },
            {
                "connection-type": "zeus_signal",
                "hook-class-name": "airflow_provider_zeus.hooks.zeus_signal.ZeusSignalHook",
                "hook-name": "Zeus signal",
                **_signal_form(),
            },
        ],
        "task-decorators": [
            {"name": "zeus", "class-name": "airflow_provider_zeus.decorators.zeus.zeus_task"}
        ],
        "cli": ["airflow_provider_zeus.cli.definition.get_zeus_cli_commands"],
        "extra-links": ["airflow_provider_zeus.links.zeus.ZeusCostLink"],
        "config": {
            "zeus": {
                "description": "Energy-aware retraining.",
                "options": {**_training(), **_display()},
            }
        },
    }


def _signal_form() -> dict[str, Any]:
    """The form of a Connection of type "Zeus signal"."""
    return {
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "login", "port"],
            "relabeling": {
                "password": "Key of the service",
                "extra": "Signal (docs/levers/signals.md)",
            },
            "placeholders": {
                "host": "instead of the preset's host, as https://mirror.example.com",
                "extra": '{"preset": "energy-charts", "zone": "DE-LU"}',
            },
        },
    }


def _display() -> dict[str, Any]:
    """Options that convert joules and seconds on the pages; no decision depends on them."""
    return {
        "price_per_kwh": _option(
            "float",
            "",
            "Price of a kilowatt hour, to show what runs cost in money. Empty: not shown.",
            "0.28",
        ),
        "price_per_gpu_hour": _option(
            "float",
            "",
            "Price of an hour of one GPU, to show what runs cost in money; added to that of their "
            "energy where both are set. Empty: not counted.",
            "2.10",
        ),
        "tariff": _option(
            "string",
            "",
            "Prices by month, day and hour as a JSON object (docs/levers/signals.md): what another "
            "hour of the day would cost, and what runs cost in theirs where there is no Connection "
            "zeus_price. Empty: neither.",
            '{"timezone": "Europe/Berlin", "unit": "EUR/kWh", "default": 0.31, '
            '"rules": [{"hours": "22-06", "value": 0.24}]}',
        ),
        "pue": _option(
            "float",
            "",
            "Power usage effectiveness of the site, at least 1: multiplies energy before it is "
            "priced. Empty: 1.",
            "1.3",
        ),
        "g_co2e_per_kwh": _option(
            "float",
            "",
            "Grams of CO2 equivalent per kilowatt hour, to show carbon. Empty: not shown.",
            "380",
        ),
        "currency": _option("string", "", "Shown behind amounts of money.", "EUR"),
    }


def _training() -> dict[str, Any]:
    """Options of trainings."""
    return {
        "enabled": _option(
            "string",
            "True",
            "False: every job trains at its default batch size and at the power limit that is "
            "found; nothing is measured, no run log is asked or written. measure: the same, "
            "measured and written to the log.",
            "measure",
        ),
        "notifiers": _option(
            "string",
            "",
            "Notifiers of Airflow that hear of every job's events, as a JSON list of classpath and "
            "kwargs (docs/how-to/alerts.md). Templates in kwargs may use ``zeus``, as in ``{{ "
            "zeus.sentence }}``. Empty: none.",
            '[{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": '
            '{"to": "ml@example.com", "from_email": "airflow@example.com", '
            '"subject": "{{ zeus.kind }}", '
            '"html_content": "{{ zeus.sentence | e }}"}}]',
        ),
        "state_dir": _option(
            "string",
            "",
            "Folder for records of changed power limits, simulated devices and costs not yet "
            "stored; a path of the host. Empty: ``$AIRFLOW_HOME/zeus``.",
            "/var/lib/zeus",
        ),
        "shared_group": _option(
            "string",
            "",
            "Group that shares ``state_dir`` and ``attempt_root``, for tasks that run as different "
            "users of one host (``run_as_user``): both folders are made with mode 2770, their "
            "contents with 2770 and 0660. Existing folders keep their modes: share them, and "
            "``$AIRFLOW_HOME`` for ``zeus.db``, by chgrp and chmod 2770. Members of the group "
            "trust each other. Empty: folders have mode 0700 and files 0600.",
            "airflow",
        ),
        "attempt_root": _option(
            "string",
            "",
            "Folder under which ``run.attempt_dir`` makes a folder for each attempt. Where later "
            "tasks run on other hosts it has to be shared storage, or the training uploads what it "
            "keeps. Empty: the folder for temporary files of the host that trains. A Slurm job "
            "(``sbatch``) gets its plan here and leaves its result: worker and nodes have to share "
            "it.",
            "/mnt/models/zeus",
        ),
        "signal_root": _option(
            "string",
            "",
            "Folder that files of Connections of type Zeus signal lie in; no other file is read "
            "for one. Empty: ``$AIRFLOW_HOME/signals``.",
            "/srv/airflow/signals",
        ),
        "signal_allow_local": _option(
            "boolean",
            "False",
            "Let Connections of type Zeus signal ask services of the worker's own host, by any of "
            "its addresses, such as a Carbon Aware SDK beside it. Link-local addresses and "
            "metadata services are never asked.",
            "True",
        ),
        "heartbeat_s": _option(
            "float", "15", "Seconds between two reports of a running attempt.", "30"
        ),
        "lease_s": _option(
            "float", "90", "Seconds without a report after which an attempt counts as dead.", "180"
        ),
        "measure": _option(
            "string",
            "",
            "Tasks that are measured though their DAGs do not know Zeus: DAG ids, dag_id.task_id, "
            "and tag:NAME for the DAGs with a tag, separated by commas; * stands for any text, and "
            "! before a pattern leaves out. Empty: none, and no listener is registered: with one "
            "Airflow refuses DAGs that have a task with end_from_trigger=True.",
            "tag:zeus, sales_*, !sales_daily.wait_*",
        ),
        "cpu_watts": _option(
            "string",
            "",
            "Watts that one busy hardware thread of the processors draws. Where no GPU and no "
            "counter measures energy, it is estimated: these watts times the seconds that a task's "
            "processes kept threads busy. Empty: 7 W for tasks that are only measured, no estimate "
            "for jobs that choose a batch size. 0: no estimate anywhere. A value: for both.",
            "8",
        ),
        "power_socket": _option(
            "string",
            "",
            "Unix socket of a helper that sets power limits for workers without the permission: "
            "the sidecar's path, or ``zeusd:`` and the path of a zeusd's. Empty: the training "
            "process sets them itself.",
            "/run/zeus/power.sock",
        ),
        "gpu_lock_wait_s": _option(
            "float",
            "3600",
            "Seconds that a job with ``gpu_lock='wait'`` waits for a GPU that another training of "
            "this host uses, before it asks for a batch size. After that it shares the GPU, "
            "without energy and limits.",
            "14400",
        ),
        "power_read_only": _option(
            "boolean",
            "False",
            "Read the power limits of real GPUs and never set one, in every mode of a job.",
            "True",
        ),
    }
