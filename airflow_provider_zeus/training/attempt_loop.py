"""Runs the attempts of a plan one after the other, until the model of one is kept."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import BelowTargetError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.size_bounds import MOST_RETURNED
from airflow_provider_zeus.model.trial import PlannedAttempt, State
from airflow_provider_zeus.patience import T, outlived
from airflow_provider_zeus.power.nvml.visible import torch_cuda
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.error_text import error_text, remedy_of, text_of
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again, swallowing_except
from airflow_provider_zeus.training.plan_progress import IN_CHILD, PlanProgress
from airflow_provider_zeus.training.protocol.plan import Ended

log = guarded_log(__name__)


def train(run: PlanProgress, fn: Callable[[], T]) -> T:
    """Call ``fn`` once per attempt and return the value of the attempt whose model is kept.

    After out of memory the next attempt runs, or the stand-in of the last one. After any other
    error the next attempt runs unless the job is ``strict``; after the last one a relief does, if
    its size may be the cause (:func:`why_no_relief`). A value that is returned after
    ``AttemptOver`` was swallowed is dropped.

    Raises the errors of ``fn``; TrainingKilled; BelowTargetError when the job requires its target;
    ReportError when nothing was reported.
    """
    while True:
        index = run.left.first_attempt - run.plan.first_attempt
        if index:
            _start_anew(run.plan.seed + index)
        live = run.begin()
        started = ""
        if live.planned.start:
            started = f", {live.planned.start} start"
        log.info(
            "Zeus attempt %s: batch size %d%s. %s",
            run.plan.numbers.attempt(live.number),
            live.planned.batch_size,
            started,
            live.planned.why,
        )
        kept, value = _run_attempt(run, live, fn)
        if kept:
            return value  # type: ignore[return-value]


def _start_anew(seed: int) -> None:
    """Free the memory of the attempt before; seed the generators, so that attempts do not
    correlate.
    """
    # The attempt before may be in cycles of references, with its memory on the GPU.
    gc.collect()
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)  # numpy refuses a larger one
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)
    cuda = torch_cuda()
    if cuda is not None:
        cuda.empty_cache()


def end_unfinished(run: PlanProgress, *, error_before: BaseException | None) -> None:
    """Write the end of a run that is closed before its attempt has ended: without ``train()``, or
    at exit.

    An attempt whose loop is left right after a report was stopped early by its author: its model is
    kept.

    :param error_before: ``sys.last_value`` when the run began, such as the error of an earlier
        notebook cell.
    """
    live = run.live
    kept = False
    # At exit no error is handed over: the interpreter leaves it there when one ends a script.
    error = getattr(sys, "last_value", None)
    if error is error_before:
        error = None
    if live is None:
        unbegun = "the process ended before it began to train"
        run.never_ran(0, IN_CHILD if run.child_trained else unbegun)
    elif not live.ended:
        kept = _end_left(run, live, error)
    run.finish(kept=kept)


def _end_left(run: PlanProgress, live: LiveAttempt, error: BaseException | None) -> bool:
    """Write the end of an attempt whose loop the process left; return whether its model is kept."""
    # A swallowed interrupt ends the attempt too: what was trained after it is not kept.
    stopped = error or live.interrupt or run.killed
    has_model = live.left_after_report or live.not_needed
    kept = run.loop_only and has_model and stopped is None
    state = State.FAILED
    reason: str | None = "the process left the loop before its end"
    if run.child_trained:
        reason = IN_CHILD
    no_memory = False
    if error is not None:
        reason = error_text(error)
        no_memory = out_of_memory(error)
    if kept or live.interrupt is not None:
        state, reason = live.outcome
    run.end(state, reason, out_of_memory=no_memory, authors=_is_authors(run, live, error))
    return kept


def _run_attempt(
    run: PlanProgress, live: LiveAttempt, fn: Callable[[], T]
) -> tuple[bool, T | None]:
    """Call ``fn`` for one attempt; return whether the model is kept, and the function's value."""
    # An exception that the author's code around train() handles is no signal of this attempt.
    handled = sys.exc_info()[1]
    try:
        value = fn()
    except BaseException as error:
        remedy = remedy_of(error)
        if remedy:
            log.error("Zeus: %s", remedy)
        if run.forked or not _next_follows(run, live, error, handled):
            raise
        drop_frames(error)  # before the next attempt: they hold this one's model in memory
        return False, None
    kept: bool | None = None
    with outlived("write the end of this attempt", but=(ReportError, BelowTargetError)):
        kept = _end_returned(run, live, value)
    if kept is None:
        kept = _end_roughly(run, live)
    return kept, value


