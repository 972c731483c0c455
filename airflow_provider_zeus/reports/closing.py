"""How a run ended and its cost, in one line. A figure that is not known is left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import weights_of
from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.model.trial import DATA_WAIT, Observation, Phase, State, Trial
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.dataset import RunTrials, total
from airflow_provider_zeus.reports.limit_profiles import LimitSaving
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import (
    ESTIMATE,
    energy_text,
    epochs_text,
    money_text,
    share_text,
    time_text,
)


def closing(
    attempts: Sequence[Trial],
    saved: Saved | str | None = None,
    limit: LimitSaving | None = None,
    prices: Prices | None = None,
) -> str:
    """The line of a run, such as ``reached its target after 6 epochs at batch size 64, 3.78 Wh,
    ...``.

    Energy, time and saving are those of all attempts in all tries; the metric is that of the last
    one.

    :param attempts: of the run in order, those of earlier tries too, at least one: the one that
        left the model comes last.
    :param saved: cost saved against the default [J or s], or why it is not known; None: nobody has
        asked.
    :param limit: the saving of the power limit of a run without a batch size.
    :param prices: in force, for the cost of waiting for batches.
    """
    run = RunTrials(tuple(attempts))
    last = attempts[-1]
    # a try that died before its first report has no figures, and hides no sum
    before = [t for t in attempts[:-1] if t.observation.time_s is not None or not t.state.died]
    observations = [t.observation for t in (*before, last)]
    by_limit = ""
    if limit is not None:
        by_limit = limit.text
    how = _how(last)
    # a limit that saved something was chosen, not only measured
    if by_limit and last.state is State.DONE:
        how = "trained at a chosen power limit"
    parts = [
        how,
        _before_it(run),
        _metric(last),
        _energy(observations),
        _sum((o.time_s for o in observations), time_text),
        _aside(run),
        _host(observations),
        _why_no_energy(last),
        _simulated(observations),
        _saving(run, saved),
        by_limit,
        _waited(last.observation, prices),
    ]
    return ", ".join(filter(None, parts))


def _before_it(run: RunTrials) -> str:
    """The batch sizes that ran before the last one; empty if none did."""
    sizes = [str(t.batch_size) for t in run.compared[:-1] if t.batch_size is not None]
    if not sizes:
        return ""
    return f"batch size {' and '.join(sizes)} before it"


def _simulated(observations: Sequence[Observation]) -> str:
    if any(o.energy_source == "simulated" for o in observations):
        return "figures are simulated"
    return ""


def _aside(run: RunTrials) -> str:
    """Which part of it failed and cleared tries took; empty if there are none."""
    aside = SetAside.of([run])
    if not aside.time_s:
        return ""
    if not run.compared:
        return "compared with nothing"
    return f"of which {aside.text}"


def _how(trial: Trial) -> str:
    ended = {
        State.CONVERGED: "reached its target",
        State.DONE: "measured as it is",
        State.EXHAUSTED: "ended below its target",
        State.NO_METRIC: "reported no metric",
        State.GIVEN_UP: "was given up",
        State.FAILED: "failed",
        State.NO_DATA: "had no data",
        State.NOT_NEEDED: "trained nothing: the earlier model is still good",
        State.ABANDONED: "was abandoned",
    }
    # A newer version may have written a state that this one cannot name.
    how = ended.get(trial.state, trial.state.value)
    if trial.state is State.DONE and trial.spec.get("mode") == "optimize":
        how = "trained, and its power limit was tuned"
    has_size = trial.planned.phase is not Phase.MEASURED
    # A size and its epochs would read as if they had been chosen and trained.
    if trial.state is State.NOT_NEEDED or not has_size:
        return how
    epochs = trial.observation.epochs
    if epochs:
        how += f" after {epochs_text(epochs)}"
    how += f" at batch size {trial.batch_size}"
    chooses_start = trial.planned.start is not None
    if chooses_start and trial.observation.start:
        how += f" from a {trial.observation.start} start"
    return how


def _metric(trial: Trial) -> str:
    metric = trial.observation.metric
    if metric is None:
        return ""
    try:
        name = trial.job.parsed_target.metric
    except JobSpecError:  # a job of another version may not be read here
        return ""
    return f"{visible(name)} {metric:.3g}"


def _sum(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """The sum as text; empty if one is not known: a part would look like the whole."""
    whole = total(values)
    if whole is None:
        return ""
    return text(whole)


def _energy(observations: Sequence[Observation]) -> str:
    """The energy of attempts that have one source; an estimate is called so."""
    sources = {o.energy_source for o in observations}
    # joules of two sources do not compare, so their sum would mean nothing
    if len(sources) != 1:
        return ""
    text = _sum((o.energy_j for o in observations), energy_text)
    if not text or "estimate" not in sources:
        return text
    return f"{text} ({ESTIMATE})"


def _host(observations: Sequence[Observation]) -> str:
    """The energy that the host drew beside the GPU, which is in no other figure."""
    text = _sum((o.host_j for o in observations), energy_text)
    if not text:
        return ""
    source = observations[-1].host_source
    return f"beside it {text} of the host's processors and memory ({source})"


def _waited(observation: Observation, prices: Prices | None) -> str:
    """How long the run waited for batches, if that is worth a line; in money, if it has a
    currency.
    """
    # the remedy stands on the page; here is no room for it
    text = visible(observation.reasons.get(DATA_WAIT, ""))
    if not text or prices is None:
        return text
    in_force = prices.at_the_time([observation])
    if not in_force.currency:
        return text
    money = in_force.money_of(observation.data_wait_j, observation.data_wait_gpu_s)
    if money is None:
        return text
    # of less than a cent the text begins with "under" itself
    amount = f"at most {money_text(money, visible(in_force.currency))}"
    return f"{text} ({amount.replace('at most under', 'under')})"


def _why_no_energy(trial: Trial) -> str:
    """Why a task that is measured as it is has no energy: its energy is all that it costs."""
    why = trial.observation.reasons.get("energy_j")
    if not why or trial.planned.phase is not Phase.MEASURED:
        return ""
    short, _, _remedy = why.partition(": ")
    return f"energy not known: {visible(short)}"


def _of(ended: Sequence[Trial]) -> str:
    """Whether the cost of a run is of energy, of time, or of both, for the share that is told of
    it.
    """
    try:
        alone = {weights_of(t.job, t.observation).one_alone for t in ended}
    except JobSpecError:
        return ""
    # A share of a mixed cost would read as one of energy.
    for one in ("energy", "time"):
        if alone == {one}:
            return f" of {one}"
    return " of energy and time together"


def _saving(run: RunTrials, saved: Saved | str | None) -> str:
    """The share of the baseline with its 90 % interval; empty if nothing compares."""
    compares = run.not_needed or bool(run.compared)
    # A run that failed as a whole has nothing to compare.
    if saved is None or not compares:
        return ""
    if isinstance(saved, str):
        return f"what it saved is not known: {saved}"
    if saved.saved.value is None:
        return f"what it saved is not known: {saved.saved.reason}"
    if not saved.saved.value:
        return ""
    return _share_text(saved, _of(run.trials))


def _share_text(saved: Saved, of: str) -> str:
    """The share with its interval; empty if none of it, or of the baseline, is known.

    :param of: of which cost it is a share.
    """
    value = _share(saved.saved.value, saved.baseline.value)
    low = _share(saved.saved.low, saved.baseline.low)
    high = _share(saved.saved.high, saved.baseline.high)
    if value is None or low is None or high is None:
        return ""
    verb = "saved" if value > 0 else "lost"
    if low == high:
        if round(100 * value) == 0:  # the default itself ran: "saved 0 %" says nothing
            return ""
        return f"{verb} {share_text(abs(value))}{of} (measured)"
    if low < 0 < high:
        between = f"{share_text(-low)} more to {share_text(high)} less"
        return f"not clear yet what it saved{of} ({SURE}: {between})"
    least, most = sorted((abs(low), abs(high)))
    between = f"{share_text(least, '')} to {share_text(most)}"
    return f"{verb} about {share_text(abs(value))}{of} ({SURE}: {between})"


def _share(saved: float | None, baseline: float | None) -> float | None:
    if saved is None or not baseline:
        return None
    return saved / baseline
