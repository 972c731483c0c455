"""What a rehearsal showed of a training, as findings: pure functions of its outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from airflow_provider_zeus import patterns
from airflow_provider_zeus.cli.finding import Finding, error, ok, undecided, warning
from airflow_provider_zeus.cli.rehearsal import Outcome
from airflow_provider_zeus.model.size_bounds import MOST_RETURNED
from airflow_provider_zeus.model.trial import TELL_STEPS
from airflow_provider_zeus.training.attempt_checks import is_close
from airflow_provider_zeus.training.starts import SHARDED, UNSEEN
from airflow_provider_zeus.training.torch_watch import STEPS


def of_training(
    outcome: Outcome,
    *,
    made_up: str = "",
    unset: str = "",
    readers: Sequence[str] = (),
    timeout_s: float,
    to_report: bool = False,
    train: object = None,
) -> Iterator[Finding]:
    """Findings of a training that has the run handle.

    :param made_up: what it was given that a real run gets otherwise, such as a date; its errors may be due to that.
    :param unset: what it was given as None, and why, as in each real run.
    :param readers: tasks that need its value.
    :param train: the function that was called.
    """
    yield training(outcome, made_up=made_up, unset=unset, timeout_s=timeout_s)
    yield steps(outcome)
    yield batch_size(outcome)
    yield metric(outcome)
    yield value(outcome, readers=readers, to_report=to_report)
    yield model(outcome)
    yield from epochs(outcome)
    yield from data(outcome)
    yield from trackers(outcome)
    yield from starts(outcome, train)


def training(outcome: Outcome, *, made_up: str = "", unset: str = "", timeout_s: float) -> Finding:
    """Whether it ran."""
    ended, size = outcome.ended, outcome.plan.attempts[0].batch_size
    if ended is None:
        return undecided(
            "training",
            f"batch size {size}: it did not end within {timeout_s:g} s, and was stopped",
            "give it more time by --timeout (timeout_s), or a small part of its data",
        )
    if ended.kind == "cut" or ended.error is None:
        return ok("training", f"ran at batch size {size}" + (f", and was left: {ended.error}" if ended.error else ""))
    if ended.kind == "report":
        told = "metric" if _of_metric(outcome) else "epochs" if next(epochs(outcome), None) else ""
        if told:
            return error("training", f"batch size {size}: it ended by an error of its {told}", f"see its {told}")
        what, remedy = parted(ended.error)
        return error("training", f"batch size {size}: {what}", remedy)
    if ended.kind == "zeus":
        return error("training", f"batch size {size}: {ended.error}")
    if ended.kind == "gpu":
        remedy = "check it on a host with a GPU, by --gpu (gpu=True)"
        return undecided("training", f"it seems to need a GPU, which it was not shown: {ended.error}", remedy)
    if ended.kind == "run":
        remedy = "take what it needs as an argument of the function, and check that in a notebook"
        return undecided("training", f"it needs what only a run has: {ended.error}", remedy)
    if made_up:
        remedy = "if that is the reason, check the function with real values in a notebook: docs/cli.md"
        return warning("training", f"it failed with {ended.error}; it was given a made-up {made_up}", remedy)
    if unset:
        return error("training", f"it failed at batch size {size}: {ended.error}", f"if that is the reason: {unset}")
    return error("training", f"it failed at batch size {size}: {ended.error}", "correct it: a real run would fail too")


def _of_metric(outcome: Outcome) -> bool:
    """Whether it ended by an error of its reports that is one of its metric."""
    ended, seen = outcome.ended, outcome.seen
    if ended is None or ended.kind != "report" or outcome.metric is not None or (seen is not None and seen.own_loop):
        return False
    others = r"Error: run\.(epochs|step|resumed|start|started|still_good|served)\("
    return patterns.search(others, str(ended.error)) is None


def parted(text: str) -> tuple[str, str | None]:
    """An error's first sentence, with its place, and its remedy: the sentences that follow."""
    before, bracket, place = text.rpartition(" (")
    has_place = place.endswith(")") and ":" in place and " " not in place
    sentences = before if has_place else text
    what, _, remedy = sentences.partition(". ")
    if not remedy:
        return text, None
    if has_place:
        what += bracket + place
    return what, remedy[0].lower() + remedy[1:].removesuffix(".")