def _end_roughly(run: PlanProgress, live: LiveAttempt) -> bool:
    """Something of ours failed: the function has returned, so its model must not be lost; return
    whether it is kept.

    Raises TrainingKilled.
    """
    raise_again(run.killed)
    kept = live.interrupt is None
    state = State.EXHAUSTED if kept else State.GIVEN_UP
    if live.reached:
        state = State.CONVERGED
    run.end_roughly(state, kept=kept)
    return kept


def _end_returned(run: PlanProgress, live: LiveAttempt, value: object) -> bool:
    """Write the end of an attempt whose function has returned; return whether its model is kept.

    Raises TrainingKilled; ReportError, BelowTargetError: as :func:`train`.
    """
    if run.forked:  # the parent's own call decides; a child must not end its attempt
        return True
    if run.killed is not None:
        run.end_killed()
        raise_again(run.killed)
    if live.interrupt is not None:
        log.error(
            "Zeus: this attempt was given up, but %s swallowed it and the function went on. Its "
            "return value is dropped; what it saved is of a model that is not kept. Remedy: catch "
            "Exception, which AttemptOver is not.",
            swallowing_except(live.interrupt),
        )
        _end_given_up(run, live)
        drop_frames(live.interrupt)
        return False
    live.leave()
    live.over = True
    if any((live.epochs_done, live.complete, live.no_data, live.not_needed)):
        _keep(run, live, value)
        return True
    unreported = _unreported(run, live)
    if not _next_follows(run, live, unreported):
        run.finish(kept=False)
        raise unreported
    return False


def _unreported(run: PlanProgress, live: LiveAttempt) -> ReportError:
    """The error of a function that trained and reported no epoch."""
    others = ""
    if live.names:
        others = f"; it reported {', '.join(sorted(live.names))}"
    remedy = "Call it at the end of each epoch, inside `for epoch in run.epochs():`."
    trainers = {"transformers.trainer", "lightning.pytorch", "pytorch_lightning"}
    if not trainers.isdisjoint(sys.modules):
        remedy += " The trainer of a framework gets a callback instead: "
        remedy += "ZeusTrainerCallback(run), ZeusCallback(run)."
    if run.child_trained:
        remedy = f"The reason: {IN_CHILD}"
    without = f"without one run.report({run.job.parsed_target.metric}=...){others}"
    return ReportError(f"the training function returned {without}. {remedy}")


def _next_follows(
    run: PlanProgress, live: LiveAttempt, error: BaseException, handled: BaseException | None = None
) -> bool:
    """Write the end of an attempt that ``error`` left; return whether the next attempt runs.

    :param handled: was being handled already when the attempt began.
    """
    if run.killed is not None:
        run.end_killed()
        if error is not run.killed:
            raise run.killed from error
        return False
    if live.interrupt is not None:
        follows = _leads_on(error, live.interrupt, handled)
        if follows and error is not live.interrupt:
            log.error(
                "Zeus: this attempt was given up, and on its way out the function raised.",
                exc_info=error,
            )
        _end_given_up(run, live)
        return follows
    how = _how_failed(live, error)
    may_be_size = may_be_due_to_batch_size(error, handled)
    run.end(
        State.FAILED,
        error_text(error),
        out_of_memory=how is Ended.NO_MEMORY,
        no_strike=_why_no_strike(how, error, may_be_size=may_be_size),
        authors=not may_be_size or _is_authors(run, live, error),
    )
    is_final = run.job.strict or not may_be_size
    if is_final and how is not Ended.NO_MEMORY:
        return False
    return _goes_on(run, live, error, how)


def _how_failed(live: LiveAttempt, error: BaseException) -> Ended:
    """How an attempt failed, as far as that decides which one follows."""
    if out_of_memory(error):
        return Ended.NO_MEMORY
    if live.too_few:
        return Ended.TOO_FEW
    return Ended.FAILED


