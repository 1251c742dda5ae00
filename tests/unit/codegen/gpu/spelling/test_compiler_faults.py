"""Text that NVRTC and ptxas would compile wrong is spelled in another way."""

from __future__ import annotations

import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_programs import through_stages
from tests.support.staged_programs import blur
from weft.codegen.gpu import sass
from weft.driver.code.gpu_kernels import compile_sources
from weft.ptir import Builder


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("fn", ["maximum", "minimum"])
@pytest.mark.parametrize("dtype", one_in(3, ["si32", "ui32", "si8"]))
def test_negated_integers_are_compared_two_at_a_time(dtype: str, fn: str) -> None:
    """An instruction with three operands has no sign for them, and ptxas leaves it out."""
    b = Builder()
    values = [b.param(dtype, [4096]) for _ in range(6)]
    sums = [-(x + y) for x, y in zip(values[::2], values[1::2], strict=True)]
    program = b.build(b.emit(fn, b.emit(fn, sums[0], sums[1]), sums[2]))
    (cubin,) = compile_sources(through_stages(program, "sm90")["cu"], "sm_90a").cubins.values()
    assert not [i for i in sass.disassemble(cubin.code) if i.name.startswith("VIMNMX3")]


def test_counters_of_interleaved_turns_are_hidden_where_they_are_compared() -> None:
    """NVRTC counts from another number, and does not change all of the comparisons."""
    made = weft.jit(blur).program(weft.zeros((64, 256)))
    text = through_stages(made, "sm90").text("cu")
    loop = text[text.index("for (int step = 0") :]
    assert "int step_unknown = as_unknown(step);" in loop
    assert "step_unknown >= " in loop
    assert "(step >= " not in loop
