"""What is stored or sent reads the same in every version:
whole objects against texts that an earlier version wrote.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    Decision,
    Lineage,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.store.pending import PendingResult
from airflow_provider_zeus.store.rows import (
    from_row,
    trial_from_dict,
    trial_to_dict,
)
from airflow_provider_zeus.store.sql import measurements, trials
from airflow_provider_zeus.store.variables import tables
from airflow_provider_zeus.store.variables.document import Beat, LogDocument
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from tests.unit.store.store_kit import JOB

SNAPSHOT = Path(__file__).parent / "snapshots" / "stored_texts.txt"

EXPLORE = PlannedAttempt(
    batch_size=64,
    phase=Phase.EXPLORE,
    why="Not known yet: é",
    bound_epochs=12.5,
    bound_cost=3e5,
    max_epoch_cost=1e4,
    bound_samples_per_epoch=1000.0,
    round=1,
)
INCUMBENT = PlannedAttempt(
    batch_size=32, phase=Phase.INCUMBENT, why="The best known.", start=Start.WARM
)
RELIEF = PlannedAttempt(batch_size=64, phase=Phase.INCUMBENT, why="Safe.", usual_s=9.5)
STAND_IN = PlannedAttempt(batch_size=16, phase=Phase.FALLBACK, why="Fits.")
SAMPLES = (
    ProfileSample.mark(64),
    ProfileSample(batch_size=64, limit_w=200.0, samples=640, energy_j=12.25, time_s=0.5, steps=10),
)
POINTS = (
    PowerPoint(t_s=1.0, power_w=150.5, limit_w=200.0, phase="profile"),
    PowerPoint(t_s=2.0, power_w=None, limit_w=None, phase="train"),
)
SEEN = Observation(
    epochs=3.5,
    samples=3500,
    samples_per_epoch=1000.0,
    energy_j=812.5,
    time_s=9.25,
    rest_j=5.0,
    rest_s=0.5,
    excess_j=-0.25,
    excess_s=0.125,
    paused_j=0.75,
    paused_s=0.0625,
    metric=0.81,
    power_limit_w=200.0,
    device_model="V100",
    device_count=2,
    max_power_w=600.0,
    energy_source="nvml_counter",
    gpu_uuid="GPU-1,GPU-2",
    gpu_energy_j=(400.5, 412.0),
    limit_found_w=250.0,
    learning_rate=0.001,
    start=Start.SHRUNK,
    served=0.78,
    start_id="5ta47",
    step_kind=77,
    gpu_busy=0.5,
    data_wait_s=1.5,
    host_j=91.5,
    host_source="rapl",
    epoch_metrics=(0.5, -0.5, 0.81),
    out_of_memory=True,
    reasons={"target_value": "the job has none"},
)
FULL = Trial(
    job_id="d.train",
    number=7,
    key=TrialKey("ti-7", 2),
    origin=Origin(
        dag_id="d",
        run_id="r",
        task_id="t",
        map_index=3,
        try_number=2,
        run_type="backfill",
        data_slice="s",
    ),
    spec=JOB.to_dict(),
    decision=Decision(
        attempts=(EXPLORE, INCUMBENT),
        seed=2**40,
        policy="zeus",
        stand_in=STAND_IN,
        reliefs=(RELIEF,),
    ),
    planned=INCUMBENT,
    state=State.CONVERGED,
    reason="reached",
    asked_after_seq=5,
    told_seq=6,
    opened_at=1000.5,
    lease_until=1090.5,
    lease_s=90.0,
    closed_at=1050.25,
    observation=SEEN,
    lineage=Lineage(
        from_ti_id="ti-6", from_attempt=1, from_start=Start.COLD, from_generations=0, from_age=2
    ),
)
SMALL = Trial(
    job_id="d.train",
    number=8,
    key=TrialKey("ti-8"),
    origin=Origin(),
    spec=JOB.to_dict(),
    decision=Decision(attempts=(INCUMBENT,), seed=0, policy="zeus"),
    planned=INCUMBENT,
    state=State.RUNNING,
)
REPORT = Report(
    observation=SEEN, profile=SAMPLES, points=POINTS, unsure=(Report(observation=Observation()),)
)
PENDING = PendingResult(
    job_id="d.train",
    key=FULL.key,
    state=State.GIVEN_UP,
    report=REPORT,
    reason="stopped",
    trial=FULL,
)
BEAT = Beat(job_id="d.train", attempt=2, lease_until=1090.5, lease_s=90.0, report=REPORT)
PLAN = Plan(
    job_id="d.train",
    ti_id="ti-7",
    number=7,
    first_attempt=2,
    spec=JOB.to_dict(),
    attempts=(EXPLORE, INCUMBENT),
    stand_in=STAND_IN,
    reliefs=(RELIEF,),
    time_left_s=3600.0,
    seed=2**40,
    profile=SAMPLES,
    limits_found_w={"GPU-1": (250.0, 150.0)},
    state_dir="/var/zeus",
    cpu_watts=6.5,
    gpus_held=("GPU-1", "GPU-2"),
)
SMALL_PLAN = Plan(job_id="j", ti_id="t", number=1, first_attempt=1, spec={}, attempts=(INCUMBENT,))
LINES = (
    ResultLine(kind="start", start_id="5ta47", try_number=2),
    ResultLine(kind="attempt", start_id="5ta47", attempt=2, batch_size=64),
    ResultLine(
        kind="beat", start_id="5ta47", attempt=2, observation=SEEN, profile=SAMPLES, points=POINTS
    ),
    ResultLine(
        kind="end",
        start_id="5ta47",
        attempt=2,
        state=State.FAILED,
        reason="é",
        observation=Observation(),
        notes={"a": 1.5},
    ),
    ResultLine(kind="final", start_id="5ta47"),
)


def document() -> LogDocument:
    with tables.empty_tables(write=True) as log:
        rows = tables.load(log, "d.train", replace(LogDocument.empty("d.train"), seq=6, newest=8))
        for trial in (FULL, SMALL):
            trials.insert(log, trial)
        report = Report(observation=SEEN, profile=SAMPLES)
        measurements.add(log, FULL, report)
        measurements.add(log, replace(FULL, observation=replace(SEEN, energy_source=None)), report)
        measurements.add_points(log, FULL.key, POINTS)
        return tables.dump(log, "d.train", rows, 0)


def written() -> dict[str, str]:
    """One text per stored or sent form."""
    texts: dict[str, Any] = {
        "row": flat(FULL),
        "open row": flat(SMALL),
        "trial": trial_to_dict(FULL),
        "open trial": trial_to_dict(SMALL),
        "report": encode(REPORT),
    }
    return {name: json.dumps(value) for name, value in texts.items()} | {
        "pending result": PENDING.to_json(),
        "pending result, row known": replace(PENDING, reason=None, trial=None).to_json(),
        "beat": BEAT.to_json(),
        "log": document().to_json(),
        "plan": PLAN.to_json(),
        "plan of one attempt": SMALL_PLAN.to_json(),
        **{f"line {line.kind}": line.to_json() for line in LINES},
    }


def frozen() -> dict[str, str]:
    return dict(line.split(": ", 1) for line in SNAPSHOT.read_text().splitlines())


def test_every_text_is_written_as_it_was() -> None:
    assert written() == frozen()


def test_every_text_of_an_earlier_version_is_read() -> None:
    texts = frozen()
    assert from_row(json.loads(texts["row"])) == FULL
    assert from_row(json.loads(texts["open row"])) == SMALL
    assert trial_from_dict(json.loads(texts["trial"])) == FULL
    assert trial_from_dict(json.loads(texts["open trial"])) == SMALL
    assert decode(Report, json.loads(texts["report"])) == REPORT
    assert PendingResult.from_json(texts["pending result"]) == PENDING
    assert Beat.read(texts["beat"]) == BEAT
    with tables.empty_tables(write=True) as log:
        rows = tables.load(log, "d.train", LogDocument.from_json(texts["log"]))
        assert list(trials.log(log, "d.train")) == [FULL, SMALL]
        assert tables.dump(log, "d.train", rows, 0).to_json() == texts["log"]
    assert Plan.from_json(texts["plan"]) == PLAN
    assert Plan.from_json(texts["plan of one attempt"]) == SMALL_PLAN
    for line in LINES:
        assert ResultLine.from_json(texts[f"line {line.kind}"]) == line
