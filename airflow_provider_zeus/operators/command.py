"""``ZeusCommandOperator``: run a training command, a script in any language, within the Zeus
loop.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from airflow.sdk import BaseOperator

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import is_deferred, plain
from airflow_provider_zeus.operators.context_keys import ChecksTemplates
from airflow_provider_zeus.operators.mixins import (
    Notifier,
    ReportsCost,
    StartsLater,
    is_timed_out,
)
from airflow_provider_zeus.operators.train import as_job
from airflow_provider_zeus.training.ranks import Ranks

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zeus.operators.left_job import LeftJob


class ZeusCommandOperator(ReportsCost, StartsLater, ChecksTemplates, BaseOperator):
    """Runs a command with a batch size from the store, and reports its cost to the store.

    The command finds its plan by ``ZeusRun.from_env()``. With ``run.train(fn)`` it runs both
    attempts of a recurrence itself; with ``for epoch in run.epochs()`` alone, an attempt that is
    given up ends the process, and the command is started again for the next one. A command that
    does not use this package reads ``ZEUS_BATCH_SIZE`` and is measured from outside; the last line
    of its output may report its result: ``{"accuracy": 0.85, "epochs": 12}``.

    Its output goes to the task's log line by line; the last line is the task's value. The command
    runs in its own session and ends with its task, together with all processes that it started.
    ``["sbatch", ...]`` runs as a Slurm job that is waited for and cancelled with its task; one of a
    worker that was killed goes on under the task's next try, from Airflow 3.3 on
    (docs/how-to/slurm.md). Pushes XComs ``zeus_decision`` and ``zeus_cost``. Raises
    AirflowException when the command fails, BelowTargetError if the job requires its target.

    :param job: a ``ZeusJob`` or its dict; fields may be templates or XComArgs. Default: the command
        runs as it is, without ``ZEUS_BATCH_SIZE``, and the task is measured. With
        ``ZeusJob(eta=0.5)`` and ``ZeusRun.from_env()`` around the loop of a script, the steps of
        its training tune the power limit.
    :param command: a list of arguments, or a text for ``bash -c``; templated. A text whose template
        holds user input (``dag_run.conf``, ``params``) is a shell injection: use a list there.
    :param env: variables to add, templated; all of them reach the command.
    :param inherit_env: None: the command gets the worker's environment without Airflow's settings,
        Connections and Variables (``AIRFLOW__*``, ``AIRFLOW_CONN_*``, ``AIRFLOW_VAR_*``,
        ``_AIRFLOW*``). True: all of it. False: the variables that a program needs to start and to
        find its GPU. No security boundary: the same user may read ``airflow.cfg``.
    :param cwd: working directory, templated; default: the DAG file's folder.
    :param job_id_by: a mapped variable of ``env``, or ``"cwd"``, for one job for each of its
        values: the value ends the job's id. Default: all map indexes share one job.
    :param notify: notifiers for the job's events, besides those of the job and of ``[zeus]
        notifiers``.
    :param zeus_conn_id: Connection of the run log.
    """

    template_fields: Sequence[str] = ("job", "command", "env", "cwd")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "job": "json",
        "command": "bash",
        "env": "json",
    }

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any] | None = None,
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        inherit_env: bool | None = None,
        job_id_by: str | None = None,
        notify: Sequence[Notifier] = (),
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        job = as_job(job)
        self.job = job.to_dict()
        self.notify = (*job.notifiers, *notify)
        if not isinstance(inherit_env, bool | None):
            field = "ZeusCommandOperator.inherit_env"
            raise JobSpecError.of(field, inherit_env, "none of these", "None, True or False")
        self.command = command
        self.env = env
        self.cwd = cwd
        self.inherit_env = inherit_env
        self.job_id_by = job_id_by
        self.zeus_conn_id = zeus_conn_id
        self._launch: Launch | None = None
        self._left: LeftJob | None = None
        parts = command if isinstance(command, list | tuple) else [command]
        # A template has no value before the task runs, which checks all of them.
        if not any(is_deferred(part) for part in parts):
            check_divisible(arguments(command), job)

    def execute(self, context: Context) -> str:
        """Wait for a cheaper start if the job does, ask the store, run the command, report."""
        self.check_templates(context)
        launch = self.started_as(context)
        self._launch = launch
        # an earlier try's job may still train: a new one beside it would do so twice
        if submits_to_slurm(launch.command):
            from airflow_provider_zeus.operators.left_job import left_job

            self._left = left_job(
                context, launch.command[0], launch.environ, conn_id=self.zeus_conn_id
            )
        if self._left is None:
            self.wait_for_start(context)
        try:
            return self.train_now(context)
        except BaseException:
            # of any kind, a timeout too: nobody else would cancel a job that no process
            # waits for
            if self._left is not None:
                self._left.give_up()
            raise

    def arguments(self) -> dict[str, Any]:
        """What a mapped value may be: command, folder and variables."""
        return {"command": self.command, "cwd": self.cwd, **(self.env or {})}

    def train_now(self, context: Context) -> str:
        """Ask the store, run the command once or once per attempt, report; return the last line of
        its output.
        """
        from airflow_provider_zeus.operators.measured import (
            StepsOfCommand,
            measured,
            run_command,
            telling_nothing,
        )
        from airflow_provider_zeus.operators.recurrence import Recurrence
        from airflow_provider_zeus.operators.supervise import supervise
        from airflow_provider_zeus.training.process import slurm

        # after a wait this is another instance, in another process
        command, environ, cwd = self._launch or self.started_as(context)
        job = ZeusJob.from_dict(self.job)
        check_divisible(command, job)
        to_slurm = submits_to_slurm(command)
        if self._left is not None:
            recurrence = Recurrence.of_left(self._left, context, self.zeus_conn_id)
        else:
            recurrence = Recurrence.open(
                job,
                context,
                conn_id=self.zeus_conn_id,
                part=self.part,
                waited_since_s=self.waited_since_s,
                elsewhere=to_slurm,
            )
        try:
            if job.chooses_size:
                return supervise(recurrence, command, environ, cwd)
            if to_slurm:
                command = slurm.words(command)

            def run(steps: StepsOfCommand | None) -> str:
                own = telling_nothing(recurrence.plan) if steps is None else steps.environ
                return run_command(command, environ | own, cwd)

            return measured(recurrence, run, StepsOfCommand)
        except BaseException as error:
            recurrence.reporter.never_trained(error)
            raise
        finally:
            recurrence.close_device()
            self.report_cost(context, recurrence.reporter, recurrence.opened, recurrence.decision)

    def started_as(self, context: Mapping[str, Any]) -> Launch:
        """How the command is started. Raises JobSpecError."""
        if not isinstance(self.env, Mapping | None):
            remedy = 'give a dict, as {"DATA": "/data"}; its values may be templates'
            raise JobSpecError.of("ZeusCommandOperator.env", self.env, "not a mapping", remedy)
        added = {str(name): str(value) for name, value in (self.env or {}).items()}
        # without it Python holds back its output, and the log shows an epoch long after it
        # ended
        environ = {"PYTHONUNBUFFERED": "1", **inherited(os.environ, self.inherit_env), **added}
        cwd = self.cwd
        if not cwd:
            folder = os.path.dirname(getattr(context["dag"], "fileloc", "") or "")
            cwd = folder if os.path.isdir(folder) else None
        return Launch(arguments(self.command), environ, cwd)

    def on_kill(self) -> None:
        """Stop the command: raise TrainingKilled out of ``execute``, which Airflow itself does not
        interrupt.
        """
        from airflow_provider_zeus.training.interrupts import TrainingKilled

        if not is_timed_out():
            raise TrainingKilled("Airflow stopped the task")


class Launch(NamedTuple):
    """Arguments, environment and working directory of a command."""

    command: list[str]
    environ: dict[str, str]
    cwd: str | None


def arguments(command: Any) -> list[str]:
    """Return the command as a list of arguments. Raises JobSpecError if it is none."""
    field = "ZeusCommandOperator.command"
    if isinstance(command, str) and command.strip():
        # a shell between would hide sbatch's line, which names the job to cancel
        if submits_to_slurm(command.split()):
            remedy = (
                'give a list, as ["sbatch", "train.sbatch"], so that the job is cancelled with its '
                "task"
            )
            raise JobSpecError.of(field, command, "sbatch in a shell", remedy)
        return ["bash", "-c", command]
    command = plain(command)
    words = command if isinstance(command, list | tuple) else ()
    if words and all(isinstance(word, str | int | float | os.PathLike) for word in words):
        return [str(word) for word in words]
    remedy = 'give a text, or a list as ["python", "train.py"]'
    raise JobSpecError.of(field, command, "not a command", remedy)


def check_divisible(command: Sequence[str], job: ZeusJob) -> None:
    """Raise JobSpecError if a batch size cannot be divided by the number of processes that the
    command starts.

    If that number is not in the command's words, each process checks it when it starts.
    """
    count = processes_of(command, None if is_deferred(job.gpus) else job.gpus)
    if count is not None and not is_deferred(job.batch_sizes):
        Ranks(size=count).check(job.batch_sizes)


def inherited(environ: Mapping[str, str], inherit_env: bool | None) -> dict[str, str]:
    """Return the variables of a worker that a command gets; see ``inherit_env`` of
    :class:`ZeusCommandOperator`.
    """
    if inherit_env:
        return dict(environ)
    # Airflow's settings hold the password of its database, and Connections those of others
    if inherit_env is None:
        of_airflow = ("_AIRFLOW", "AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
        return {
            name: value for name, value in environ.items() if not _bare(name).startswith(of_airflow)
        }
    basic = (
        "PATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|LD_LIBRARY_PATH|"
        "CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|"
        "NVIDIA_VISIBLE_DEVICES|ZEUS_[A-Z_]+"
    )
    return {name: value for name, value in environ.items() if patterns.fullmatch(basic, name)}


def _bare(name: str) -> str:
    """The name of a variable in capitals, with at most one of the underscores that it begins
    with.
    """
    capitals = name.upper()
    return f"_{capitals.lstrip('_')}" if capitals.startswith("_") else capitals


def submits_to_slurm(command: Sequence[str]) -> bool:
    """Whether a command is ``sbatch``, so that the training runs on hosts that Slurm chooses."""
    return bool(command) and os.path.basename(command[0]) == "sbatch"


def processes_of(command: Sequence[str], gpus: int | None) -> int | None:
    """Return how many processes a command starts by torchrun or accelerate; None if its words do
    not say.

    :param command: arguments, or ``["bash", "-c", text]``.
    :param gpus: of the job, for ``--nproc-per-node=gpu`` and ``auto``.
    """
    words = list(command)
    if words[:2] == ["bash", "-c"]:
        try:
            words = shlex.split(words[2].replace("\\\n", ""))
        except ValueError:  # the shell knows more than shlex: then each process checks itself
            return None
    names = [os.path.basename(word) for word in words]
    torchrun = {"--nproc-per-node": "1", "--nnodes": "1"}
    # torchrun starts so many processes on each of its nodes: the product of its options counts.
    launchers = {
        ("torchrun",): torchrun,
        ("-m", "torch.distributed.run"): torchrun,
        ("-m", "torch.distributed.launch"): torchrun,
        # its default is in a file, which no command line shows
        ("accelerate", "launch"): {"--num-processes": ""},
    }
    for launcher, options in launchers.items():
        size = len(launcher)
        places = [i for i in range(len(names)) if tuple(names[i : i + size]) == launcher]
        # with two launchers it is not known which of them trains
        if len(places) != 1:
            continue
        arguments = _before_script(words[places[0] + size :], options)
        if arguments is None:
            return None
        processes = 1
        for option, default in options.items():
            count = _count(arguments, option, default, gpus)
            # a variable of the shell, or auto: each process checks its share when it
            # starts
            if not count:
                return None
            processes *= count
        return processes
    return None


def _before_script(words: Sequence[str], options: Collection[str]) -> Sequence[str] | None:
    """Words before a launcher's script, or its module: the launcher's own; None if that is not
    found.

    A word that ends in ``.py`` is the script, even after an option that is not known here: most of
    those are flags. Any other word is the script only if it cannot be the value of an option,
    nor a variable of the shell.

    :param options: of which it is known that a value follows.
    """
    sure = True  # behind a word that may have been the script none surely is
    before = ""
    for i, word in enumerate(words):
        bare = before.startswith("-") and "=" not in before
        is_value = _option(before) in options
        before = word
        if bare and is_value:
            continue
        if word in ("--", "-m", "--module") or word.endswith(".py"):
            return words[:i]
        if word.startswith("-"):
            continue
        # an option that is not known here may take the word: then it is not surely the
        # script
        may_be_value = bare or "$" in word
        if sure and not may_be_value:
            return words[:i]
        sure = False
    return None


def _count(words: Sequence[str], option: str, default: str, gpus: int | None) -> int | None:
    """Value of an option, given by ``=`` or in the next word; None if it is no number, as "1:4"
    or "$N".

    The last one counts if the option is repeated.
    """
    text = default
    for i, word in enumerate(words):
        if _option(word) != option:
            continue
        _, sign, text = word.partition("=")
        if not sign:
            text = next(iter(words[i + 1 :]), "")
    if text in ("gpu", "auto"):
        return gpus
    return int(text) if text.isdecimal() else None


def _option(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")
