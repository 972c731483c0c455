"""What the helper says of the driver's library."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.power.limits.driver import FUNCTION_NOT_FOUND, Nvml, NvmlError
from tests.fake_nvml import FakeNvml


def test_a_call_that_the_driver_does_not_have_is_an_error_of_the_driver(nvml: FakeNvml) -> None:
    driver = Nvml()
    with pytest.raises(NvmlError) as refused:
        driver.call("nvmlDeviceOfALaterDriver")
    assert refused.value.code == FUNCTION_NOT_FOUND
