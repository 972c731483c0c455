"""However long a training runs: what is stored and what waits of its power over time is what a
page draws.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.model.partial_sums import Report, thinned
from airflow_provider_zeus.model.size_bounds import MAX_POINTS
from airflow_provider_zeus.model.trial import PowerPoint, ProfileSample, State
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.store.sql.measurements import MOST_DEVICES
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.training.protocol.events import ResultLine, folded
from tests.unit.store.store_kit import DictPort, began_alone, request, seen

MANY = 20_000  # a point a second: more than five hours


def curve(start: int = 0, count: int = MANY) -> list[PowerPoint]:
    """A limit that changes every hour, a validation every 10 minutes."""
    return [
        PowerPoint(
            t_s=i + 1.0,
            power_w=150.0 + i % 7,
            limit_w=200.0 + i // 3600,
            phase="validate" if i % 600 < 30 else "train",
        )
        for i in range(start, start + count)
    ]


def energy_j(points: list[PowerPoint]) -> float:
    ends = [0.0, *(p.t_s for p in points)]
    return sum(
        (p.power_w or 0.0) * (p.t_s - before) for p, before in zip(points, ends, strict=False)
    )


CURVE = curve()


def test_thinning_keeps_energy_and_end() -> None:
    few = thinned(CURVE)
    assert len(few) <= MAX_POINTS == 500
    assert few[-1].t_s == MANY
    assert energy_j(few) == pytest.approx(energy_j(CURVE))


@pytest.mark.parametrize("parts", [1, 20])
def test_every_store_keeps_what_a_page_draws(store: Store, parts: int) -> None:
    key = store.ask(request(1)).trial.key
    size = MANY // parts
    for part in range(parts):
        news = Report(observation=seen(), points=CURVE[part * size : (part + 1) * size])
        if part + 1 < parts:
            store.heartbeat(key, news)
    store.tell(key, State.CONVERGED, news)
    points = store.points(key)
    assert 50 < len(points) <= MAX_POINTS
    assert points[-1].t_s == MANY
    assert energy_j(points) == pytest.approx(energy_j(CURVE))


def test_what_waits_in_a_variable_or_a_file_is_as_little(tmp_path: Path) -> None:
    for down in (False, True):
        port = DictPort()
        port.down = down
        tell = ResultReporter(
            None, port, began_alone(1, opened_at=0.0), lease_s=90, state_dir=tmp_path
        )
        tell(
            ResultLine(
                kind="end",
                start_id="s",
                attempt=1,
                state=State.CONVERGED,
                observation=seen(),
                points=tuple(CURVE),
            )
        )
        (text,) = [path.read_text() for path in tmp_path.iterdir()] if down else port.data.values()
        assert 50 < len(json.loads(text)["report"]["points"]) <= MAX_POINTS


def test_what_waits_in_memory_for_a_store_that_is_gone_is_as_little() -> None:
    waiting: list[ResultLine] = []
    for n in range(0, MANY, 100):
        sample = ProfileSample(
            batch_size=32, limit_w=100.0 + n % 500, samples=1, energy_j=1.0, time_s=1.0
        )
        news = ResultLine(
            kind="beat",
            start_id="s",
            attempt=1,
            observation=seen(),
            points=tuple(curve(n, 100)),
            profile=(sample,),
        )
        waiting = folded([*waiting, news])
        assert len(waiting) == 1
        assert len(waiting[0].points) <= MAX_POINTS
        assert len(waiting[0].profile) <= 5
    (line,) = folded([*waiting, replace(waiting[0], kind="end", points=(), profile=())])
    assert line.kind == "end"
    assert line.points[-1].t_s == MANY
    assert energy_j(list(line.points)) == pytest.approx(energy_j(CURVE))
    assert sum(s.samples for s in line.profile) == MANY // 100


def test_a_mark_that_waits_still_takes_back_what_was_sent_before() -> None:
    def beat(*profile: ProfileSample) -> ResultLine:
        return ResultLine(kind="beat", start_id="s", attempt=1, observation=seen(), profile=profile)

    sample = ProfileSample(batch_size=32, limit_w=100.0, samples=1, energy_j=1.0, time_s=1.0)
    (line,) = folded([beat(sample), beat(ProfileSample.mark(32)), beat(sample), beat(sample)])
    assert [(s.is_mark, s.samples) for s in line.profile] == [(True, 0), (False, 2)]


def test_a_training_that_names_another_device_in_each_heartbeat_makes_no_rows_without_end(
    store: Store,
) -> None:
    asked = request(1)
    key = store.ask(asked).trial.key
    sample = ProfileSample(
        batch_size=32, limit_w=200.0, samples=100, energy_j=10.0, time_s=1.0, steps=3
    )
    devices = [f"GPU {number}" for number in range(MOST_DEVICES + 10)]
    for number, model in enumerate(devices, 1):
        observation = replace(
            seen(), device_model=model, samples=100 * number, energy_j=10.0 * number
        )
        store.heartbeat(key, Report(observation=observation, profile=[sample]))
    own = (asked.job_id, asked.job.job_version)
    held = [model for model in devices if store.profile(own[0], (model, 1, "simulated"), own[1])]
    assert 0 < len(held) <= MOST_DEVICES
    (before,) = store.profile(own[0], (held[0], 1, "simulated"), own[1])
    again = replace(seen(), device_model=held[0], samples=100_000)
    store.heartbeat(key, Report(observation=again, profile=[sample]))
    (grown,) = store.profile(own[0], (held[0], 1, "simulated"), own[1])
    assert grown.samples == before.samples + 100
