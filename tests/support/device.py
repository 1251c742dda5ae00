"""Kernels on the GPU of this machine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.support.gpu_contractions import Array
from weft.foundation.errors import UserError
from weft.runtime.artifact import KernelCode
from weft.runtime.cuda.driver import Device, Memory, open_device
from weft.runtime.cuda.kernels import load_kernel

GUARD = 4096


@cache
def device() -> Device:
    try:
        found = open_device()
    except UserError as error:
        pytest.skip(str(error))
    if found.compute_capability != (9, 0):
        pytest.skip(f"{found.name} is not an SM90 GPU")
    return found


def run(
    code: KernelCode, names: tuple[str, ...], tensors: dict[str, Array], launches: int = 1
) -> Array:
    """Run a kernel so often; the result with `GUARD` elements of NaN, or of ones' bits, on both
    sides."""
    gpu = device()
    kernel = load_kernel(gpu, code)
    result = np.empty(tensors["y"].size + 2 * GUARD, tensors["y"].dtype)
    result.view(np.uint8)[...] = 0xFF
    inputs = {name: gpu.upload(tensors[name]) for name in names if name != "y"}
    target = gpu.upload(result)
    edge = GUARD * result.itemsize
    blocks: dict[str, Memory] = inputs | {"y": Memory(gpu, target.address + edge, 0)}
    stream = gpu.stream()
    for _ in range(launches):
        kernel.launch([blocks[name].address for name in names], stream.handle)
    stream.synchronize()
    target.read(result)
    for memory in (*inputs.values(), target):
        memory.free()
    stream.close()
    kernel.unload()
    return result
