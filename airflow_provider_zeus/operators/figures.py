"""What a run cost, as the figures that lineage and asset events carry. A figure that is not known is absent."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation, State, Trial
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.months import SIMULATED, kind_of
from airflow_provider_zeus.reports.run_metrics import NEWEST
from airflow_provider_zeus.reports.run_savings import RunSaving, Yardstick
from airflow_provider_zeus.signals.prices import Prices

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

MOST_TEXT = 200  # characters of a text among the figures


def figures(
    cost: Mapping[str, Any], drawn: Sequence[Observation], prices: Prices, saving: RunSaving | None
) -> dict[str, Any]:
    """The figures of one run, as plain JSON of at most some 2 kB: numbers, and texts that say whose they are.

    :param cost: XCom ``zeus_cost`` of the run.
    :param drawn: what its attempts observed.
    :param prices: in force.
    :param saving: of the run; None: not known.
    """
    sources = {o.energy_source for o in drawn if o.energy_j is not None}
    source = sources.pop() if len(sources) == 1 else None
    energy_j = _amount(cost["energy_j"]) if source else None
    time_s, found = _amount(cost["time_s"]), prices.at_the_time(drawn)
    kept: Mapping[str, Any] = next((a for a in cost["attempts"] if a["kept"]), {})
    money, grams = _money(found, energy_j, time_s, drawn), _grams(found, energy_j)
    simulated = any(kind_of(o.energy_source) == SIMULATED for o in drawn)
    values = {
        "job_id": cost["job_id"],
        "batch_size": cost["batch_size"],
        "power_limit_w": _amount(kept.get("power_limit_w")),
        "energy_j": energy_j,
        "energy_source": None if energy_j is None else source,
        "time_s": time_s,
        "time_source": None if time_s is None else SIMULATED if simulated else "measured",
        "money": money,
        "currency": None if money is None else found.currency,
        "money_source": None if money is None else _paid_by(found),
        "co2e_g": grams,
        "co2e_source": None if grams is None else found.g_co2e_from or "[zeus] g_co2e_per_kwh",
        **_saved(saving),
    }
    return {name: value for name, raw in values.items() if (value := _plain(raw)) is not None}


def saving_of(store: Store, trial: Trial) -> RunSaving | None:
    """What the run of a trial saved, all its tries together, by its job's newest trials; None where unknown."""
    newest = store.trials(trial.job_id, last=NEWEST)
    own = [t for t in newest if t.recurrence == trial.recurrence]
    measured = [t for t in own if t.observation.where is not None and t.observation.time_s is not None]
    if not measured or any(t.state is State.RUNNING for t in own):
        return None
    job, where = measured[-1].job, measured[-1].observation.where
    assert where is not None
    profiles = store.profile(trial.job_id, where, job.job_version)
    log_of_job = as_dataset(newest, job, where)
    return Yardstick.of(log_of_job, where, rng=random.Random(0), profiles=profiles).saving(own)


def into_outlets(outlets: Sequence[Any], events: Any, found: Mapping[str, Any]) -> None:
    """Put the figures under the key ``zeus`` of the extra of each outlet's event, beside what the user put there.

    :param events: ``context["outlet_events"]``. Of an alias those that the training has added get them.
    """
    from airflow.sdk import Asset, AssetAlias

    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            for event in events[outlet].asset_alias_events:
                event.extra["zeus"] = dict(found)
        elif isinstance(outlet, Asset):
            events[outlet].extra = {**events[outlet].extra, "zeus": dict(found)}


def _saved(saving: RunSaving | None) -> dict[str, Any]:
    if saving is None:
        return {}
    energy, time = saving.energy.saved, saving.time.saved
    if energy.value is None and time.value is None:
        return {}
    return {
        **{f"saved_{end}j": value for end, value in _ends(energy)},
        **{f"saved_{end}s": value for end, value in _ends(time)},
        "saved_verdict": saving.cost.saved.verdict,
        "saved_source": "measured" if saving.measured else "estimated",
        "default_batch_size": saving.default_batch_size,
    }


def _ends(saved: Estimate) -> tuple[tuple[str, float | None], ...]:
    """A saving and its 90 % interval."""
    return ("", saved.value), ("low_", saved.low), ("high_", saved.high)


def _money(prices: Prices, energy_j: float | None, time_s: float | None, drawn: Sequence[Observation]) -> float | None:
    """Money in ``prices.currency``; None where a price, the currency or what is paid for is not known."""
    per_j, per_s = prices.per_j_and_s(max((o.device_count or 1 for o in drawn), default=1))
    if not prices.priced or not prices.currency:
        return None
    if (energy_j is None and prices.price_per_kwh is not None) or (per_s and time_s is None):
        return None
    return per_j * (energy_j or 0.0) + per_s * (time_s or 0.0)


def _grams(prices: Prices, energy_j: float | None) -> float | None:
    """Grams of CO2e; None where the energy or the intensity is not known."""
    return None if energy_j is None or prices.g_co2e_per_kwh is None else energy_j * prices.g_per_j


def _paid_by(prices: Prices) -> str:
    """Who says what energy and time cost."""
    energy = None if prices.price_per_kwh is None else prices.price_from or "[zeus] price_per_kwh"
    time = None if prices.price_per_gpu_hour is None else "[zeus] price_per_gpu_hour"
    return "; ".join(filter(None, (time, energy)))


def _amount(value: float | None) -> float | None:
    """A finite number of at least 0; None for anything else that a training may report."""
    return value if value is not None and 0 <= value < math.inf else None


def _plain(value: Any) -> Any:
    """The value as JSON holds it; None where it is not finite, or empty."""
    if isinstance(value, str):
        return visible(value[:MOST_TEXT])[:MOST_TEXT] or None
    if isinstance(value, int) or value is None:
        return value
    return float(value) if math.isfinite(value) else None
