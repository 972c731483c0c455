"""A rehearsal: two steps of a training in a process of its own, on the CPU, with a time limit.

It asks no store, sets no power limit and pushes no XCom. Its folders for state and attempts are removed at the end.
"""

from __future__ import annotations

import dis
import inspect
import json
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn
from uuid import uuid4

from airflow_provider_zeus.cli.shell import drop_output
from airflow_provider_zeus.errors import ReportError, ZeusError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.training.attempt_loop import error_text
from airflow_provider_zeus.training.process.child import Child
from airflow_provider_zeus.training.process.supervisor import die_with_parent
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.events import ResultLine, ResultWriter, read_result
from airflow_provider_zeus.training.protocol.plan import Plan, Rehearsal, RehearsalResult
from airflow_provider_zeus.training.rehearsal import RehearsalOver
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.untrusted_files import read_plain

TIMEOUT_S = 60.0  # of one task
Start = tuple[Sequence[str], Mapping[str, str], str | None]  # arguments, environment, working directory (None: any)

_RESULT = "result.jsonl"
_NEEDS_GPU = re.compile(r"\bcuda\b|\bnvidia\b|no .*gpu", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the training ended. ``error`` None: well."""

    error: str | None = None  # kind, text and place
    kind: str = ""
    # "report": the metric was wrong; "zeus": another error of this package; "gpu": it needs one; "run": it needs a run
    # of Airflow; "cut": the rehearsal ended it; empty: any other error, or none
    none: bool = False  # it returned None
    not_xcom: str | None = None  # why Airflow cannot keep its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rehearsal left. ``ended`` None: it was killed at the time limit."""

    plan: Plan
    ended: Ended | None
    seen: RehearsalResult | None = None  # None: no attempt began
    lines: Sequence[ResultLine] = ()
    last_output: str = ""  # the last line of a command's output

    @property
    def metric(self) -> float | None:
        """The metric that was reported."""
        return self.seen.metric if self.seen else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """How all rehearsals of one check run. ``gpu``: they may use the GPUs of this host."""

    timeout_s: float = TIMEOUT_S
    gpu: bool = False
    to_report: bool = False

    def function(self, job: ZeusJob, call: Callable[[ZeusRun], Any], train: object = None) -> Outcome:
        """Call a training function with a run handle, in a fork of this process.

        Where its epoch was cut, and it ended without a report or by an error, it is called again for a whole epoch: its
        report may come with the last batch, or it counts the batches. So is one whose code reports in several places,
        of which one may come late in the epoch.

        :param train: the function of the author's that is called.
        """
        cut = self._called(job, call)
        ended = cut.ended
        if cut.seen is None or not cut.seen.cut or ended is None or cut.seen.after:
            return cut
        is_wrong = ended.error is not None and (not ended.kind or (ended.kind == "report" and cut.metric is None))
        reports_again = ended.error is None and _reports_of(train) > 1
        if not (is_wrong or reports_again):
            return cut
        whole = self._called(job, call, whole=True)
        if reports_again:
            return whole if whole.seen is not None and whole.seen.after else cut
        is_well = whole.ended is not None and whole.ended.error is None
        return whole if is_well or (cut.metric is None and whole.metric is not None) else cut

    def _called(self, job: ZeusJob, call: Callable[[ZeusRun], Any], *, whole: bool = False) -> Outcome:
        with TemporaryDirectory(prefix="zeus-check-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            plan = self.plan(job, folder, whole=whole)
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of a fork beside threads
                child = os.fork()
            if not child:
                _be_child(folder, plan, call, gpu=self.gpu)
            ended = None
            if _ends(child, self.timeout_s):
                try:
                    ended = decode(Ended, json.loads(read_plain(os.fspath(folder / "ended"), 2**20)))
                except (OSError, ValueError, TypeError, RecursionError):
                    ended = Ended(error="the process of the training died")
            return _outcome(folder, plan, ended)

    def command(self, job: ZeusJob, start: Callable[[Plan], Start], *, by_env: bool = True) -> Outcome:
        """Start a command. ``by_env``: its plan is handed over as by a ``ZeusCommandOperator``; else ``start`` does."""
        with TemporaryDirectory(prefix="zeus-check-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            plan = replace(self.plan(job, folder), restarts=by_env)
            command, environ, cwd = start(plan)
            environ = {**environ, **({} if self.gpu else {"CUDA_VISIBLE_DEVICES": ""})}
            if by_env:
                (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
                environ |= {environment.PLAN: str(folder / "plan.json"), environment.RESULT: str(folder / _RESULT)}
                environ |= {
                    environment.BATCH_SIZE: str(plan.attempts[0].batch_size),
                    environment.START: "cold",
                }
            output = deque[str](maxlen=20)
            try:
                child = Child(command, environ, output.append, cwd=cwd or str(folder))
            except (OSError, ValueError) as error:  # no such folder; a NUL in the command
                return Outcome(plan=plan, ended=Ended(error=f"the command could not be started: {error}"))
            deadline_s, status = time.monotonic() + self.timeout_s, None
            try:
                while status is None and time.monotonic() < deadline_s:
                    status = child.follow(0.2)
            finally:
                if status is None:  # at the time limit
                    child.stop()
                child.close()
            ended = None if status is None else _end_of(status, [*output])
            return replace(_outcome(folder, plan, ended), last_output=child.last_line)

    def plan(self, job: ZeusJob, folder: Path, *, whole: bool = False) -> Plan:
        """The plan of a rehearsal. It measures nothing, and a model below its target is no error.

        Its batch size is not the default, which a loop may have by accident; the next smaller one needs no memory.
        """
        sizes, default = sorted({*job.batch_sizes, job.default_batch_size}), job.default_batch_size
        at = sizes.index(default)
        size = sizes[at - 1] if at else sizes[min(1, len(sizes) - 1)]
        job = replace(
            job, device="none", gpus=None, mode="measure", require_target=False, follow=None, power_limits_w=None
        )
        return Plan(
            job_id=job.job_id or "check",
            ti_id=f"check-{uuid4().hex}",
            number=1,
            first_attempt=1,
            spec=job.to_dict(),
            attempts=(PlannedAttempt(batch_size=size, phase=Phase.EXPLORE, why="airflow zeus check: two steps."),),
            heartbeat_s=3600.0,
            state_dir=str(folder),
            attempt_root=str(folder),
            rehearsal=Rehearsal(path=str(folder / "seen.json"), to_report=self.to_report, whole=whole),
        )


def _reports_of(train: object) -> int:
    """In how many places the code of a function calls ``report()``; 0 where its code is not known."""
    code = getattr(inspect.unwrap(train), "__code__", None) if callable(train) else None
    return 0 if code is None else sum(each.argval == "report" for each in dis.get_instructions(code))


def _be_child(folder: Path, plan: Plan, call: Callable[[ZeusRun], Any], *, gpu: bool) -> NoReturn:
    """Train in this forked process, write how it ended, and leave."""
    status = 1
    try:
        os.setsid()
        die_with_parent()
        if not gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        drop_output()
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # OpenMP hangs in a fork of a process that has used its threads
        ended = _trained(folder, plan, call)
        (folder / "ended").write_text(json.dumps(encode(ended)), encoding="utf-8")
        status = 0
    finally:
        os._exit(status)


def _trained(folder: Path, plan: Plan, call: Callable[[ZeusRun], Any]) -> Ended:
    try:
        value = ZeusRun.from_plan(plan, sink=ResultWriter(folder / _RESULT)).train(call)
    except RehearsalOver as over:
        return Ended(error=str(over), kind="cut")
    except BaseException as error:
        ours, frames = os.path.dirname(os.path.dirname(__file__)), traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if not f.filename.startswith(ours) and "site-packages" not in f.filename]
        place = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""  # as (train.py:12)
        return Ended(error=f"{error_text(error)}{place}", kind=_kind(error))
    return Ended(none=value is None, not_xcom=_not_xcom(value))


def _kind(error: BaseException) -> str:
    causes = (error, error.__cause__, error.__context__)
    if any(isinstance(each, StopIteration) for each in causes):  # its loop asks for a fixed number of batches
        return "cut"
    if isinstance(error, ZeusError):
        return "report" if isinstance(error, ReportError) else "zeus"
    text = error_text(error)
    of_run = "no context was found" in text or type(error).__name__ == "NotHereError"  # of an XCom
    return "run" if of_run else "gpu" if _NEEDS_GPU.search(text) else ""


def _not_xcom(value: Any) -> str | None:
    """Why Airflow cannot keep a value as XCom; None where it can, and without Airflow."""
    if value is None:
        return None
    try:
        from airflow_provider_zeus.airflow_compat import BaseXCom
    except ImportError:
        return None
    try:
        json.dumps(BaseXCom.serialize_value(value))
    except Exception as error:
        return error_text(error)
    return None


def _ends(child: int, timeout_s: float) -> bool:
    """Wait for a forked process, then kill all that it started; False where it did not end in time."""
    deadline_s, ended = time.monotonic() + timeout_s, None
    try:
        while ended is None and time.monotonic() < deadline_s:
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                time.sleep(0.01)
    finally:  # before it is collected: until then no other process has its number
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return ended is not None


def _end_of(status: int, output: Sequence[str]) -> Ended:
    """How a command ended, by its status and the last lines of its output."""
    if status == 0:
        return Ended()
    text = "\n".join(output)
    last = next((line for line in reversed(output) if line.strip()), "")
    if "RehearsalOver" in last:
        return Ended(error=last.partition(": ")[2], kind="cut")
    ours = re.search(r"errors\.(\w+Error): ", last)
    kind = ("report" if ours[1] == "ReportError" else "zeus") if ours else "gpu" if _NEEDS_GPU.search(text) else ""
    return Ended(error=f"status {status}: {last[:500]}", kind=kind)


def _outcome(folder: Path, plan: Plan, ended: Ended | None) -> Outcome:
    try:
        lines = tuple(read_result(folder / _RESULT))
    except (OSError, ValueError):
        lines = ()
    return Outcome(plan=plan, ended=ended, seen=RehearsalResult.read(folder / "seen.json"), lines=lines)
