"""Tensors of a GPU shared with other libraries, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.cuda import CudaBackend
from weft.driver.execute import prepare
from weft.ptir import Builder
from weft.runtime.cuda.driver import compute_capability
from weft.runtime.cuda.gpu import open_gpu
from weft.runtime.cuda.tensors import DeviceTensor, imported

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
BACKEND = CudaBackend()


def doubled(dtype: str, *shape: int) -> Any:
    b = Builder()
    x = b.param(dtype, list(shape))
    return prepare(b.build(x + x), BACKEND)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
def test_torch_and_weft_see_the_same_memory(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    names = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int64": "si64"}
    given = torch.arange(24, device="cuda").reshape(4, 6).to(getattr(torch, dtype))
    taken = imported(open_gpu(), given)
    assert (taken.address, taken.dtype) == (given.data_ptr(), names[dtype])
    (result,) = doubled(names[dtype], 4, 6).execute([taken])
    back = torch.from_dlpack(result)
    assert back.data_ptr() == result.address
    assert torch.equal(back, given + given)


def test_memory_lives_as_long_as_anybody_uses_it() -> None:
    torch = pytest.importorskip("torch")
    (result,) = doubled("f32", 1 << 16).execute([BACKEND.store(np.ones(1 << 16, np.float32))])
    back = torch.from_dlpack(result)
    del result
    for _ in range(8):
        doubled("f32", 1 << 16).execute([BACKEND.store(np.zeros(1 << 16, np.float32))])
    assert float(back.sum()) == 2 * (1 << 16)


def test_cupy_and_weft_see_the_same_memory() -> None:
    cupy = pytest.importorskip("cupy")
    given = cupy.arange(24, dtype=cupy.float32).reshape(4, 6)
    taken = imported(open_gpu(), given)
    assert isinstance(taken, DeviceTensor)
    assert taken.address == given.data.ptr
    (result,) = doubled("f32", 4, 6).execute([taken])
    back = cupy.asarray(result)
    assert back.data.ptr == result.address
    assert (back == given + given).all()


def test_tensors_of_a_graph_are_shared_with_torch() -> None:
    torch = pytest.importorskip("torch")
    given = torch.arange(6, device="cuda", dtype=torch.float32)
    taken = weft.from_dlpack(given)
    assert taken.backend == "cuda"
    back = torch.from_dlpack(taken * 2.0)
    assert back.is_cuda
    assert back.tolist() == [0, 2, 4, 6, 8, 10]
    again = torch.from_dlpack(taken)
    assert again.data_ptr() == given.data_ptr()
