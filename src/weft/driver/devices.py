"""What this machine can run programs on: its processor, and its GPUs or why none is seen."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.foundation.errors import BackendUnavailable
from weft.runtime.cuda.devices import GpuFacts, Gpus, find_gpus
from weft.runtime.cuda.driver import compute_capability
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.jit import host_cpu
from weft.runtime.threads import thread_count
from weft.target.cpu import model_name
from weft.target.known import target_named
from weft.target.target import Target

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_OLDEST = (8, 0)
"""The oldest GPU that there is a target for."""


@dataclass(frozen=True)
class Cpu:
    """The processor: what code is generated for."""

    name: str
    target: Target
    threads: int


@dataclass(frozen=True)
class Devices:
    """The devices of a machine; `no_gpu` is a sentence where there is no GPU."""

    cpu: Cpu
    gpus: tuple[GpuFacts, ...]
    driver: str
    no_gpu: str


def devices(driver: Any = None, environment: Mapping[str, str] = os.environ) -> Devices:
    """The devices of this machine; `driver` stands in for the CUDA driver in tests."""
    name = model_name() or host_cpu()[1]
    cpu = Cpu(f"{name} ({platform.machine()})", target_named("cpu"), thread_count())
    try:
        found = find_gpus(driver)
    except BackendUnavailable as error:
        return Devices(cpu, (), "", _why(str(error), environment))
    return Devices(cpu, found.devices, found.driver, _unusable(found))


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of the GPU's memory, as this process sees it."""

    in_use: Mapping[str, int]
    """What is taken, by purpose: tensors, results, intermediate results of programs, constants."""
    peak: int
    """The most that was in use at one time."""
    kept: int
    """What nobody needs, and is kept for whoever asks next."""
    free: int
    """What no process has taken."""
    whole: int


def gpu_memory(*, reset_peak: bool = False) -> GpuMemory:
    """How the memory of the first GPU is used; with `reset_peak` the peak begins anew after it."""
    need_gpu()
    pool = open_gpu().pool
    free, whole = pool.free_and_whole()
    found = GpuMemory(
        {k: n for k, n in pool.held.items() if n}, pool.peak, pool.idle_bytes, free, whole
    )
    if reset_peak:
        pool.peak = pool.held.total()
    return found


def need_gpu() -> None:
    """Raises `BackendUnavailable` with the reason where the cuda backend has no GPU. That is known
    before anything of the compiler is loaded."""
    if compute_capability() is None:
        raise BackendUnavailable(f"{devices().no_gpu}; the other backends need none")


def _why(reason: str, environment: Mapping[str, str]) -> str:
    hidden = environment.get(_VISIBLE)
    more = f"; {_VISIBLE}={hidden!r} may hide some" if hidden is not None else ""
    return f"no GPU: {reason}{more}"


def _unusable(found: Gpus) -> str:
    """A sentence where the cuda backend, which takes the first GPU, cannot take it."""
    first = found.devices[0]
    if first.compute_capability >= _OLDEST:
        return ""
    return f"the cuda backend needs SM80 or newer; the first GPU is {first.sm}"