def steps(outcome: Outcome) -> Finding:
    """Whether steps are reported, or seen in torch."""
    seen = outcome.seen
    if seen is None:
        return undecided("steps", "no attempt began")
    if seen.told:
        return ok("steps", f"{len(seen.told)} counted, of {seen.told[0]} samples")
    if seen.shown:
        return ok("steps", f"{len(seen.shown)} seen in torch, of {seen.shown[0]} samples: run.step() is not needed")
    if seen.own_loop:
        return undecided("steps", "no epoch was asked for, in which torch's steps are seen")
    if seen.optimizer_steps:
        return error(
            "steps", f"torch made {seen.optimizer_steps} optimizer steps, none counted, of unknown size", TELL_STEPS
        )
    if outcome.metric is not None:
        return error("steps", "an epoch was reported, and no step was counted", TELL_STEPS)
    return undecided("steps", "it ended before its first step")


def batch_size(outcome: Outcome) -> Finding:
    """Whether the steps are of the batch size that was asked for."""
    seen, planned = outcome.seen, outcome.plan.attempts[0].batch_size
    remedy = "build the loader by run.data_loader(data), or with run.batch_size"
    told = () if seen is None else seen.told or seen.shown
    if seen is None or not (told or seen.sizes):
        return undecided("batch size", "no step showed its size")
    drawn = {size for sizes in seen.sizes for size in sizes if size}
    if any(is_close(size, planned) for size in drawn):
        return ok("batch size", f"{planned} is used: that many samples are drawn for each optimizer step")
    if drawn and (seen.short or all(len(sizes) < STEPS for sizes in seen.sizes)):
        return undecided(
            "batch size", f"the data end too early to tell whether {planned} is used", "check it with more data"
        )
    if drawn:
        what = f"{max(drawn)} samples are drawn for each optimizer step, and not the {planned} that was asked for"
        return error("batch size", what, f"{remedy}; where gradients are accumulated, the parts must add up to it")
    fixed, job = seen.fixed, outcome.plan.job
    if fixed in (job.default_batch_size, *job.batch_sizes) and not is_close(fixed, planned):
        what = (
            f"the model is given {fixed} samples at once, at any batch size, and not the {planned} that run.step() got"
        )
        return error("batch size", what, remedy)
    if any(is_close(size, planned) for size in told):
        return ok("batch size", f"{planned} is used, as far as its steps show")
    parts = sum(told) / seen.optimizer_steps if seen.optimizer_steps else 0.0
    if is_close(parts, planned):
        return ok("batch size", f"{planned} is used, in parts")
    if len(told) < STEPS or len(set(told[:STEPS])) > 1:
        return undecided("batch size", f"too few steps to tell, or steps of different sizes: {told[:STEPS]}")
    what = f"its steps have {told[0]} samples, and not the {planned} that was asked for"
    return error("batch size", what, remedy)


def metric(outcome: Outcome) -> Finding:
    """Whether the target's metric comes, in the target's unit and direction."""
    target, found = outcome.plan.job.parsed_target, outcome.metric
    if outcome.ended is not None and _of_metric(outcome):
        what, remedy = parted(str(outcome.ended.error))
        names = outcome.seen.names if outcome.seen else ()
        if names and target.metric not in names and f"run.report({target.metric}=" in str(outcome.ended.error):
            meant = f"or name {' or '.join(names[:3])} in the job's target, if that is what is meant"
            remedy = f"call run.report({target.metric}=value) at the end of each epoch in run.epochs(); {meant}"
        return error("metric", what, remedy)
    if doubt := target.doubt(math.nan if found is None else found):
        return (error if target.turned else warning)("metric", *doubt)
    if found is None:
        return undecided("metric", f"it ended before its first report of {target.metric}")
    if target.value is None or not target.reached(found):
        return ok("metric", f"{target.metric} comes: {found:g} after its first steps")
    what = f"{target.metric} {found:g} reaches the target ({target} {target.value:g}) after its first steps"
    or_turn = f'; or is "{target.other_way}" meant' if target.other_way else ""
    return warning("metric", what, f"if that is not meant, set a target that only a trained model reaches{or_turn}")


def value(outcome: Outcome, *, readers: Sequence[str] = (), to_report: bool = False) -> Finding:
    """Whether the function's value comes back."""
    ended = outcome.ended
    if to_report:
        return undecided("value", "it was ended at its first report, as was asked for")
    if ended is None or ended.error is not None:
        return undecided("value", "the function did not come to its end")
    if ended.none and readers:
        what = f"the function returns None, and {', '.join(readers)} {'need' if readers[1:] else 'needs'} its value"
        return warning("value", what, "return what is needed there, such as the path of the model")
    if ended.none:
        return ok("value", "it returns nothing, so run.previous of the next run is None")
    if ended.not_xcom:
        return error(
            "value", f"Airflow cannot keep it as XCom: {ended.not_xcom}", "save the model, and return its path"
        )
    kept = any(line.kind == "end" and line.observation and line.observation.returned for line in outcome.lines)
    more = "" if kept else f"; run.previous of the next run is None, as it is no JSON of at most {MOST_RETURNED} bytes"
    return ok("value", f"it returns{more}")


