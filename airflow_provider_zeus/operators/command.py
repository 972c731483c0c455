"""``ZeusCommandOperator``: run a training command, a script in any language, within the Zeus loop."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.links.zeus import ZeusCostLink
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import is_deferred, plain
from airflow_provider_zeus.operators.context_keys import ChecksTemplates
from airflow_provider_zeus.operators.mixins import ReportsCost, StartsLater, is_timed_out, job_part
from airflow_provider_zeus.operators.train import as_job
from airflow_provider_zeus.training.ranks import Ranks

if TYPE_CHECKING:
    from airflow.sdk import Context


class ZeusCommandOperator(ReportsCost, StartsLater, ChecksTemplates, BaseOperator):
    """Runs a command with a batch size from the store, and reports to the store what it cost.

    The command finds its plan by ``ZeusRun.from_env()``. With ``run.train(fn)`` it runs both attempts of a recurrence
    itself; with ``for epoch in run.epochs()`` alone, an attempt that is given up ends the process, and the command is
    started again for the next one. A command that does not use this package reads ``ZEUS_BATCH_SIZE`` and is measured
    from outside; the last line of its output may report its result: ``{"accuracy": 0.85, "epochs": 12}``.

    Its output goes to the task's log line by line; the last line is the task's value. The command runs in its own
    session and ends with its task, together with all processes that it started. ``["sbatch", ...]`` runs as a Slurm job
    that is waited for and cancelled with its task (docs/how-to/slurm.md). Pushes XComs ``zeus_decision`` and
    ``zeus_cost``. Raises AirflowException when the command fails, BelowTargetError where the job requires its target.

    :param job: a ``ZeusJob`` or its dict; fields may be templates or XComArgs. Default: the command runs as it is,
        without ``ZEUS_BATCH_SIZE``, and what the task takes is measured. With ``ZeusJob(eta=0.5)`` and
        ``ZeusRun.from_env()`` around the loop of a script, the steps of its training tune the power limit.
    :param command: a list of arguments, or a text for ``bash -c``; templated. A text whose template holds user input
        (``dag_run.conf``, ``params``) is a shell injection: use a list there.
    :param env: variables to add, templated; all of them reach the command.
    :param inherit_env: None: the command gets the worker's environment without Airflow's settings, Connections and
        Variables (``AIRFLOW__*``, ``AIRFLOW_CONN_*``, ``AIRFLOW_VAR_*``, ``_AIRFLOW*``). True: all of it. False: what a
        program needs to start and to find its GPU. No security boundary: the same user may read ``airflow.cfg``.
    :param cwd: working directory, templated; default: the DAG file's folder.
    :param job_id_by: a mapped variable of ``env``, or ``"cwd"``, for one job for each of its values: the value ends the
        job's id. Default: all map indexes share one job.
    :param notify: notifiers for the job's events, besides those of the job and of ``[zeus] notifiers``.
    :param zeus_conn_id: Connection of the trial log.
    """

    template_fields: Sequence[str] = ("job", "command", "env", "cwd")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json", "command": "bash", "env": "json"}
    ui_color = "#d9f2e3"
    operator_extra_links = (ZeusCostLink(),)

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any] | None = None,
        command: str | Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        inherit_env: bool | None = None,
        job_id_by: str | None = None,
        notify: Sequence[Callable[[Any], Any]] = (),
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        job = as_job(job)
        self.job, self.notify = job.to_dict(), (*job.notifiers, *notify)
        if not isinstance(inherit_env, bool | None):
            raise JobSpecError.of(
                "ZeusCommandOperator.inherit_env", inherit_env, "none of these", "None, True or False"
            )
        self.command = command
        self.env = env
        self.cwd = cwd
        self.inherit_env = inherit_env
        self.job_id_by = job_id_by
        self.zeus_conn_id = zeus_conn_id
        parts = command if isinstance(command, list | tuple) else [command]
        if not any(is_deferred(part) for part in parts):  # else execute() checks it
            check_divisible(arguments(command), job)

    def execute(self, context: Context) -> str:
        """Wait for a cheaper start where the job does, ask the store, run the command, report."""
        self.check_templates(context)
        self.wait_for_start(context, part=self._part())
        return self.train_now(context)

    def _part(self) -> str | None:
        return job_part(self.job_id_by, {"command": self.command, "cwd": self.cwd, **(self.env or {})})

    def train_now(self, context: Context) -> str:
        """Ask the store, run the command once or once per attempt, report; return the last line of its output."""
        from airflow_provider_zeus.operators.measured import StepsOfCommand, measured, run_command, telling_nothing
        from airflow_provider_zeus.operators.recurrence import Recurrence
        from airflow_provider_zeus.operators.supervise import supervise
        from airflow_provider_zeus.training.process import slurm

        command, environ, cwd = self.started_as(context)
        job = ZeusJob.from_dict(self.job)
        check_divisible(command, job)
        to_slurm = submits_to_slurm(command)
        recurrence = Recurrence.open(
            job,
            context,
            conn_id=self.zeus_conn_id,
            part=self._part(),
            waited_since_s=self.waited_since_s,
            elsewhere=to_slurm,
        )
        if to_slurm:
            command = [sys.executable, "-I", "-S", slurm.__file__, *command]
        try:
            if not job.chooses_size:
                return measured(
                    recurrence,
                    lambda steps: run_command(
                        command, {**environ, **(steps.environ if steps else telling_nothing(recurrence.plan))}, cwd
                    ),
                    StepsOfCommand,
                )
            return supervise(recurrence, command, environ, cwd)
        except BaseException as error:
            recurrence.reporter.never_trained(error)
            raise
        finally:
            recurrence.close_device()
            self.report_cost(context, recurrence.reporter, recurrence.opened, recurrence.decision)

    def started_as(self, context: Mapping[str, Any]) -> tuple[list[str], dict[str, str], str | None]:
        """Arguments, environment and working directory of the command. Raises JobSpecError."""
        if not isinstance(self.env, Mapping | None):
            remedy = 'give a dict, as {"DATA": "/data"}; its values may be templates'
            raise JobSpecError.of("ZeusCommandOperator.env", self.env, "not a mapping", remedy)
        added = {str(name): str(value) for name, value in (self.env or {}).items()}
        environ = {"PYTHONUNBUFFERED": "1", **inherited(os.environ, self.inherit_env), **added}
        folder = os.path.dirname(getattr(context["dag"], "fileloc", "") or "")
        return arguments(self.command), environ, self.cwd or (folder if os.path.isdir(folder) else None)

    def on_kill(self) -> None:
        """Stop the command: raise TrainingKilled out of ``execute``, which Airflow itself does not interrupt."""
        from airflow_provider_zeus.training.interrupts import TrainingKilled

        if not is_timed_out():
            raise TrainingKilled("Airflow stopped the task")


def arguments(command: Any) -> list[str]:
    """Return the command as a list of arguments. Raises JobSpecError where it is none."""
    if isinstance(command, str) and command.strip():
        if submits_to_slurm(command.split()):
            remedy = 'give a list, as ["sbatch", "train.sbatch"], so that the job is cancelled with its task'
            raise JobSpecError.of("ZeusCommandOperator.command", command, "sbatch in a shell", remedy)
        return ["bash", "-c", command]
    command = plain(command)
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


def check_divisible(command: Sequence[str], job: ZeusJob) -> None:
    """Raise JobSpecError where a batch size cannot be divided by the number of processes that the command starts.

    Where that number is not in the command's words, each process checks it when it starts.
    """
    count = processes_of(command, None if is_deferred(job.gpus) else job.gpus)
    if count is not None and not is_deferred(job.batch_sizes):
        Ranks(size=count).check(job.batch_sizes)


def inherited(environ: Mapping[str, str], inherit_env: bool | None) -> dict[str, str]:
    """Return the variables of a worker that a command gets; see ``inherit_env`` of :class:`ZeusCommandOperator`."""
    if inherit_env is None:
        of_airflow = ("_AIRFLOW", "AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_")
        return {name: value for name, value in environ.items() if not _bare(name).startswith(of_airflow)}
    basic = (
        "PATH|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|"
        "NVIDIA_VISIBLE_DEVICES|ZEUS_[A-Z_]+"
    )
    return {name: value for name, value in environ.items() if inherit_env or patterns.fullmatch(basic, name)}


def _bare(name: str) -> str:
    """The name of a variable in capitals, with at most one of the underscores that it begins with."""
    capitals = name.upper()
    return f"_{capitals.lstrip('_')}" if capitals.startswith("_") else capitals


def submits_to_slurm(command: Sequence[str]) -> bool:
    """Whether a command is ``sbatch``, so that the training runs on hosts that Slurm chooses."""
    return bool(command) and os.path.basename(command[0]) == "sbatch"


def processes_of(command: Sequence[str], gpus: int | None) -> int | None:
    """Return how many processes a command starts by torchrun or accelerate; None where its words do not say.

    :param command: arguments, or ``["bash", "-c", text]``.
    :param gpus: of the job, for ``--nproc-per-node=gpu`` and ``auto``.
    """
    words = list(command)
    if words[:2] == ["bash", "-c"]:
        try:
            words = shlex.split(words[2].replace("\\\n", ""))
        except ValueError:  # uses more of the shell's grammar
            return None
    names = [os.path.basename(word) for word in words]
    torchrun = {"--nproc-per-node": "1", "--nnodes": "1"}
    launchers = {  # words of the command -> options whose product is the number of processes, with their defaults
        ("torchrun",): torchrun,
        ("-m", "torch.distributed.run"): torchrun,
        ("-m", "torch.distributed.launch"): torchrun,
        ("accelerate", "launch"): {"--num-processes": ""},  # of all hosts; its default is in a file
    }
    for launcher, options in launchers.items():
        size = len(launcher)
        found = [i for i in range(len(names)) if tuple(names[i : i + size]) == launcher]
        if len(found) == 1:
            arguments = _before_script(words[found[0] + size :], options)
            if arguments is None:
                return None
            counts = [_count(arguments, option, default, gpus) for option, default in options.items()]
            return math.prod(n for n in counts if n) if all(counts) else None
    return None


def _before_script(words: Sequence[str], options: Collection[str]) -> Sequence[str] | None:
    """Words before a launcher's script, or its module: the launcher's own; None where that is not found.

    A word that ends in ``.py`` is the script, even after an option that is not known here: most of those are flags.
    Any other word is the script only where it cannot be the value of an option, nor a variable of the shell.

    :param options: of which it is known that a value follows.
    """
    sure, before = True, ""  # whether no earlier word may have been the script; the word before
    for i, word in enumerate(words):
        bare, is_value = before.startswith("-") and "=" not in before, _option(before) in options
        before = word
        if bare and is_value:
            continue
        if word in ("--", "-m", "--module") or word.endswith(".py"):
            return words[:i]
        if not word.startswith("-"):
            if sure and not bare and "$" not in word:
                return words[:i]
            sure = False
    return None


def _count(words: Sequence[str], option: str, default: str, gpus: int | None) -> int | None:
    """Value of an option, given by ``=`` or in the next word; None where it is no number, as "1:4" or "$N".

    The last one counts where the option is repeated.
    """
    text = default
    for i, word in enumerate(words):
        if _option(word) == option:
            _, given, value = word.partition("=")
            text = value if given else next(iter(words[i + 1 :]), "")
    if text in ("gpu", "auto"):
        return gpus
    return int(text) if text.isdecimal() and int(text) else None


def _option(word: str) -> str:
    return word.partition("=")[0].replace("_", "-")
