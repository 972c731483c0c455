"""How a run ended and what it cost, in one line. A figure that is not known is left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import weights_of
from airflow_provider_zeus.model.estimate import SURE
from airflow_provider_zeus.model.trial import DATA_WAIT, Observation, Phase, State, Trial
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.dataset import total
from airflow_provider_zeus.reports.limit_profiles import LimitSaving
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import energy_text, money_text, share_text, time_text


def closing(
    ended: Sequence[Trial],
    saved: Saved | None = None,
    limit: LimitSaving | None = None,
    prices: Prices | None = None,
) -> str:
    """The line of a run, such as ``reached its target after 6 epochs at batch size 64, 3.78 Wh, ...``.

    Energy and time are those of all attempts together; the metric is that of the last one.

    :param ended: trials of the run in order, at least one: what is kept comes last.
    :param saved: cost saved against the default [J or s]; None: not known.
    :param limit: what the power limit of a run without a batch size saved.
    :param prices: in force, for what waiting for batches cost.
    """
    last, seen = ended[-1], [t.observation for t in ended]
    others = [str(t.batch_size) for t in ended[:-1] if t.batch_size is not None]
    parts = [
        "trained at a chosen power limit" if limit and limit.text and last.state is State.DONE else _how(last),
        f"batch size {' and '.join(others)} before it" if others else "",
        _metric(last),
        _sum((o.energy_j for o in seen), energy_text) if len({o.energy_source for o in seen}) == 1 else "",
        _sum((o.time_s for o in seen), time_text),
        _host(seen),
        _why_no_energy(last),
        "figures are simulated" if any(o.energy_source == "simulated" for o in seen) else "",
        _saving(saved, _of(ended)),
        limit.text if limit else "",
        _waited(last.observation, prices),
    ]
    return ", ".join(filter(None, parts))


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
    how, epochs = ended.get(trial.state, trial.state.value), trial.observation.epochs
    after = f" after {epochs:g} epoch{'' if epochs == 1 else 's'}" if epochs else ""
    if trial.state is State.NOT_NEEDED or trial.planned.phase is Phase.MEASURED:
        return how
    start = trial.observation.start if trial.planned.start is not None else None
    return f"{how}{after} at batch size {trial.batch_size}{f' from a {start} start' if start else ''}"


def _metric(trial: Trial) -> str:
    metric = trial.observation.metric
    try:
        return "" if metric is None else f"{visible(trial.job.parsed_target.metric)} {metric:.3g}"
    except JobSpecError:  # another version wrote it
        return ""


def _sum(values: Iterable[float | None], text: Callable[[float], str]) -> str:
    """The sum as text; empty where one is not known: a part would look like the whole."""
    known = total(values)
    return "" if known is None else text(known)


def _host(seen: Sequence[Observation]) -> str:
    """What the host drew beside the GPU, which is in no other figure."""
    text = _sum((o.host_j for o in seen), energy_text)
    return f"beside it {text} of the host's processors and memory ({seen[-1].host_source})" if text else ""


def _waited(seen: Observation, prices: Prices | None) -> str:
    """What waiting for batches took, where that is worth a line; in money, where it has a currency."""
    text = visible(seen.reasons.get(DATA_WAIT, "").partition(". Try ")[0])
    found = prices and prices.at_the_time([seen])
    money = found.money_of(seen.data_wait_j, seen.data_wait_gpu_s) if text and found and found.currency else None
    if money is None or found is None:
        return text
    return f"{text} (at most {money_text(money, visible(found.currency))})".replace("at most under", "under")


def _why_no_energy(trial: Trial) -> str:
    """Why a task that is measured as it is has no energy: its energy is all that it costs."""
    why = trial.observation.reasons.get("energy_j")
    return (
        f"energy not known: {visible(why.partition(': ')[0])}" if why and trial.planned.phase is Phase.MEASURED else ""
    )


def _of(ended: Sequence[Trial]) -> str:
    """What the cost of a run is of, where a share of it is told."""
    try:
        alone = {weights_of(t.job, t.observation).one_alone for t in ended}
    except JobSpecError:
        return ""
    return f" of {alone.pop()}" if len(alone) == 1 and "" not in alone else " of energy and time together"


def _saving(saved: Saved | None, of: str) -> str:
    """The share of the baseline with its 90 % interval; empty where it is not known or nothing compares."""
    if saved is None or not saved.saved.value:
        return ""
    ends = [saved.saved.value, saved.saved.low, saved.saved.high]
    baselines = [saved.baseline.value, saved.baseline.low, saved.baseline.high]
    shares = [end / base for end, base in zip(ends, baselines, strict=True) if end is not None and base]
    if len(shares) < len(ends):
        return ""
    value, low, high = shares
    verb = "saved" if value > 0 else "lost"
    if low == high:
        if not round(100 * value):  # as of the default's first run
            return ""
        return f"{verb} {share_text(abs(value))}{of} (measured)"
    if low < 0 < high:
        between = f"{share_text(low, '')} to {share_text(high)}"
        return f"not clear yet what it saved: about {share_text(value)}{of} ({SURE}: {between})"
    least, most = sorted((abs(low), abs(high)))
    return f"{verb} about {share_text(abs(value))}{of} ({SURE}: {share_text(least, '')} to {share_text(most)})"