def model(outcome: Outcome) -> Finding:
    """Whether the model is built inside the function: each attempt calls it again."""
    seen = outcome.seen
    if seen is None or not seen.optimizer_steps:
        return undecided("model", "no optimizer step of torch was seen")
    if seen.older:
        return error(
            "model",
            f"{seen.older} of the weights that it trains were there before the function was called: a second attempt "
            "goes on from the first one's",
            "build model and optimizer inside the function, and keep them in no cache, global variable or class",
        )
    return ok("model", "it is built inside the function")


def epochs(outcome: Outcome) -> Iterator[Finding]:
    """A loop of its own in place of ``run.epochs()``, or one that is left; a report that is not at an epoch's end."""
    seen, ended, name = outcome.seen, outcome.ended, outcome.plan.job.parsed_target.metric
    if seen is None:
        return
    if seen.own_loop:
        what = "it reports epochs of a loop of its own: Zeus can neither end it at the target nor count its epochs"
        yield error("epochs", what, "write `for epoch in run.epochs():` in place of that loop, such as range(...)")
        return
    how = {
        "step": "it trains on with the same pass over the data after its report, before the next epoch is asked for",
        "pass": "another pass over the data follows its report, before the next epoch is asked for",
        "report": "it reports the same metric twice in one epoch",
    }
    remedies = {
        "step": f"call run.report({name}=value) once, after the loop over the batches and not within it",
        "pass": "leave out the loop within `for epoch in run.epochs():`, which repeats the pass by itself",
        "report": f"call run.report({name}=value) once in each epoch, with all metrics; give others names of their own",
    }
    if seen.after in how:
        yield error("epochs", how[seen.after], remedies[seen.after])
    elif seen.left and ended is not None and ended.error is None:
        what = "it left the loop over run.epochs() after its first epoch, below the target"
        yield warning("epochs", what, "if `return` is inside the loop, write it after the loop, which ends by itself")


def data(outcome: Outcome) -> Iterator[Finding]:
    """Validation data that count as training; batch sizes of the job that leave no batch of the data."""
    seen, planned = outcome.seen, outcome.plan.attempts[0].batch_size
    if seen is None:
        return
    if seen.unlearned:
        what = f"in {seen.unlearned} counted steps of run.data_loader() torch made no optimizer step"
        remedy = "give it the training data alone, and the validation data to a DataLoader of their own"
        yield error("validation", f"{what}: validation counts as training", remedy)
    if seen.dropping is not None and seen.dropping[1] <= planned:  # smaller: gradients are accumulated
        samples, size = seen.dropping
        too_large = [each for each in sorted(outcome.plan.job.batch_sizes) if each * size > samples * planned]
        if too_large:
            what = f"with drop_last its {samples} samples leave no batch of {', '.join(map(str, too_large))}"
            yield error("drop_last", what, "leave drop_last out, or take these out of the job's batch_sizes")


def trackers(outcome: Outcome) -> Iterator[Finding]:
    """Trackers of ``log_to`` in which the training has no run open."""
    seen = outcome.seen
    for name in outcome.plan.job.log_to if seen is not None and seen.metric is not None else ():
        if seen is not None and name not in seen.open_runs:
            what = f"no run of {name} was open at its report, so nothing is written there"
            yield warning("log_to", what, f"open one around its loop, as `with {name}.start_run():`")


def starts(outcome: Outcome, train: object = None) -> Iterator[Finding]:
    """Whether a job with several starts gives its model one, and looks forward in time.

    :param train: the function, whose code may draw its hold-out at random.
    """
    if not outcome.plan.job.chooses_start or outcome.seen is None:
        return
    if outcome.seen.sharded:
        remedy = 'call run.start() before the model is sharded, or leave starts=["cold"]'
        yield error("starts", f"{SHARDED}: every run would start cold", remedy)
    elif outcome.seen.started:
        yield ok("starts", "the model is given its start")
    else:
        yield warning("starts", *UNSEEN.split(": ", 1))
    names, codes = set[str](), [getattr(train, "__code__", None)]
    for code in codes:  # it grows by the functions within
        if code is not None:
            names |= set(code.co_names)
            codes += [each for each in code.co_consts if hasattr(each, "co_names")]
    if drawn := names & {"random_split", "train_test_split", "KFold", "ShuffleSplit", "StratifiedKFold"}:
        what = f"{min(drawn)} draws a hold-out on parts of which the earlier model may have trained: its metric is void"
        yield warning("starts", what, "hold out the newest data, which no earlier model has seen (docs/starts.md)")
