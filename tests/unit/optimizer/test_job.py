"""``ZeusJob``: what a DAG author may write, and what is said of everything else."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError, ZeusError
from airflow_provider_zeus.optimizer.job import ZeusJob, is_deferred

GOOD: dict[str, Any] = {
    "batch_sizes": [16, 32, 64],
    "default_batch_size": 32,
    "target": "accuracy >= 0.84",
    "max_epochs": 30,
}


class XComLike:
    """Something that Airflow resolves when the task runs."""

    def resolve(self, context: object) -> object:
        return context

    def __repr__(self) -> str:
        return "XComLike()"  # without an address: it is part of test names, which must be the same in every worker


def refused(**fields: Any) -> str:
    with pytest.raises(JobSpecError) as caught:
        ZeusJob(**{**GOOD, **fields})
    return str(caught.value)


BAD = [
    # field, value, what the message says is wrong, the remedy it gives
    ("batch_sizes", [], "not a list with at least one entry", "as in [16, 32, 64]"),
    ("batch_sizes", 32, "not a list with at least one entry", "as in [16, 32, 64]"),
    ("batch_sizes", "16", "not a list with at least one entry", "as in [16, 32, 64]"),
    ("batch_sizes", None, "not a list with at least one entry", "as in [16, 32, 64]"),
    ("batch_sizes", [0, 32], "0 is not a positive whole number", "positive integers"),
    ("batch_sizes", [-16, 32], "-16 is not a positive whole number", "positive integers"),
    ("batch_sizes", [16.5, 32], "16.5 is not a positive whole number", "positive integers"),
    ("batch_sizes", [True, 32], "True is not a positive whole number", "positive integers"),
    ("batch_sizes", ["16", 32], "'16' is not a positive whole number", "positive integers"),
    ("batch_sizes", [16, 32, 16], "16 is there more than once", "name each batch size once"),
    ("default_batch_size", 48, "not in batch_sizes [16, 32, 64]", "add it there or choose one of them"),
    ("default_batch_size", 32.0, "not a whole number", "set it to 1 or more"),
    ("default_batch_size", None, "is missing", "set it to a whole number"),
    ("eta", -0.1, "not a number from 0 to 1", "0 weighs time alone, 1 energy alone, 0.5 both"),
    ("eta", 1.01, "not a number from 0 to 1", "0 weighs time alone"),
    ("eta", float("nan"), "not a number from 0 to 1", "0 weighs time alone"),
    ("eta", "half", "not a number from 0 to 1", "0 weighs time alone"),
    ("eta", True, "not a number from 0 to 1", "0 weighs time alone"),
    ("beta", 1, "not a number above 1", "2 gives exploration twice the incumbent's cost"),
    ("beta", 0.5, "not a number above 1", "2 gives exploration twice"),
    ("beta", float("inf"), "not a number above 1", "2 gives exploration twice"),
    ("beta", None, "not a number above 1", "2 gives exploration twice"),
    ("window", 5, "too small for 3 batch sizes", "use at least 6"),
    ("window", 0, "not a whole number of at least 1", "set it to 1 or more"),
    ("window", 9.5, "not a whole number of at least 1", "set it to 1 or more"),
    ("target", "accuracy > 0.84", "cannot be read as metric, direction and value", '"accuracy >= 0.84"'),
    ("target", "accuracy >= much", "'much' is not a finite number", "run.set_target()"),
    ("target", 0.84, "cannot be read as metric, direction and value", '"rmse <= 1.5"'),
    ("max_epochs", None, "is missing", "set it to a whole number of at least 1"),
    ("max_epochs", 0, "not a whole number of at least 1", "set it to 1 or more"),
    ("max_epochs", 2.5, "not a whole number of at least 1", "set it to 1 or more"),
    ("policy", "ucb", "not known", "use one of knowledge_gradient, zeus"),
    ("device", "tpu", "no such device", "'auto', 'nvml', 'rapl', 'none' or 'simulated:<gpu>/<load>'"),
    ("gpu_lock", "steal", "not known", "use one of wait, share"),
    ("device", "simulated:v100", "no such device", "'simulated:v100/shufflenet'"),
    ("device", None, "no such device", "'auto'"),
    ("mode", "on", "not known", "use one of optimize, observe, measure, off"),
    ("job_id", "", "not a text", "at least one character"),
    ("job_version", 2, "not a text", "at least one character"),
    ("data_slice", 7, "not a text", "at least one character"),
    ("power_limits_w", [], "not a list with at least one entry", "give a list"),
    ("power_limits_w", [150, -1], "-1 is not a positive number of watts", "as in [150, 200, 250]"),
    ("gpus", 0, "not a whole number of at least 1", "give the GPUs of one host, or leave it out"),
    ("gpus", 1.5, "not a whole number of at least 1", "give the GPUs of one host, or leave it out"),
    ("max_power_w", 0, "not a positive number of watts", "highest power limit in watts, or leave it out"),
    ("power_objective", "speed", "not known", "use one of cost, energy, time, or 'max_slowdown=1.05'"),
    ("power_objective", "max_slowdown=0.9", "not a factor of at least 1", "or 'max_slowdown=1.05' with a factor"),
    ("power_objective", "max_slowdown=much", "not a factor of at least 1", "use one of cost, energy, time"),
    ("power_objective", 1.05, "not known", "or 'max_slowdown=1.05'"),
    ("profile_s", 0, "not a positive number of seconds", "5 is usually enough"),
    ("profile_steps", 0, "not a whole number of at least 1", "set it to 1 or more"),
    ("learn_from", ["weekly"], "not known", "scheduled, asset_triggered, manual, backfill, test"),
    ("learn_from", [], "not a list with at least one entry", "give a list"),
    ("require_target", "yes", "neither True nor False", "set it to True or False"),
    ("strict", 1, "neither True nor False", "set it to True or False"),
    ("seed", -1, "not a whole number of at least 0", "set it to 0 or more"),
]


@pytest.mark.parametrize(("field", "value", "problem", "remedy"), BAD, ids=[f"{b[0]}={b[1]!r}" for b in BAD])
def test_bad_input_is_named_by_field_value_and_remedy(field: str, value: Any, problem: str, remedy: str) -> None:
    said = refused(**{field: value})
    shown, _, rest = said.partition(": ")
    assert shown == (
        f"ZeusJob.{field} = {value!r}" if field != "learn_from" or not value else f"ZeusJob.{field} = 'weekly'"
    )
    assert problem in rest
    assert remedy in rest
    assert said.endswith(".")


def test_leaving_max_epochs_out_is_named_like_any_other_mistake() -> None:
    with pytest.raises(JobSpecError, match=r"ZeusJob\.max_epochs = None: is missing\. set it to a whole number"):
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
        {"beta": 1.01},
        {"window": 6},
        {"batch_sizes": (32,), "window": 2},
        {"target": "rmse <= runtime"},
        {"device": "none", "mode": "off"},
        {"device": "simulated:v100/shufflenet", "power_limits_w": [100, 150.5]},
        {"power_objective": "energy"},
        {"power_objective": "max_slowdown=1.05"},
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


@pytest.mark.parametrize("field", sorted(ZeusJob(**GOOD).to_dict()))
@pytest.mark.parametrize("later", ["{{ params.value }}", "{% if x %}1{% endif %}", XComLike()], ids=repr)
def test_every_field_may_be_known_later_but_not_for_ever(field: str, later: Any) -> None:
    job = ZeusJob(**{**GOOD, field: later})
    assert is_deferred(job.to_dict()[field])
    with pytest.raises(JobSpecError) as caught:
        job.check(rendered=True)
    said = str(caught.value)
    assert said.startswith(f"ZeusJob.{field} = {later!r}: a template that was not rendered.")
    assert "templated field of the operator" in said


def test_a_literal_next_to_a_template_is_checked_all_the_same() -> None:
    assert "ZeusJob.eta = 3" in refused(batch_sizes="{{ params.sizes }}", eta=3)
    assert "ZeusJob.default_batch_size = 'big'" in refused(batch_sizes="{{ params.sizes }}", default_batch_size="big")


RENDERED = {
    "batch_sizes": "[16, 32, 64]",
    "default_batch_size": "32",
    "target": "accuracy >= 0.84",
    "max_epochs": "30",
    "eta": "0.25",
    "beta": "3",
    "window": "40",
    "gpus": "2",
    "max_power_w": "250",
    "power_limits_w": "100, 150.5",
    "profile_s": "2.5",
    "profile_steps": "4",
    "learn_from": "['scheduled', 'test']",
    "require_target": "True",
    "strict": "false",
    "seed": "7",
}


def test_rendered_text_becomes_what_the_field_holds() -> None:
    job = ZeusJob.from_dict(RENDERED).check(rendered=True)
    assert job == ZeusJob(
        **{
            **GOOD,
            "eta": 0.25,
            "beta": 3.0,
            "window": 40,
            "gpus": 2,
            "max_power_w": 250.0,
            "power_limits_w": (100.0, 150.5),
            "profile_s": 2.5,
            "profile_steps": 4,
            "learn_from": ("scheduled", "test"),
            "require_target": True,
            "seed": 7,
        }
    )


@pytest.mark.parametrize("text", ["16,32,64", "(16, 32, 64)", " [16,32, 64] "])
def test_rendered_lists_are_read_in_every_usual_form(text: str) -> None:
    assert ZeusJob.from_dict({**GOOD, "batch_sizes": text}).batch_sizes == (16, 32, 64)


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
    with pytest.raises(JobSpecError) as caught:
        ZeusJob.from_dict({**GOOD, "eta_knob": 0.5})
    said = str(caught.value)
    assert said.startswith("ZeusJob.eta_knob = 0.5: no such field of a job. use one of batch_sizes, beta,")


@pytest.mark.parametrize("field", ["batch_sizes", "default_batch_size", "target", "max_epochs"])
def test_a_missing_field_is_named(field: str) -> None:
    spec = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(JobSpecError, match=rf"^ZeusJob\.{field} = None: is missing"):
        ZeusJob.from_dict(spec)


def test_live_settings_change_eta_and_are_checked() -> None:
    job = ZeusJob(**GOOD)
    assert job.with_settings({"eta": 0.9, "pause_exploration": True}).eta == 0.9
    assert job.with_settings({"pin_batch_size": 16}) == job
    anew = job.with_settings({"job_version": "2"})
    assert anew.job_version == "1+2"
    assert anew.with_settings({"job_version": "2"}) == anew
    with pytest.raises(JobSpecError, match=r"ZeusJob\.eta = 9"):
        job.with_settings({"eta": 9})


@pytest.mark.parametrize("peek", [True, False])
def test_peek_is_accepted_with_a_warning_and_has_no_effect(peek: bool) -> None:
    with pytest.warns(DeprecationWarning, match=r"ZeusJob\(peek=\.\.\.\) has no effect any more: remove it\."):
        job = ZeusJob(**GOOD, peek=peek)
    assert job == ZeusJob(**GOOD)
    assert "peek" not in job.to_dict()


@pytest.mark.parametrize("peek", [True, "False", "{{ params.peek }}", None])
def test_the_spec_of_an_old_row_with_peek_is_read_without_a_warning(peek: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = ZeusJob.from_dict({**ZeusJob(**GOOD).to_dict(), "peek": peek})
        assert replace(job, eta=0.75).eta == 0.75
    assert job == ZeusJob(**GOOD)


def test_importing_a_job_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; import airflow_provider_zeus.optimizer.job, airflow_provider_zeus.optimizer.policy;"
        "print([m for m in ('numpy', 'torch', 'airflow', 'sqlalchemy', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
