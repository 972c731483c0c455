"""``ZeusJob``: valid fields, and the errors of invalid ones."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.model.job import ZeusJob, is_deferred
from tests.golden import Table

GOOD: dict[str, Any] = {
    "batch_sizes": [16, 32, 64],
    "default_batch_size": 32,
    "target": "accuracy >= 0.84",
    "max_epochs": 30,
}


ERRORS = Table("job_errors")


class XComLike:
    """A value that Airflow resolves when the task runs."""

    def resolve(self, context: object) -> object:
        return context

    def __repr__(self) -> str:
        # without an address: it is part of test names, which must be the same in every worker
        return "XComLike()"


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(JobSpecError) as caught:
        call()
    return str(caught.value)


def refused(**fields: Any) -> str:
    return error_of(lambda: ZeusJob(**{**GOOD, **fields}))


BAD = [
    ("batch_sizes", []),
    ("batch_sizes", 32),
    ("batch_sizes", "16"),
    ("batch_sizes", None),
    ("batch_sizes", [0, 32]),
    ("batch_sizes", [-16, 32]),
    ("batch_sizes", [16.5, 32]),
    ("batch_sizes", [True, 32]),
    ("batch_sizes", ["16", 32]),
    ("batch_sizes", [16, 32, 16]),
    ("default_batch_size", 48),
    ("default_batch_size", 32.0),
    ("default_batch_size", None),
    ("eta", -0.1),
    ("eta", 1.01),
    ("eta", float("nan")),
    ("eta", "half"),
    ("eta", True),
    ("window", 5),
    ("window", 0),
    ("expected_runs", 0),
    ("retrain_every", 0),
    ("retrain_every", 1.5),
    ("audit", -0.1),
    ("audit", True),
    ("expected_runs", 2.5),
    ("window", 9.5),
    ("target", "accuracy > 0.84"),
    ("target", "accuracy >= much"),
    ("target", 0.84),
    ("max_epochs", None),
    ("max_epochs", 0),
    ("max_epochs", 2.5),
    ("policy", "ucb"),
    ("device", "tpu"),
    ("gpu_lock", "steal"),
    ("device", "simulated:v100"),
    ("device", None),
    ("mode", "on"),
    ("job_id", ""),
    ("job_id", 333 * "語" + "ab"),
    ("job_version", 2),
    ("data_slice", 7),
    ("power_limits_w", []),
    ("power_limits_w", [150, -1]),
    ("gpus", 0),
    ("gpus", 1.5),
    ("max_power_w", 0),
    ("finish_by", "6"),
    ("finish_by", "tomorrow"),
    ("finish_by", "0 s"),
    ("finish_by", "06:00+01:00"),
    ("finish_by", 6.0),
    ("start_within", "06:00"),
    ("start_within", "soon"),
    ("start_within", 8),
    ("start_signal", ""),
    ("profile_s", 0),
    ("learn_from", ["weekly"]),
    ("learn_from", []),
    ("log_to", "mlflow"),
    ("log_to", ["tensorboard"]),
    ("require_target", "yes"),
    ("strict", 1),
    ("starts", ["warm"]),
    ("starts", "warm"),
]


def test_bad_input_is_named_by_field_value_and_remedy() -> None:
    said = [refused(**{field: value}) for field, value in BAD]
    for (field, value), text in zip(BAD, said, strict=True):
        assert text.startswith(f"ZeusJob.{field} = {value!r}: ")
    ERRORS.check("fields of a job", "\n".join(said))


MALFORMED: dict[str, Callable[[], object]] = {
    "no max_epochs": lambda: ZeusJob(batch_sizes=[32], default_batch_size=32, target="acc >= 1"),
    "start_within without a signal": lambda: ZeusJob(**{**GOOD, "start_within": "8 h"}),
    "a template that is not rendered": lambda: ZeusJob(**{**GOOD, "eta": "{{ params.eta }}"}).check(
        rendered=True
    ),
    "a field that does not exist": lambda: ZeusJob.from_dict({**GOOD, "eta_knob": 0.5}),
    "a dict without batch sizes": lambda: ZeusJob.from_dict({"target": "acc >= 1"}),
    "a number": lambda: ZeusJob.from_dict(3),  # type: ignore[arg-type]
    "a template": lambda: ZeusJob.from_dict("{{ params.job }}"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("situation", MALFORMED)
def test_what_is_no_job(situation: str) -> None:
    ERRORS.check(situation, error_of(MALFORMED[situation]))


def test_leaving_max_epochs_out_is_an_error_of_that_field() -> None:
    with pytest.raises(JobSpecError, match=r"^ZeusJob\.max_epochs = None: "):
        ZeusJob(batch_sizes=[32], default_batch_size=32, target="acc >= 1")


def test_a_bad_job_can_be_caught_as_ours_and_as_a_value_error() -> None:
    with pytest.raises(ZeusError):
        ZeusJob(**{**GOOD, "eta": 7})
    with pytest.raises(ValueError, match="eta"):
        ZeusJob(**{**GOOD, "eta": 7})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"eta": 0},
        {"eta": 1},
        {"window": 6},
        {"batch_sizes": (32,), "window": 2},
        {"target": "rmse <= runtime"},
        {"device": "none", "mode": "off"},
        {"device": "simulated:v100/shufflenet", "power_limits_w": [100, 150.5]},
        {"finish_by": "06:00"},
        {"start_within": timedelta(hours=8), "start_signal": "carbon"},
        {"finish_by": datetime(2027, 3, 1, 6, tzinfo=UTC)},
        {"finish_by": timedelta(hours=2)},
        {"max_power_w": 300, "job_id": "daily", "data_slice": "2024-01", "learn_from": ["test"]},
    ],
)
def test_good_jobs_pass_and_survive_json(fields: dict[str, Any]) -> None:
    job = ZeusJob(**{**GOOD, **fields})
    assert job.check(rendered=True) is job
    assert ZeusJob.from_dict(json.loads(json.dumps(job.to_dict(), allow_nan=False))) == job


def test_a_job_keeps_its_own_copy_of_a_list() -> None:
    sizes = [16, 32, 64]
    job = ZeusJob(**{**GOOD, "batch_sizes": sizes})
    sizes.append(-1)
    assert list(job.batch_sizes) == [16, 32, 64]
    job.to_dict()["batch_sizes"].append(-1)
    assert list(job.batch_sizes) == [16, 32, 64]


@pytest.mark.parametrize(
    "later", ["{{ params.value }}", "{% if x %}1{% endif %}", XComLike()], ids=repr
)
def test_every_field_may_be_a_template_until_it_is_rendered(later: Any) -> None:
    good = {**GOOD, "start_signal": "carbon"}
    for field in sorted(ZeusJob(**good).to_dict()):
        job = ZeusJob(**{**good, field: later})
        assert is_deferred(job.to_dict()[field]), field
        assert error_of(partial(job.check, rendered=True)).startswith(
            f"ZeusJob.{field} = {later!r}: "
        )


@pytest.mark.parametrize(("field", "value"), [("eta", 3), ("default_batch_size", "big")])
def test_a_literal_next_to_a_template_is_checked(field: str, value: object) -> None:
    said = refused(**{"batch_sizes": "{{ params.sizes }}", field: value})
    assert said.startswith(f"ZeusJob.{field} = {value!r}: ")


RENDERED = {
    "batch_sizes": "[16, 32, 64]",
    "default_batch_size": "32",
    "target": "accuracy >= 0.84",
    "max_epochs": "30",
    "eta": "0.25",
    "window": "40",
    "audit": "0.05",
    "expected_runs": "12",
    "retrain_every": "7",
    "finish_by": "06:00",
    "start_within": "8 h",
    "start_signal": "price",
    "gpus": "2",
    "max_power_w": "250",
    "power_limits_w": "100, 150.5",
    "profile_s": "2.5",
    "learn_from": "['scheduled', 'test']",
    "log_to": "['mlflow']",
    "require_target": "True",
    "strict": "false",
}


def test_rendered_text_becomes_what_the_field_holds() -> None:
    job = ZeusJob.from_dict(RENDERED).check(rendered=True)
    assert job == ZeusJob(
        **{
            **GOOD,
            "eta": 0.25,
            "window": 40,
            "audit": 0.05,
            "expected_runs": 12,
            "retrain_every": 7,
            "finish_by": "06:00",
            "start_within": "8 h",
            "start_signal": "price",
            "gpus": 2,
            "max_power_w": 250.0,
            "power_limits_w": (100.0, 150.5),
            "profile_s": 2.5,
            "learn_from": ("scheduled", "test"),
            "log_to": ("mlflow",),
            "require_target": True,
        }
    )


@pytest.mark.parametrize("text", ["16,32,64", "(16, 32, 64)", " [16,32, 64] "])
def test_rendered_lists_are_read_in_every_usual_form(text: str) -> None:
    assert ZeusJob.from_dict({**GOOD, "batch_sizes": text}).batch_sizes == (16, 32, 64)


def test_a_list_that_is_empty_stays_so_in_a_cell() -> None:
    assert ZeusJob.from_dict({**GOOD, "log_to": "[]"}) == ZeusJob(**GOOD)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("eta", "high"),
        ("eta", "nan"),
        ("eta", ""),
        ("batch_sizes", "16, many"),
        ("batch_sizes", ""),
        ("batch_sizes", "0, 32"),
        ("max_epochs", "None"),
        ("default_batch_size", "32.0"),
        ("strict", "perhaps"),
        ("learn_from", "weekly"),
    ],
)
def test_rendered_text_that_does_not_fit_is_refused_by_field(field: str, text: str) -> None:
    with pytest.raises(JobSpecError, match=rf"^ZeusJob\.{field} = "):
        ZeusJob.from_dict({**GOOD, field: text})


def test_a_template_passes_from_dict_and_keeps_its_place() -> None:
    job = ZeusJob(**{**GOOD, "eta": "{{ params.eta }}"})
    spec = job.to_dict()
    assert ZeusJob.from_dict(spec) == job
    assert ZeusJob.from_dict({**spec, "eta": "0.75"}).check(rendered=True).eta == 0.75


def test_an_unknown_field_is_named_with_those_that_exist() -> None:
    said = error_of(lambda: ZeusJob.from_dict({**GOOD, "eta_knob": 0.5}))
    assert said.startswith("ZeusJob.eta_knob = 0.5: ")
    assert ", ".join(sorted(f.name for f in fields(ZeusJob))) in said


def test_a_misspelt_keyword_is_refused_as_in_a_dict_and_the_nearest_field_is_named() -> None:
    """Editors and type checkers see the fields all the same."""
    wrong = {"batch_size" if name == "batch_sizes" else name: value for name, value in GOOD.items()}
    said = error_of(lambda: ZeusJob(**wrong))
    assert said == error_of(lambda: ZeusJob.from_dict(wrong))
    assert (
        "batch_size = [16, 32, 64]: no such field of a job. did you mean batch_sizes? Or use one of audit,"
        in said
    )
    assert list(inspect.signature(ZeusJob).parameters) == [*ZeusJob.__annotations__]


def test_fields_that_are_missing_are_named_at_once_each_with_what_it_may_be() -> None:
    said = error_of(lambda: ZeusJob(batch_sizes=[32, 64], target="acc >= 1"))
    assert said == (
        "ZeusJob.default_batch_size, max_epochs = None: are missing. "
        "set default_batch_size to one of batch_sizes; max_epochs to 1 or more."
    )


@pytest.mark.parametrize("field", ["batch_sizes", "default_batch_size", "target", "max_epochs"])
def test_a_missing_field_is_named(field: str) -> None:
    spec = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(JobSpecError, match=rf"^ZeusJob\.{field} = None: is missing"):
        ZeusJob.from_dict(spec)


def test_live_settings_change_eta_and_are_checked() -> None:
    job = ZeusJob(**GOOD)
    assert job.with_settings({"eta": 0.9, "pause_exploration": True}).eta == 0.9
    assert job.with_settings({"pin_batch_size": 16}) == job
    second = job.with_settings({"job_version": "2"})
    assert second.job_version == "1+2"
    assert second.with_settings({"job_version": "2"}) == second
    with pytest.raises(JobSpecError, match=r"ZeusJob\.eta = 9"):
        job.with_settings({"eta": 9})


def test_importing_a_job_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import airflow_provider_zeus.model.job, airflow_provider_zeus.optimizer.policy;"
        "print([m for m in ('numpy', 'torch', 'airflow', 'sqlalchemy', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_notifiers_stay_with_the_job_object_and_out_of_the_log() -> None:
    job = ZeusJob(**GOOD, notify=print)
    assert job.notifiers == (print,)
    assert replace(job, eta=0.25).notifiers == (print,)
    assert job == ZeusJob(**GOOD)
    assert "notify" not in job.to_dict()
    assert ZeusJob.from_dict(job.to_dict()).notifiers == ()
    assert ZeusJob(**GOOD, notify=[print, repr]).notifiers == (print, repr)


@pytest.mark.parametrize("wrong", ["smtp", [1], print.__class__, None])
def test_what_is_no_notifier_is_refused(wrong: Any) -> None:
    assert "no notifier" in refused(notify=wrong)


def test_numbers_and_arrays_of_numpy_are_numbers_and_lists() -> None:
    job = ZeusJob(
        batch_sizes=[np.int64(16), np.int32(32)],
        default_batch_size=np.uint8(16),
        target="accuracy >= 0.84",
        max_epochs=np.int16(30),
        eta=np.float32(0.25),
        power_limits_w=np.array([150.0, 200.0]),
        strict=np.bool_(True),
    )
    assert job == ZeusJob(
        batch_sizes=[16, 32],
        default_batch_size=16,
        target="accuracy >= 0.84",
        max_epochs=30,
        eta=0.25,
        power_limits_w=[150.0, 200.0],
        strict=True,
    )
    assert json.loads(json.dumps(job.to_dict())) == job.to_dict(), "none of them is left"
    assert "not a positive whole number" in refused(batch_sizes=[np.float64(16.5)])


def test_values_without_names_are_refused_with_the_names_that_are_probably_meant() -> None:
    said = error_of(lambda: ZeusJob([16, 32], 16, target="accuracy >= 0.84", max_epochs=30))  # type: ignore[misc]
    assert "too many positional arguments" in said
    assert "write ZeusJob(batch_sizes=[16, 32], default_batch_size=16)" in said
    said = error_of(lambda: ZeusJob("accuracy >= 0.84", batch_sizes=[16], default_batch_size=16))  # type: ignore[misc]
    assert "write ZeusJob(target='accuracy >= 0.84')" in said
