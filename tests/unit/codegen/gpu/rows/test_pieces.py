"""Sums of pieces of rows, as gradients of group norms have them for their weights: made where rows
are read, the same as the reference's, with faults that were planted found."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu_backward import rows_backward_lines
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_faults import planted
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.gpu_machine_code import check
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.ir import values
from weft.driver.reference import ReferenceBackend
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import WeftError
from weft.plan import text
from weft.ptir import Builder, Program
from weft.region.row_reads import piece_sums


def centred(shape: tuple[int, ...], dtype: str) -> Program:
    """Products minus their mean over all but the first two axes, and their sums, and those of one
    factor, over all but the second and the third."""
    b = Builder("centred")
    given = [b.param(dtype, list(shape)) for _ in range(2)]
    x, g = (b.cast(value, "f32") if dtype != "f32" else value for value in given)
    inner = list(range(2, len(shape)))
    product = x * g
    mean = b.reduce_sum(product, inner, keepdims=True) * (1 / float(np.prod(shape[2:])))
    y = product - b.broadcast_to(mean, list(shape))
    y = b.cast(y, dtype) if dtype != "f32" else y
    return b.build(y, *(b.reduce_sum(value, [0, *inner[1:]]) for value in (product, g)))


WHOLE = {
    "narrow": ((2, 2, 2, 64, 64), "bf16"),
    "wide": ((2, 2, 4, 32, 64), "f32"),
    "one axis": ((2, 2, 2, 4096), "f32"),
    "a piece of each place": ((2, 2, 4, 16, 8, 16), "f32"),
}
APART = {
    "rows of odd size": ((2, 2, 2, 63, 64), "f32"),
    "narrow places": ((2, 2, 4, 512, 4), "f32"),
}


def compiled(name: str, **changes: object) -> Compilation:
    program = centred(*(WHOLE | APART)[name])
    if not changes:
        return through_stages(program, "sm90")
    plans = json.loads(text.dumps(through_stages(program, "sm90")["plan"]))
    plans["plans"][0].update(changes)
    return through_stages(program, "sm90", plan=json.dumps(plans))


def apart(name: str, compilation: Compilation) -> float:
    """The largest difference from the reference, in the results' largest number."""
    program = centred(*(WHOLE | APART)[name])
    inputs = inputs_for(program, 3)
    got = InterpretedExecutable(compilation).execute(inputs)
    want = ReferenceBackend().compile(program).execute(inputs)
    found = 0.0
    for mine, theirs in zip(got, want, strict=True):
        first, second = (np.asarray(array).astype(np.float64) for array in (mine, theirs))
        found = max(found, float(np.abs(first - second).max() / np.abs(second).max()))
    return found


@pytest.mark.parametrize("name", WHOLE)
def test_rows_are_read_once(name: str) -> None:
    compilation = compiled(name)
    first, second = compilation["region"].kernels
    assert len(piece_sums(first)) == 2
    assert {*first.inputs}.isdisjoint(second.inputs)
    assert apart(name, compilation) < 1e-2


def test_rows_in_turns() -> None:
    assert apart("wide", compiled("wide", threads=64, keep_row=False)) < 1e-5


@pytest.mark.parametrize("name", APART)
def test_others_stay_apart(name: str) -> None:
    compilation = compiled(name)
    assert not any(piece_sums(kernel) for kernel in compilation["region"].kernels)
    assert apart(name, compilation) < 1e-5


REFUSED: dict[str, dict[str, object]] = {
    "8 threads with vectors of 4 share pieces": {
        "threads": 8,
        "rows_per_block": 4,
        "keep_row": False,
    },
    "512 threads with vectors of 2 share pieces": {"vector": 2},
    "pieces of rows are added up one row at a time": {"rows_per_thread": 2},
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    with pytest.raises(WeftError, match=why):
        compiled("wide", **REFUSED[why])


def test_a_lane_that_is_left_out_is_found() -> None:
    compilation = compiled("wide")
    kernel = next(iter(compilation["gpu"].kernels.values()))
    assert isinstance(kernel, ir.Kernel)

    def farther(statement: ir.Stmt) -> ir.Stmt:
        """Lanes that meet the same one twice."""
        if isinstance(statement, values.Shuffle) and statement.mask == 16:
            return replace(statement, mask=8)
        return statement

    results = []
    inputs = [np.asarray(x).reshape(-1) for x in inputs_for(centred(*WHOLE["wide"]), 1)]
    for made in (kernel, planted(kernel, farther)):
        sizes = [np.prod(t.shape) for t in map(compilation["region"].tensors.get, made.buffers)]
        given = [*inputs, *(np.zeros(int(n), np.float32) for n in sizes[len(inputs) :])]
        run(made, dict(zip(made.buffers, given, strict=True)))
        results.append(given)
    assert not all(np.allclose(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("target", one_in(2, ["sm80", "sm90"]))
@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
def test_the_gradient_of_a_group_norm_does_not_spill(target: str) -> None:
    (line,) = (line for line in rows_backward_lines() if "group norm backward" in line.name)
    compilation = through_stages(line.program(), target)
    assert check(compilation, {"sm80": "sm_80", "sm90": "sm_90a"}[target]) == []
