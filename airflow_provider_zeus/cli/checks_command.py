"""What a rehearsal showed of a command, as findings: as of a training where it took its plan; else by its output."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_zeus.cli.checks_training import of_training, parted, training
from airflow_provider_zeus.cli.finding import Finding, error, ok, undecided, warning
from airflow_provider_zeus.cli.rehearsal import Outcome
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.operators.external_meter import outcome_of


def of_command(outcome: Outcome, *, names_zeus: bool, timeout_s: float, prints: bool = True) -> Iterator[Finding]:
    """Findings of a command: as a training where it took the plan; else what its output and its words show.

    :param names_zeus: whether the command or its script names this package or ``ZEUS_BATCH_SIZE``.
    :param prints: whether the last line of its output is read as its metric.
    """
    took = outcome.seen is not None or any(line.kind == "start" for line in outcome.lines)
    if took and outcome.ended is not None and outcome.seen is None and outcome.ended.error is None:
        remedy = "call run.train(fn), or loop over run.epochs()"
        yield error("training", "it took its plan by ZeusRun.from_env() and trained nothing", remedy)
        return
    if took:
        found = list(of_training(outcome, timeout_s=timeout_s))
        yield from (f for f in found if f.check != "value")
        return
    ended = outcome.ended
    if ended is None:
        yield undecided(
            "training",
            f"it did not take its plan by ZeusRun.from_env(), so it cannot be ended after two steps; it was stopped "
            f"after {timeout_s:g} s",
            "give it more time by --timeout, or use ZeusRun.from_env() in it",
        )
    else:
        yield training(outcome, timeout_s=timeout_s)
    for name in outcome.plan.job.log_to:
        remedy = "train by ZeusRun.from_env().train(fn), with an open run, or leave log_to out"
        yield warning("log_to", f"a command without ZeusRun has no run of {name} that Zeus could find", remedy)
    if names_zeus:
        yield undecided("batch size", "a command without ZeusRun is believed to use ZEUS_BATCH_SIZE")
    else:
        yield warning(
            "batch size",
            "neither the command nor a script that it names has the word ZEUS_BATCH_SIZE or airflow_provider_zeus",
            "read the batch size from the variable ZEUS_BATCH_SIZE, or train by ZeusRun.from_env().train(fn)",
        )
    if prints and ended is not None and ended.error is None:
        yield _printed(outcome.plan.job, outcome.last_output)


def _printed(job: ZeusJob, last_line: str) -> Finding:
    """Whether the last line of its output has the metric, in the target's unit and direction."""
    target = job.parsed_target
    _, reason, printed = outcome_of(job, last_line, Observation())
    if printed.metric is None:
        what, _, remedy = str(reason).partition(": ")
        return error("metric", what, remedy)
    if not target.turned and (misread := target.misread(printed.metric)):
        return error("metric", *parted(misread))
    if doubt := target.doubt(printed.metric):
        return (error if target.turned else warning)("metric", *doubt)
    return ok("metric", f"{target.metric} comes: {printed.metric:g}")