def _why_no_strike(how: Ended, error: BaseException, *, may_be_size: bool) -> str | None:
    """Why the end of a failed attempt says nothing against its batch size; None if it does."""
    if how is Ended.NO_MEMORY:
        return None
    if not may_be_size and not _is_limit(error):
        return "its author skipped or stopped the task"
    if how is Ended.TOO_FEW:
        return "the slice has fewer samples than the batch size"
    return None


def _goes_on(run: PlanProgress, live: LiveAttempt, error: BaseException, how: Ended) -> bool:
    """Let the next attempt of the plan follow one that failed; return whether there is one."""
    if run.ranks.several:  # the others wait in an exchange for this one and cannot follow it
        return False
    following = run.left.after(how, samples=live.slice_samples)
    if following is None:
        return False
    if how is Ended.FAILED and not run.left.exploratory(0):
        why_not = why_no_relief(run, live, error, relief=following.attempts[0])
        if why_not is not None:
            log.warning("Zeus: no other batch size runs after this error: %s.", why_not)
            return False
    problem = "failed and is given up"
    cause: BaseException | None = error
    if how is Ended.NO_MEMORY:
        problem = "is out of memory here"
        cause = None
    log.warning(
        "Zeus: batch size %d %s; %d runs next.",
        live.planned.batch_size,
        problem,
        following.attempts[0].batch_size,
        exc_info=cause,
    )
    run.left = following
    return True


def _leads_on(
    error: BaseException, interrupt: BaseException, handled: BaseException | None
) -> bool:
    """Whether the next attempt follows an error by which the function left one that was given up.

    It follows an Exception, an exit, a cancelled task of asyncio, and an error that has to do with
    the interrupt: is it, holds it in a group, or was raised while it was handled. An error that
    ends or steers the task wins, in a group too.
    """
    if _is_steered(error, interrupt, handled):
        return False
    if isinstance(error, Exception | SystemExit) or type(error).__name__ == "CancelledError":
        return True
    return any(related_error is interrupt for related_error in related(error))


_OF_AUTHORS = (ImportError, NameError, SyntaxError)  # no batch size causes them


def _is_authors(run: PlanProgress, live: LiveAttempt, error: BaseException | None) -> bool:
    """Whether no other batch size would mend an error: of its kind, or since it was raised outside
    of the training.
    """
    inside = live.within_loop if run.ranks.several else live.within_epoch
    return not inside or isinstance(error, _OF_AUTHORS)


def why_no_relief(
    run: PlanProgress, live: LiveAttempt, error: BaseException, relief: PlannedAttempt
) -> str | None:
    """Why an error in the last attempt is left to its author; None if a relief runs after it."""
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
    """Whether each call of CUDA fails in this process now, as after an illegal memory access."""
    cuda = torch_cuda()
    try:
        if cuda is not None:
            cuda.synchronize()
    except Exception:
        return True
    return False


def _is_limit(error: BaseException) -> bool:
    """Whether the task's time limit ended an attempt, or its author failed the task: the size may
    be the cause.
    """
    return any(
        type(member).__name__ in ("AirflowTaskTimeout", "AirflowFailException")
        for member in related(error, by=())
    )


def _keep(run: PlanProgress, live: LiveAttempt, value: object) -> None:
    """Write that this attempt's model is kept, and the value for ``run.previous`` of later runs.

    Raises BelowTargetError if the job requires its target.
    """
    state, reason = live.outcome
    run.end(state, reason, returned=returned(value))
    run.finish(kept=True)
    if state is State.NOT_NEEDED:
        log.info(
            "Zeus: the earlier model reaches the target, %s, so nothing was trained.",
            run.job.target,
        )
        return
    if state is State.CONVERGED:
        return
    log.warning(
        "Zeus: the model of batch size %d is kept, but %s.", live.planned.batch_size, reason
    )
    is_below = not any((live.no_data, state is State.NO_METRIC, live.reached))
    if is_below and run.job.require_target:
        raise BelowTargetError.of(live.planned.batch_size, reason, run.job.target)


