"""One table of what is stored of a trial."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given

from airflow_provider_zeus.model.trial import Lineage, Observation, Origin, Trial, TrialKey
from airflow_provider_zeus.model.trial_fields import CHANGING, FIELDS, flat, nested
from airflow_provider_zeus.model.wire import decode
from tests.strategies import REPRODUCIBLE, jobs_and_logs


def names(part: str) -> list[str]:
    return [field.name for field in FIELDS if field.part == part]


@pytest.mark.parametrize(
    ("part", "cls"),
    [("origin", Origin), ("lineage", Lineage), ("observation", Observation), ("key", TrialKey)],
)
def test_each_field_of_a_part_is_stored(part: str, cls: Any) -> None:
    assert names(part) == [field.name for field in fields(cls)]


def test_each_field_of_a_trial_is_stored_by_itself_or_as_a_part() -> None:
    parts = {field.part for field in FIELDS} - {"", "planned"}
    assert {*names(""), *parts} == {field.name for field in fields(Trial)}


def test_no_two_fields_have_one_name() -> None:
    assert Counter(field.name for field in FIELDS).most_common(1)[0][1] == 1
    assert set(CHANGING) <= {field.name for field in FIELDS}


@given(jobs_and_logs())
@REPRODUCIBLE
def test_a_trial_is_read_as_it_was_written(job_and_log: Any) -> None:
    _, log = job_and_log
    for trial in log:
        assert decode(Trial, nested(flat(trial)), newer=True) == trial
