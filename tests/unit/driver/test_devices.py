"""`weft devices`: what is listed, and the sentence where no GPU is seen."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command_line import weft_command
from weft.cli import commands
from weft.cli import devices as listing
from weft.driver.devices import devices
from weft.foundation.errors import BackendUnavailable
from weft.runtime.cuda import devices as gpu_devices
from weft.target.cpu import model_name


class Driver:
    """Answers like the CUDA driver of a machine with some H200s, or with whatever is given."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="units",
    )

    def __init__(self, count: int = 1, sm: tuple[int, int] = (9, 0), failing: str = "") -> None:
        self.count, self.failing = count, failing
        self.values: Mapping[str, int] = {"major": sm[0], "minor": sm[1], "units": 132}

    def __getattr__(self, name: str) -> Any:
        answers = {
            "cuInit": lambda flags: (0,),
            "cuDriverGetVersion": lambda: (0, 13010),
            "cuDeviceGetCount": lambda: (0, self.count),
            "cuDeviceGet": lambda number: (0, number),
            "cuDeviceGetAttribute": lambda attribute, handle: (0, self.values[attribute]),
            "cuDeviceGetName": lambda size, handle: (0, b"NVIDIA H200\0\0"),
            "cuDeviceTotalMem": lambda handle: (0, 141 << 30),
            "cuGetErrorString": lambda status: (0, b"no CUDA-capable device is detected"),
        }
        if name not in answers:
            raise AttributeError(name)
        return (lambda *args: (100, None)) if name == self.failing else answers[name]


def test_gpus_are_listed_with_what_the_driver_says() -> None:
    found = devices(Driver(count=2))
    assert [(gpu.name, gpu.sm, gpu.multiprocessors) for gpu in found.gpus] == [
        ("NVIDIA H200", "SM90", 132)
    ] * 2
    assert found.gpus[0].memory_bytes == 141 << 30
    assert (found.driver, found.no_gpu) == ("13.1", "")


@pytest.mark.parametrize(
    ("driver", "environment", "why"),
    [
        (
            Driver(failing="cuInit"),
            {},
            "no GPU: the CUDA driver of this machine does not start: no CUDA-capable device is "
            "detected",
        ),
        (Driver(count=0), {}, "no GPU: the CUDA driver is installed, but finds no GPU"),
        (
            Driver(count=0),
            {"CUDA_VISIBLE_DEVICES": "7"},
            "no GPU: the CUDA driver is installed, but finds no GPU; CUDA_VISIBLE_DEVICES='7' "
            "may hide some",
        ),
    ],
)
def test_why_no_gpu_is_seen(driver: Driver, environment: Mapping[str, str], why: str) -> None:
    found = devices(driver, environment)
    assert (found.gpus, found.no_gpu) == ((), why)


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise BackendUnavailable("the packages of weft[cuda] are not installed")

    monkeypatch.setattr(gpu_devices, "bindings", missing)
    assert devices(environment={}).no_gpu == (
        "no GPU: the packages of weft[cuda] are not installed"
    )


def test_a_gpu_that_is_too_old() -> None:
    found = devices(Driver(sm=(7, 5)))
    assert found.no_gpu == "the cuda backend needs SM80 or newer; the first GPU is SM75"
    assert len(found.gpus) == 1


def test_the_processor_is_described() -> None:
    cpu = devices(Driver()).cpu
    assert cpu.name
    assert cpu.threads >= 1
    assert cpu.target.limits.vector_bits >= 128
    assert model_name("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n") == "Some CPU @ 3 GHz"
    assert model_name("processor : 0\n") == ""


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(listing, "devices", lambda: devices(Driver()))
    listing.devices_command()
    text = capsys.readouterr().out
    for part in ("cpu", "cores", "vectors of", "NVIDIA H200", "132 SMs", "141 GiB", "SM90"):
        assert part in text
    monkeypatch.setattr(listing, "devices", lambda: devices(Driver(count=0), {}))
    listing.devices_command()
    assert capsys.readouterr().out.endswith("is installed, but finds no GPU\n")


@pytest.mark.parametrize(
    "words",
    ["bench --gpu", "tune x.ptir.txt --gpu", "conformance --backend cuda", "run x --backend=cuda"],
)
def test_commands_for_a_gpu_say_at_once_that_there_is_none(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything of the compiler is loaded, and before files are looked at."""

    def absent() -> Any:
        return Driver(count=0)

    monkeypatch.setattr(gpu_devices, "bindings", absent)
    monkeypatch.setattr("weft.runtime.cuda.driver.bindings", absent)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(commands, "load_command", lambda name: pytest.fail(f"{name} was loaded"))
    assert weft_command(*words.split()) == 1
    assert capfd.readouterr().err == (
        "error: no GPU: the CUDA driver is installed, but finds no GPU; the other backends need "
        "none\n"
    )


@pytest.mark.parametrize(
    ("name", "words", "needed"),
    [
        ("tune", "--gpu x.ptir.txt", True),
        ("tune", "--gpu --help", False),
        ("tune", "x.ptir.txt", False),
        ("conformance", "--backend cuda --shard 1/2", True),
        ("conformance", "--backend=cuda --prepare=sm90", False),
        ("conformance", "--backend cpu", False),
        ("verify", "--gpu", False),
    ],
)
def test_what_asks_for_a_gpu(name: str, words: str, needed: bool) -> None:
    assert commands.COMMANDS[name].needs_gpu(words.split()) is needed
