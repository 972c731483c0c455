"""A plan that someone spoilt: a JobSpecError, or a training that ends with its model;
nothing else, and no hang.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.hostile import HOSTILE, texts
from tests.unit.training.conftest import Kit, explore, incumbent, loop

SAMPLE = ProfileSample(
    batch_size=256, limit_w=200.0, samples=100, energy_j=5.0, time_s=1.0, steps=4
)


def whole(kit: Kit) -> dict[str, Any]:
    """A plan with everything in it."""
    plan = kit.plan(
        explore(1024, bound_epochs=3.0, bound_cost=1e5, max_epoch_cost=1e4),
        incumbent(256),
        profile=(SAMPLE,),
        limits_found_w={"GPU-1": (250.0, 150.0)},
        profile_s=0.1,
    )
    return json.loads(plan.to_json())  # type: ignore[no-any-return]


@HOSTILE
@given(data=st.data())
def test_a_spoilt_plan_is_refused_or_trained(tmp_path: Path, data: st.DataObject) -> None:
    text = data.draw(texts(whole(Kit(tmp_path))))
    lines: list[ResultLine] = []
    try:
        plan = Plan.from_json(text)
        assert Plan.from_json(plan.to_json()) == plan
        train(ZeusRun.from_plan(plan, sink=lines.append), lines)
    except JobSpecError as error:
        # of the plan; or of a power limit, whose range is known once the training begins
        refused = str(error)
    else:
        return
    assert re.search(r": .+\. .+", refused, re.DOTALL), f"not field, value and remedy: {refused}"


def train(run: ZeusRun, lines: list[ResultLine]) -> None:
    try:
        assert run.train(lambda run: loop(run, samples=4_096)) is not None
    finally:
        run.close()
        assert lines[-1].kind == "final"
