"""What a job saved or lost, in words. Pure."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.saving import SavedInAll, Saving
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.models import Figure, Source
from airflow_provider_zeus.plugin.prices import Factors
from airflow_provider_zeus.plugin.run_models import Tile, Verdict


def rival(saving: Saving) -> str:
    """What the runs are compared with."""
    power = "full power" if saving.full_power_w is None else f"full power ({saving.full_power_w:,.0f} W)"
    return f"always batch size {saving.default_batch_size}, the default, at {power}"


def verdict(saving: Saving, *, all_of: bool = True) -> Verdict:
    """A loss is said as plainly as a saving; where the interval holds both, that too. ``all_of``: no older runs."""
    total = saving.cost.saved
    if total.value is None:
        return Verdict(
            kind="unknown", word="Not known", text=f"Whether this job saved anything cannot be told: {total.reason}."
        )
    runs = "its run" if saving.runs == 1 else f"{saving.runs:,} runs" if all_of else f"its newest {saving.runs:,} runs"
    amount = f"{words.cost(abs(total.value), saving.cost.unit).text} of cost{share(saving.cost)}"
    verb = "saved" if total.value >= 0 else "lost"
    if words.undecided(total):
        text = f"Over {runs} this job {verb} about {amount} against {rival(saving)}, within what chance explains"
        return Verdict(kind="even", word="Undecided", text=f"{text} ({interval(total, saving.cost.unit)}).")
    text = f"Over {runs} this job {verb} {amount} against {rival(saving)} ({interval(total, saving.cost.unit)})."
    return Verdict(kind=verb, word=verb.capitalize(), text=text)


def tiles(saving: Saving, source: Source, factors: Factors, gpus: int, *, all_of: bool = True) -> list[Tile]:
    """Figures at the top of the tab. ``all_of``: the log holds no older runs."""
    found = [
        _total("cost", saving.cost, words.cost, source),
        _exploration(saving, source),
        break_even(saving, all_of=all_of),
        _per_run(saving, source),
        _total("energy", saving.energy, lambda v, _: words.energy(v), source),
        _total("time", saving.time, lambda v, _: words.duration(v), source),
    ]
    energy, time = saving.energy.saved.value, saving.time.saved.value
    converted = [("money", factors.money(energy, time, gpus)), ("CO₂e", factors.carbon(energy))]
    for name, figure in converted:
        if figure is not None and figure.value is not None:
            kind, said = ("bad", "Lost") if figure.value < 0 else ("good", "Saved")
            shown = figure.model_copy(update={"text": figure.text.removeprefix("-")})
            found.append(
                Tile(name=f"{said}: {name}", figure=shown, note="converted by [zeus]", kind=kind, source=source)
            )
    return found


def _total(name: str, saved: SavedInAll, say: Callable[[float, str], Figure], source: Source) -> Tile:
    total = saved.saved
    if total.value is None:
        return Tile(name=f"Saved: {name}", figure=words.missing(total.reason or ""), note=f"not known: {total.reason}")
    lost = total.value < 0
    said = say(abs(total.value), saved.unit)
    exact = f"{'lost' if lost else 'saved'} {said.exact}"
    kind = "warn" if words.undecided(total) else "bad" if lost else "good"
    figure = Figure(value=total.value, text=said.text, exact=exact)
    parts = [
        share(saved).strip(" ()"),
        "" if total.low == total.high else words.interval(total, lambda v: say(v, saved.unit).text),
    ]
    note = "; ".join(part for part in parts if part)
    return Tile(name=f"{'Lost' if lost else 'Saved'}: {name}", figure=figure, note=note, kind=kind, source=source)


def _exploration(saving: Saving, source: Source) -> Tile:
    spent, settled = saving.cost.exploration, saving.cost.settled
    name = "Spent on exploration"
    if spent is None:
        return Tile(name=name, figure=words.missing("a figure of one of the runs is not known"))
    note = "attempts given up or dead, profiling"
    if settled.value is not None:
        verb = "saved" if settled.value >= 0 else "lost"
        note += f"; without it {verb}: {words.cost(abs(settled.value), saving.cost.unit).text}"
    return Tile(name=name, figure=words.cost(spent, saving.cost.unit), note=note, source=source)


def break_even(saving: Saving, *, all_of: bool = True) -> Tile:
    """When the savings made up for what exploration cost."""
    name = "Break-even"
    if saving.break_even_run is not None:
        text = "from the start" if saving.break_even_run == 1 else f"at run {saving.break_even_run:,}"
        which = f"{saving.runs:,}" if all_of else f"the newest {saving.runs:,}"
        note = f"of {which}; from there on the sum stays at or below the default's"
        return Tile(name=name, figure=Figure(value=saving.break_even_run, text=text), note=note, kind="good")
    if saving.break_even_in is not None:
        runs = "1 more run" if saving.break_even_in == 1 else f"{saving.break_even_in:,} more runs"
        figure = Figure(value=saving.break_even_in, text=f"in {runs}")
        return Tile(name=name, figure=figure, note="if each saves what is expected now", kind="warn")
    each = saving.per_run.value
    if saving.cost.saved.value is not None and each is not None and each <= 0:
        return Tile(name=name, figure=Figure(text="not in sight"), note="a further run saves nothing", kind="bad")
    why = saving.cost.saved.reason or saving.per_run.reason or "not known"
    return Tile(name=name, figure=words.missing(why), note=f"not known: {why}")


def _per_run(saving: Saving, source: Source) -> Tile:
    each, unit = saving.per_run, saving.cost.unit
    if each.value is None:
        return Tile(name="A run saves", figure=words.missing(each.reason or ""), note=f"not known: {each.reason}")
    kind = "warn" if words.undecided(each) else "good" if each.value > 0 else "bad" if each.value < 0 else ""
    return Tile(
        name="A run saves" if each.value >= 0 else "A run loses",
        figure=words.cost(abs(each.value), unit),
        note=f"expected of the next; {interval(each, unit)}",
        kind=kind,
        source=source,
    )


def share(saved: SavedInAll) -> str:
    """`` (18 %)`` of the baseline."""
    base, value = saved.baseline.value, saved.saved.value
    return "" if not base or value is None else f" ({abs(100 * value / base):.0f} %)"


def interval(of: Estimate, unit: str) -> str:
    """Where 90 % of the belief lies, or why there is no interval."""
    return words.interval(of, lambda v: words.cost(v, unit).text)
