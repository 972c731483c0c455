"""Which GPU is measured: the one that CUDA gives to the training."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.visible import chosen_by_cuda, find_gpus
from tests.fake_nvml import FakeNvml

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]


@pytest.mark.parametrize(
    ("visible", "shown"),
    [
        (None, [0, 1, 2]),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-bbbb3333-0000", [2]),
        ("GPU-bb", [2]),
        ("GPU-BBBB", [2]),
        ("GPU-aaaa", []),  # not unique
        ("GPU-cccc,0", []),  # the first that names nothing ends the list
        ("1,7,0", [1]),
        ("1,-1,0", [1]),
        ("0,0", [0]),  # one GPU, whose energy counts once
        ("1,GPU-aaaa2222,2,1", [1, 2]),
        ("MIG-1234,MIG-1234", ["MIG-1234"]),
        ("-1", []),
        ("nonsense", []),
        ("MIG-1234", ["MIG-1234"]),
        ("MIG-GPU-aaaa1111-0000/1/0,0", ["MIG-GPU-aaaa1111-0000/1/0", 0]),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(visible: str | None, shown: list[int | str]) -> None:
    assert chosen_by_cuda(UUIDS, visible) == shown


def test_a_gpu_without_a_readable_uuid_still_has_its_number() -> None:
    assert chosen_by_cuda([None, "GPU-b"], "0") == [0]
    assert chosen_by_cuda([None, "GPU-b"], "GPU-b") == [1]


@pytest.fixture
def mixed(nvml: FakeNvml) -> FakeNvml:
    nvml.add("Tesla T4", min_w=60.0, max_w=70.0)
    nvml.add("NVIDIA H200", min_w=200.0, max_w=700.0)
    return nvml


def cuda(uuid: str, initialized: bool = True) -> SimpleNamespace:
    """torch, as far as it is asked; its UUIDs come without the prefix."""
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: initialized,
            current_device=lambda: 0,
            get_device_properties=lambda index: SimpleNamespace(uuid=uuid.removeprefix("GPU-")),
            synchronize=lambda: None,
        )
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def uuid_of(nvml: FakeNvml, index: int) -> str:
    return nvml.gpu(index).uuid.decode()


def test_two_models_by_number_are_not_guessed_silently(
    mixed: FakeNvml, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert find_gpus(1)[0].model == "Tesla T4"
    (warning,) = warnings(caplog)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in warning
    assert uuid_of(mixed, 0) in warning


@pytest.mark.parametrize(
    "environment", [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-00000001"}]
)
def test_nothing_is_to_guess_where_the_order_or_the_gpu_is_named(
    mixed: FakeNvml,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_gpus(1)[0].model == "Tesla T4"
    assert warnings(caplog) == []


def test_a_torch_that_uses_cuda_knows(
    mixed: FakeNvml, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", cuda(uuid_of(mixed, 1)))
    assert find_gpus(1)[0].model == "NVIDIA H200"
    assert warnings(caplog) == []
    monkeypatch.setitem(sys.modules, "torch", cuda(uuid_of(mixed, 1), initialized=False))
    assert find_gpus(1)[0].model == "Tesla T4"
    assert len(warnings(caplog)) == 1


def test_no_torch_is_imported_for_it(mixed: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = NvmlDevice()
    device.synchronize()
    assert "torch" not in sys.modules


def test_of_several_visible_gpus_the_first_is_measured_with_one_line(
    nvml: FakeNvml, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        nvml.add()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    with caplog.at_level(logging.INFO):
        assert NvmlDevice().uuid == uuid_of(nvml, 2)
    (record,) = caplog.records
    assert (record.levelno, uuid_of(nvml, 2) in record.message) == (logging.INFO, True)
    assert "2 GPUs are visible" in record.message


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("", "CUDA_VISIBLE_DEVICES is empty"),
        ("-1", "CUDA_VISIBLE_DEVICES='-1' names no GPU (here: GPU-00000001"),
        ("GPU-ffff", "names no GPU (here: GPU-00000001"),
    ],
)
def test_no_gpu_is_visible(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, said: str
) -> None:
    nvml.add()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(DeviceError) as error:
        NvmlDevice()
    assert said in str(error.value)


def test_a_host_without_gpus(nvml: FakeNvml) -> None:
    with pytest.raises(DeviceError, match="NVML lists no GPU"):
        NvmlDevice()


def test_a_lost_neighbour_does_not_matter(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.add(lost=1)
    nvml.add()
    with pytest.raises(DeviceError, match="the GPU is lost"):
        NvmlDevice()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-00000002")
    assert NvmlDevice().uuid == uuid_of(nvml, 1)


def test_a_training_on_another_gpu_than_the_measured_is_charged_nothing(
    nvml: FakeNvml, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.add()
    nvml.add()
    device = NvmlDevice()
    device.synchronize()
    assert device.energy_j() is not None
    monkeypatch.setitem(sys.modules, "torch", cuda(uuid_of(nvml, 1)))
    device.synchronize()
    device.synchronize()
    assert device.energy_j() is None
    assert f"CUDA_VISIBLE_DEVICES={uuid_of(nvml, 1)}" in device.missing["energy_j"]
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
