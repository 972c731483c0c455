"""A run as metrics: what is known is told once, with few tags; what is not known is absent."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import Observation, Phase, State, Trial
from airflow_provider_zeus.reports.run_figures import RunFigures, with_log
from airflow_provider_zeus.reports.run_metrics import (
    MOST_DEVICES,
    SOURCES,
    Metric,
    job_metrics,
    trial_metrics,
)
from airflow_provider_zeus.training.ranks import ENERGY_SOURCES
from tests.unit.reports.test_run_figures import DEFAULTS, PROFILE, saving, trial

SAFE = re.compile(r"[A-Za-z0-9._-]{1,60}")


def figures(ended: list[Trial], newest: list[Trial]) -> RunFigures:
    return with_log(RunFigures(cost={}, ended=ended), newest, lambda *_: PROFILE)


def values(metrics: list[Metric], **tags: str) -> dict[str, float]:
    return {m.name: m.value for m in metrics if m.tags.items() >= tags.items()}


def test_the_newest_trial_is_told_and_all_are_added() -> None:
    own = [trial(3, 16, 1.0, State.GIVEN_UP, phase=Phase.EXPLORE), trial(4, 32, 2.0)]
    found = trial_metrics(own, own)
    assert values(found, phase="explore", state="given_up") == {
        "zeus.trials": 1.0,
        "zeus.trials.energy_j": 100.0,
        "zeus.trials.time_s": 1.0,
        "zeus.trials.cost_j": 0.5 * 100.0 + 0.5 * 300.0,
        "zeus.trials.epochs": 1.0,
    }
    newest = {m.name: m.value for m in found if not m.total}
    assert newest == {
        "zeus.trial.energy_j": 200.0,
        "zeus.trial.time_s": 2.0,
        "zeus.trial.cost_j": 400.0,
        "zeus.trial.epochs": 2.0,
        "zeus.trial.batch_size": 32.0,
        "zeus.trial.limit_w": 300.0,
    }
    (tags,) = {tuple(m.tags.items()) for m in found if not m.total}
    origin = {"zeus_job": "j", "dag_id": "d", "task_id": "t"}
    assert dict(tags) == {**origin, "device": "V100", "source": "nvml_counter"}


def test_the_name_of_a_device_is_readable() -> None:
    own = [trial(3, 32, 1.0, device_model="NVIDIA A100-SXM4-40GB")]
    assert {m.tags["device"] for m in trial_metrics(own, own)} == {"NVIDIA_A100-SXM4-40GB"}
    assert {m.tags["device"] for m in trial_metrics(own, [])} == {"other"}, (
        "the log does not know it"
    )


def test_trials_of_one_phase_and_state_are_one_sum_of_each_source() -> None:
    own = [trial(3, 32, 1.0), trial(4, 32, 2.0), trial(5, 32, 4.0, energy_source="estimate")]
    found = trial_metrics(own, own)
    assert values(found, source="nvml_counter")["zeus.trials.energy_j"] == 300.0
    assert values(found, source="estimate")["zeus.trials.energy_j"] == 400.0


@pytest.mark.parametrize("energy", [None, math.nan, math.inf, -1.0])
def test_an_energy_that_is_not_known_is_absent(energy: float | None) -> None:
    own = [trial(3, 32, 1.0, energy_j=energy)]
    found = {m.name for m in trial_metrics(own, own)}
    assert not any("energy" in name for name in found)
    assert "zeus.trial.time_s" in found


def test_a_cost_in_seconds_has_another_name() -> None:
    own = [trial(3, 32, 2.0, energy_j=None, energy_source=None)]
    found = values(trial_metrics(own, own))
    assert found["zeus.trial.cost_s"] == 2.0
    assert not any(name.endswith("_j") for name in found)


def test_a_run_that_trained_nothing_has_no_figures() -> None:
    own = [replace(trial(3, 32, 1.0, State.NOT_NEEDED), observation=Observation())]
    found = values(trial_metrics(own, own))
    assert found == {"zeus.trials": 1.0, "zeus.trial.batch_size": 32.0}


def test_saving_and_belief() -> None:
    own = [trial(9, 16, 2.0)]
    found = job_metrics(figures(own, [*DEFAULTS, *own]))
    expected = saving(*own).cost.saved.value
    assert expected is not None
    saved = values(found)
    assert saved["zeus.trial.saving_j"] == pytest.approx(expected), "as all that tell it"
    assert (
        saved["zeus.trial.saving_low_j"]
        < saved["zeus.trial.saving_j"]
        < saved["zeus.trial.saving_high_j"]
    )
    believed = {m.tags["batch_size"]: m.value for m in found if m.name == "zeus.believed.cost_j"}
    assert set(believed) == {"16", "32"}
    assert believed["16"] < believed["32"]


def test_a_saving_that_is_not_known_is_absent() -> None:
    own = [trial(3, 16, 2.0)]  # the default has never run
    assert not any("saving" in name for name in values(job_metrics(figures(own, own))))


def test_the_known_sources_are_those_of_the_devices() -> None:
    assert set(SOURCES) == {s for s in ENERGY_SOURCES if s} | {"rapl_share"}, (
        "of a task as it is: no rank has it"
    )
    table = (Path(__file__).parents[3] / "docs/concepts/honesty.md").read_text(encoding="utf-8")
    assert [source for source in SOURCES if f"\n| `{source}` |" not in table] == []


@given(
    st.lists(st.text(max_size=70), min_size=1, max_size=12),
    st.text(max_size=200),
    st.text(max_size=100),
)
def test_names_that_others_made_up_make_few_safe_tags(
    models: list[str], name: str, source: str
) -> None:
    log = [
        replace(trial(n, 32, 1.0, device_model=model, energy_source=source), job_id=name)
        for n, model in enumerate(models, 1)
    ]
    tags = [m.tags for t in log for m in trial_metrics([t], log)]
    assert len({t["device"] for t in tags}) <= MOST_DEVICES + 1
    assert {t["source"] for t in tags} <= {*SOURCES, "other", "none"}
    assert all(SAFE.fullmatch(value) for t in tags for value in t.values())


def test_many_batch_sizes_are_few_metrics() -> None:
    sizes: Any = list(range(1, 100))
    own = [trial(3, 32, 2.0, spec={"batch_sizes": sizes})]
    found = job_metrics(figures(own, [*DEFAULTS, *own]))
    assert sum(m.name == "zeus.believed.cost_j" for m in found) <= 32