def returned(value: object) -> str | None:
    """JSON of a function's value, for ``run.previous``; paths as text.

    None if it is none, or too long.
    """
    text = ""
    try:
        # In pieces: a large value must not be encoded whole just to find that it is too long.
        for piece in json.JSONEncoder(allow_nan=False, default=os.fspath).iterencode(value):
            text += piece
            if len(text) > MOST_RETURNED:
                log.debug(
                    "Zeus: run.previous of the next run is None: the value is longer than %d.",
                    MOST_RETURNED,
                )
                return None
    except Exception as error:  # the value's own code may raise anything, and the model is kept
        log.debug(
            "Zeus: run.previous of the next run is None: the value is no JSON (%s).",
            type(error).__name__,
        )
        return None
    return text


def _end_given_up(run: PlanProgress, live: LiveAttempt) -> None:
    state, reason = live.outcome
    log.info(
        "Zeus attempt %s (batch size %d) is given up: %s.",
        run.plan.numbers.attempt(live.number),
        live.planned.batch_size,
        reason,
    )
    run.end(state, reason)
    run.go_past()


def may_be_due_to_batch_size(error: BaseException, handled: BaseException | None = None) -> bool:
    """Whether the batch size may have caused an error: any ``Exception`` except those by which a
    task steers Airflow.

    ``sys.exit`` with an error status counts as a failure too.
    """
    if _is_steered(error, handled):
        return False
    if isinstance(error, SystemExit):
        return bool(error.code)
    return isinstance(error, Exception)


def _is_steered(error: BaseException, *handled: BaseException | None) -> bool:
    """Whether an exception, or one in its group, ends or steers the task, or came out of handling a
    signal that does.

    One of Airflow, from the keyboard, or one that kills the training does so.

    :param handled: exceptions behind which no signal is looked for.
    """
    steer = {  # by name: Airflow is not imported if a training runs without it
        "AirflowSkipException",
        "AirflowFailException",
        "AirflowRescheduleException",
        "AirflowTaskTerminated",
        "AirflowTaskTimeout",
        "DagRunTriggerException",
        "DownstreamTasksSkipped",
        "TaskAwaitingInput",
        "TaskDeferred",
    }
    signals = [
        member for member in related(error, until=handled) if not isinstance(member, Exception)
    ]

    def steers(member: BaseException) -> bool:
        kinds = type(member).__mro__
        airflows = [kind for kind in kinds if kind.__module__.partition(".")[0] == "airflow"]
        if isinstance(member, KeyboardInterrupt | TrainingKilled):
            return True
        return not steer.isdisjoint(kind.__name__ for kind in airflows)

    return any(map(steers, (*related(error, by=()), *signals)))


def related(
    error: BaseException,
    *,
    by: Sequence[str] = ("__cause__", "__context__"),
    until: Sequence[object] = (),
) -> Iterator[BaseException]:
    """An exception, those in its group, and those that each was raised from or after; each once.

    :param by: attributes that lead to an earlier exception.
    :param until: exceptions that are left out, with those behind them.
    """
    passed = {id(current) for current in until}
    to_visit: list[BaseException | None] = [error]
    while to_visit:
        current = to_visit.pop()
        if current is None or id(current) in passed:
            continue
        passed.add(id(current))
        to_visit += [getattr(current, name) for name in by]
        to_visit += current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        yield current


def drop_frames(error: BaseException) -> None:
    """Drop the tracebacks of an exception and of those behind it: their frames hold the model in
    memory.
    """
    for related_error in list(related(error)):
        for name in ("__traceback__", "__cause__", "__context__"):
            # An exception may be a frozen dataclass, which refuses a plain assignment.
            BaseException.__setattr__(related_error, name, None)


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception of Python, torch, CUDA, JAX or TensorFlow says that memory is exhausted.

    One in a group counts, and one that it was raised from.
    """
    # By texts: each framework has error classes of its own, and none is imported here. torch puts
    # "Caught ..." before an error of a DataLoader's worker, or of its thread that pins memory.
    words = (
        r"(?i)out[ _]of[ _](shared )?memory|(can't|cannot) allocate memory|not enough "
        r"memory|\bOOM\b|bad_alloc|"
        r"RESOURCE_EXHAUSTED|STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|\bCaught \w*MemoryError"
    )
    for cause in related(error, by=("__cause__",)):
        kinds = " ".join(kind.__name__ for kind in type(cause).__mro__)
        if isinstance(cause, MemoryError) or "OutOfMemory" in kinds:
            return True
        if not isinstance(cause, Exception):
            continue
        if any(patterns.search(words, line) for line in text_of(cause).splitlines()):
            return True
    return False
