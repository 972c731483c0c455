"""``ZeusCommandOperator``: a command (a script in any language) trained within the Zeus loop."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.links.zeus import ZeusCostLink
from airflow_provider_zeus.operators.launched import processes_of
from airflow_provider_zeus.optimizer.checks import is_deferred
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.training.ranks import Ranks

if TYPE_CHECKING:
    from airflow.sdk import Context

_OF_AIRFLOW = re.compile("_+AIRFLOW|AIRFLOW__|AIRFLOW_(CONN|VAR)_", re.IGNORECASE)
_OF_ANY_PROGRAM = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|"
    "NVIDIA_VISIBLE_DEVICES|ZEUS_[A-Z_]+"
)


class ZeusCommandOperator(BaseOperator):
    """Runs a command with a batch size from the bandit, and tells the bandit what it cost.

    The command finds its plan by ``ZeusRun.from_env()``. With ``run.train(fn)`` it runs both attempts of a recurrence
    itself; with ``for epoch in run.epochs()`` alone, an attempt that is given up ends the process and the command is
    started again for the next one. A command that knows nothing of this package reads ``ZEUS_BATCH_SIZE`` and is
    measured from outside; the last line of its output may tell what it reached: ``{"accuracy": 0.85, "epochs": 12}``.

    Its output goes to the task's log line by line; the last line is the task's value. It runs in a session of its own
    and ends with its task, whatever ends that, with all processes it started. Pushes XComs ``zeus_decision`` and
    ``zeus_cost``. Raises AirflowException when the command fails, BelowTargetError where the job requires its target.

    :param job: a ``ZeusJob`` or its dict; fields may be templates or XComArgs.
    :param command: a list of arguments, or a text for ``bash -c``; templated. A text that a template fills with what a
        user gave (``dag_run.conf``, ``params``) runs what that user likes, as a shell injection: use a list there.
    :param env: variables to add, templated; they are handed on whatever their names are.
    :param inherit_env: None: the command gets the worker's environment without Airflow's settings, Connections and
        Variables (``AIRFLOW__*``, ``AIRFLOW_CONN_*``, ``AIRFLOW_VAR_*``, ``_AIRFLOW*``). True: all of it. False: what a
        program needs to start and to find its GPU. No boundary: the same user may read ``airflow.cfg``.
    :param cwd: folder to run in, templated; default: the DAG file's.
    :param zeus_conn_id: Connection of the trial log.
    """

    template_fields: Sequence[str] = ("job", "command", "env", "cwd")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json", "command": "bash", "env": "json"}
    ui_color = "#d9f2e3"
    operator_extra_links = (ZeusCostLink(),)

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any],
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        inherit_env: bool | None = None,
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        job = job if isinstance(job, ZeusJob) else ZeusJob.from_dict(job)
        self.job = job.to_dict()
        if not isinstance(inherit_env, bool | None):
            raise JobSpecError.of(
                "ZeusCommandOperator.inherit_env", inherit_env, "none of these", "None, True or False"
            )
        self.command = command
        self.env = env
        self.cwd = cwd
        self.inherit_env = inherit_env
        self.zeus_conn_id = zeus_conn_id
        parts = command if isinstance(command, list | tuple) else [command]
        if not any(is_deferred(part) for part in parts):  # else it is looked at when it is known
            check_shares(arguments(command), job)

    def execute(self, context: Context) -> str:
        """Ask, run the command once or once per attempt, tell; the last line of its output."""
        from airflow_provider_zeus.operators.recurrence import Recurrence
        from airflow_provider_zeus.operators.supervise import supervise

        handed_on = inherited(os.environ, self.inherit_env)
        command, environ = arguments(self.command), {"PYTHONUNBUFFERED": "1", **handed_on, **variables(self.env)}
        job = ZeusJob.from_dict(self.job)
        check_shares(command, job)
        recurrence = Recurrence.open(job, context, conn_id=self.zeus_conn_id)
        try:
            return supervise(recurrence, command, environ, self.cwd or _folder(context))
        finally:
            recurrence.close_device()
            recurrence.push_cost(context)

    def on_kill(self) -> None:
        """Stop the command: raises out of ``execute``, which ends it; Airflow itself only calls this."""
        from airflow_provider_zeus.training.signals import TrainingKilled

        raise TrainingKilled("Airflow stopped the task")


def arguments(command: Any) -> list[str]:
    """The command as a list. Raises JobSpecError where there is none."""
    if isinstance(command, str) and command.strip():
        return ["bash", "-c", command]
    if (
        isinstance(command, list | tuple)
        and command
        and all(isinstance(c, str | int | float | os.PathLike) for c in command)
    ):
        return [str(c) for c in command]
    raise JobSpecError.of(
        "ZeusCommandOperator.command",
        command,
        "not a command",
        'give a text, or a list as ["python", "train.py"]',
    )


def check_shares(command: Sequence[str], job: ZeusJob) -> None:
    """Raises JobSpecError where a batch size cannot be divided over the processes that the command starts.

    Looks at what is known of both; processes that are started in another way look themselves, when they begin.
    """
    count = processes_of(command, None if is_deferred(job.gpus) else job.gpus)
    if count is not None and not is_deferred(job.batch_sizes):
        Ranks(size=count).check(job.batch_sizes)


def variables(env: Any) -> dict[str, str]:
    """The environment to add, as text. Raises JobSpecError where it is no mapping."""
    if isinstance(env, Mapping | None):
        return {str(name): str(value) for name, value in (env or {}).items()}
    raise JobSpecError.of(
        "ZeusCommandOperator.env",
        env,
        "not a mapping",
        'give a dict, as {"DATA": "/data"}; its values may be templates',
    )


def inherited(environ: Mapping[str, str], inherit_env: bool | None) -> dict[str, str]:
    """The part of a worker's environment that a command gets; see ``inherit_env`` of :class:`ZeusCommandOperator`."""
    if inherit_env is None:
        return {name: value for name, value in environ.items() if not _OF_AIRFLOW.match(name)}
    return {name: value for name, value in environ.items() if inherit_env or _OF_ANY_PROGRAM.fullmatch(name)}


def _folder(context: Context) -> str | None:
    folder = os.path.dirname(getattr(context["dag"], "fileloc", "") or "")
    return folder if os.path.isdir(folder) else None
