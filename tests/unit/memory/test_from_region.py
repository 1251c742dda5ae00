"""Buffers: who lives when, who shares with whom, and what has to be copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from examples.make_programs import PROGRAMS
from tests.support import kernels
from tests.support.lowered import lowered
from weft.foundation.dtypes import BF16, F32
from weft.foundation.index_expr import axis
from weft.memory.from_region import assign_buffers, report
from weft.memory.ir import BufferMap, Space
from weft.memory.verify import verify
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, KernelAxis, Module, Output, Pattern, Tensor
from weft.tiny.from_ptir import lower_program


def assigned(module: Module, donated: tuple[str, ...] = ()) -> BufferMap:
    buffers = assign_buffers(module, donated)
    verify(buffers)
    return buffers


def chain(length: int, size: int = 64, *, dtypes: tuple[object, ...] = ()) -> Module:
    """`t1 = -x, t2 = -t1, ...`: each kernel reads what the one before wrote."""
    tensors = [Tensor("t0", F32, (size,), "input")]
    found = []
    for number in range(1, length + 1):
        axes = (KernelAxis("i", size),)
        body = kernels.body_over(axes)
        before = tensors[-1]
        value = body.unary("neg", body.plain(before.name, before.dtype, "i"))
        dtype = before.dtype
        if dtypes:
            dtype = dtypes[number - 1]  # type: ignore[assignment]
            value = body.cast(value, dtype)
        role = "output" if number == length else "internal"
        tensors.append(Tensor(f"t{number}", dtype, (size,), role))
        outputs = (Output(f"t{number}", value, (axis("i"),)),)
        found.append(Kernel(f"k{number}", Pattern.MAP, axes, tuple(body.lets), outputs))
    return kernels.module_of(*found, tensors=tensors)


def test_spaces_and_numbers() -> None:
    buffers = assigned(kernels.mlp())
    places = {name: (ref.buffer.space, ref.buffer.number) for name, ref in buffers.refs.items()}
    assert places == {
        "x": (Space.INPUT, 0),
        "w1": (Space.INPUT, 1),
        "b1": (Space.INPUT, 2),
        "h": (Space.ARENA, 0),
        "w2": (Space.INPUT, 3),
        "b2": (Space.INPUT, 4),
        "y": (Space.OUTPUT, 0),
    }
    assert buffers.lives["h"] == (0, 1)
    assert buffers.arena_bytes == 8 * 24 * 4


def test_memrefs_are_row_major_and_aligned() -> None:
    ref = assigned(kernels.mlp()).refs["w1"]
    assert (ref.shape, ref.strides, ref.alignment, ref.element_bytes) == ((16, 24), (24, 1), 128, 4)


def test_an_elementwise_chain_needs_no_arena() -> None:
    """Each kernel writes into its dying operand, and the last of them is the output."""
    buffers = assigned(chain(5))
    assert buffers.arena_bytes == 0
    assert {buffers.refs[f"t{n}"].buffer.space for n in range(1, 6)} == {Space.OUTPUT}
    assert [(s.first, s.second) for s in buffers.shares] == [
        ("t1", "t2"), ("t2", "t3"), ("t3", "t4"), ("t4", "t5"),
    ]  # fmt: skip
    assert not buffers.refs["t3"].noalias
    assert buffers.refs["t0"].noalias


def test_a_narrower_result_does_not_take_over() -> None:
    buffers = assigned(chain(3, dtypes=(F32, BF16, BF16)))
    assert ("t1", "t2") not in [(s.first, s.second) for s in buffers.shares]
    assert ("t2", "t3") in [(s.first, s.second) for s in buffers.shares]


def test_a_donated_input_is_overwritten() -> None:
    buffers = assigned(chain(1), ("t0",))
    assert buffers.refs["t1"].buffer.space is Space.INPUT
    assert assigned(chain(1)).refs["t1"].buffer.space is Space.OUTPUT


def test_contractions_do_not_write_into_their_operands() -> None:
    module = kernels.linear(16, 16, 16, activation="none")
    assert not assigned(module, ("x", "w")).shares


def test_an_operand_read_elsewhere_is_not_taken_over() -> None:
    """A row kernel may write into the row it reads; a shifted read may not."""
    assert [s.second for s in assigned(kernels.softmax(), ("x",)).shares] == ["y"]
    assert not assigned(kernels.shifted_window(), ("x",)).shares


def test_each_of_two_results_takes_over_what_it_is_computed_from() -> None:
    """One loop writes both: an operand is read before the result that needs it is written."""
    module = kernels.elementwise()
    first, *_ = [(share.first, share.second) for share in assigned(module, ("a",)).shares]
    (kernel,) = module.kernels
    assert first[0] == "a"
    assert first[1] in {output.tensor for output in kernel.outputs}


# -- updates -------------------------------------------------------------------------------------


def moments(order: tuple[str, ...]) -> Module:
    """One kernel of an optimiser: `v1 = v * g`, `m1 = m + g`, `w1 = w * m1 * v1`, with `g` made by
    the kernel before. Inputs and results of the program are in some order."""
    axes = (KernelAxis("i", 64),)
    body = kernels.body_over(axes)
    slope = body.unary("neg", body.plain("x", F32, "i"))
    outputs = (Output("g", slope, (axis("i"),)),)
    first = Kernel("slope", Pattern.MAP, axes, tuple(body.lets), outputs)
    body = kernels.body_over(axes)
    w, m, v, g = (body.plain(name, F32, "i") for name in "wmvg")
    v1, m1 = body.binary("mul", v, g), body.binary("add", m, g)
    w1 = body.binary("mul", body.binary("mul", w, m1), v1)
    made = {"w1": w1, "m1": m1, "v1": v1}
    stored = tuple(Output(name, value, (axis("i"),)) for name, value in made.items())
    second = Kernel("step", Pattern.MAP, axes, tuple(body.lets), stored)
    tensors = [Tensor("x", F32, (64,), "input"), Tensor("g", F32, (64,), "internal")]
    tensors += [Tensor(name, F32, (64,), "input") for name in order]
    tensors += [Tensor(f"{name}1", F32, (64,), "output") for name in order]
    return kernels.module_of(first, second, tensors=tensors)


@pytest.mark.parametrize("order", [("w", "m", "v"), ("v", "m", "w"), ("m", "w", "v")])
def test_results_lie_where_the_donated_inputs_are_that_they_follow(order: tuple[str, ...]) -> None:
    """A loop that hands them on meets the same addresses in every turn. The slopes, which die in
    the same kernel, are not what the results are written into."""
    buffers = assigned(moments(order), donated=order)
    for name in order:
        assert buffers.refs[f"{name}1"].buffer == buffers.refs[name].buffer
    assert buffers.refs["g"].buffer.space is Space.ARENA


def test_a_weight_that_is_still_read_does_not_turn_a_moment_out_of_its_place() -> None:
    module = moments(("w", "m", "v"))
    axes = (KernelAxis("i", 64),)
    body = kernels.body_over(axes)
    later = body.unary("neg", body.plain("w", F32, "i"))
    outputs = (Output("y", later, (axis("i"),)),)
    last = Kernel("later", Pattern.MAP, axes, tuple(body.lets), outputs)
    tensors = [*module.tensors.values(), Tensor("y", F32, (64,), "output")]
    longer = kernels.module_of(*module.kernels, last, tensors=tensors)
    refs = assigned(longer, donated=("w", "m", "v")).refs
    assert refs["m1"].buffer == refs["m"].buffer
    assert refs["v1"].buffer == refs["v"].buffer
    assert refs["w1"].buffer.space is Space.OUTPUT


def test_a_result_moves_where_another_has_no_other_place() -> None:
    """What is handed out first could lie in either input, the other one in the first alone."""
    module = moments(("m", "v", "w"))
    results = tuple(sorted(module.outputs, key=["w1", "v1", "m1"].index))
    buffers = assigned(replace(module, outputs=results), donated=("m", "v", "w"))
    for name in "wmv":
        assert buffers.refs[f"{name}1"].buffer == buffers.refs[name].buffer


def test_state_is_updated_in_place() -> None:
    module = kernels.cache_update()
    buffers = assigned(module)
    assert buffers.copies == ()
    assert buffers.refs["new_cache"].buffer == buffers.refs["cache"].buffer
    assert buffers.refs["cache"].buffer.space is Space.STATE
    assert report(module, buffers)[0] == (
        "cache_update: new_cache updates cache in place, 0 bytes copied"
    )


def with_cache(role: str) -> Module:
    module = kernels.cache_update()
    tensors = module.tensors | {"cache": replace(module.tensors["cache"], role=role)}
    return replace(module, tensors=tensors)


def test_an_input_is_copied_unless_it_is_donated() -> None:
    module = with_cache("input")
    buffers = assigned(module)
    (copy,) = buffers.copies
    assert (copy.source, copy.target, copy.bytes) == ("cache", "new_cache", 256)
    assert report(module, buffers)[0] == (
        "cache_update: new_cache updates cache in a copy, 256 bytes copied: "
        "cache is an input that is not donated"
    )
    assert assigned(module, ("cache",)).copies == ()


def test_a_base_that_is_read_again_is_copied() -> None:
    module = kernels.cache_update()
    axes = (KernelAxis("h", 2), KernelAxis("s", 8), KernelAxis("d", 4))
    body = kernels.body_over(axes)
    value = body.plain("cache", F32, "h", "s", "d")
    later = Kernel(
        "later",
        Pattern.MAP,
        axes,
        tuple(body.lets),
        (Output("old", value, kernels.identity("h", "s", "d")),),
    )
    tensors = [*module.tensors.values(), Tensor("old", F32, (2, 8, 4), "output")]
    buffers = assigned(kernels.module_of(*module.kernels, later, tensors=tensors))
    assert buffers.copies[0].why == "cache is read again after cache_update"


def test_a_kernel_that_also_reads_its_base_elsewhere_copies_it() -> None:
    module = kernels.cache_update()
    (kernel,) = module.kernels
    body = kernels.body_over(kernel.axes)
    total = body.binary(
        "add",
        body.plain("rows", F32, "h", "s", "d"),
        body.plain("cache", F32, "h", "s", "d"),
    )
    outputs = (replace(kernel.outputs[0], value=total),)
    changed = replace(kernel, body=tuple(body.lets), outputs=outputs)
    buffers = assigned(replace(module, kernels=(changed,)))
    assert "also reads other elements of cache" in buffers.copies[0].why


def test_the_attention_program_copies_nothing_of_its_state() -> None:
    found = lowered(lower_program(PROGRAMS["attention"]()), roles={"in3": "state", "in4": "state"})
    buffers = assigned(found.module)
    assert buffers.copies == ()
    lines = report(found.module, buffers)
    assert sum("in place, 0 bytes copied" in line for line in lines) == 2
    assert lines[-1].startswith("arena: ")


# -- sharing is safe -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_a_row_kernel_in_place_means_the_same(name: str) -> None:
    """Row by row, with the result written over the operand."""
    module = kernels.ALL[name]()
    given = kernels.arrays_for(module)
    (kernel,) = module.kernels
    expected = run_kernel(kernel, module.tensors, given)["y"]
    shared = given["x"].copy()
    one = replace(kernel, axes=(KernelAxis("i", 1), kernel.axes[1]))
    small = {t.name: t for t in module.tensors.values()}
    small |= {n: replace(small[n], shape=(1, 10)) for n in ("x", "y")}
    for row in range(6):
        played = run_kernel(one, small, given | {"x": shared[row : row + 1]})["y"]
        shared[row] = played[0]
    np.testing.assert_array_equal(shared, expected)
