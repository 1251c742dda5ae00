"""Attention whose queries, keys or values are computed from what is stored, as those with 8 bits
are, or lie in another order, or whose bias is picked from a table: maps store all this as one
kernel reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.written_attention import STORED, stored
from weft import functional as F
from weft.testing.compare import compare

SHAPE: Final = (1, 2, 96, 64)


def narrow(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q.astype("bf16"), k.astype("bf16"), v.astype("bf16"), causal=True)


def scaled(q: Any, k: Any, v: Any) -> Any:
    return F.attention(q, k.astype("bf16") * 0.5, v.astype("bf16") * 0.25)


CASES: Final[dict[str, tuple[Callable[..., Any], str, str, int]]] = {
    "keys and values": (narrow, "bf16", "fp8_e4m3", 2),
    "all of them": (narrow, "fp8_e5m2", "fp8_e5m2", 3),
    "scaled": (scaled, "bf16", "fp8_e4m3", 2),
    "f16 beside them": (
        lambda q, k, v: F.attention(q, k.astype("f16"), v.astype("f16")), "f16", "fp8_e4m3", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(2, CASES))
def test_maps_store_what_the_kernel_reads(name: str) -> None:
    function, wide, stored, maps = CASES[name]
    q, k = weft.zeros(SHAPE, dtype=wide), weft.zeros(SHAPE, dtype=stored)
    program = weft.jit(function).program(q, k, k)
    code = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    found = [launch.rstrip("0123456789")[:3] for launch in code.launches]
    assert found.count("att") == 1
    assert found.count("map") <= maps
    assert set(found) <= {"att", "map"}
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", STORED)
def test_what_lies_otherwise_is_stored_for_the_kernel(name: str, target: str) -> None:
    program, maps = stored(name), STORED[name][2]
    made = InterpretedGpu(target).compile(program).compilation
    found = [kernel.pattern.value for kernel in made["region"].kernels]
    assert sorted(found) == ["attention", *["map"] * maps]
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)
