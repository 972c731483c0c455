"""What an error says, with and without the value."""

from __future__ import annotations

from airflow_provider_zeus.errors import JobSpecError


def test_neither_text_of_an_error_holds_a_control_character() -> None:
    error = JobSpecError.of("extra \x1b[2J", "s3cret", "no \x1b[31m signal", "correct it")
    assert "s3cret" in str(error)
    assert error.without_value == r"extra \x1b[2J: no \x1b[31m signal. correct it."
    assert "\x1b" not in str(error)
