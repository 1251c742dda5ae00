"""What becomes one kernel: the three programs, the document's examples, and each rule alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.make_programs import PROGRAMS
from tests.support.example_inputs import inputs_for
from tests.support.lowered import Lowered, graph_of, lowered, sizes
from tests.support.tiny_example import EXAMPLE, convolution, inputs, matmul
from weft import run
from weft.foundation.dtypes import BF16, F32, SI32
from weft.foundation.scalar import Fn
from weft.plan.from_region import plan_module
from weft.plan.text import plan_to_json
from weft.region.fusion import greedy
from weft.region.interp import run_module
from weft.region.ir import Fold, Kernel, Materialize, Module, Pattern, Read, Select, walk
from weft.region.structure import structure_key
from weft.region.text import dumps, loads
from weft.region.writing.assemble import draft
from weft.target.cpu import describe
from weft.target.known import target_named
from weft.target.target import Target
from weft.tiny import build, text
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import (
    Binary,
    Check,
    DynamicUpdate,
    Expand,
    Input,
    Opaque,
    Pad,
    ReduceFn,
    Reshape,
    Rule,
    Unary,
    Value,
)
from weft.tiny.specialise import specialise

pytestmark = pytest.mark.usefixtures("small_machine")
Array = NDArray[Any]
WIDE = describe("x86_64", frozenset({"avx2", "fma", "avx512f"}), 16, (48 << 10, 2 << 20))


def patterns(module: Module) -> list[str]:
    return [kernel.pattern.value for kernel in module.kernels]


def agrees(
    found: Lowered, arrays: Mapping[str, Array] | None = None, tolerance: float = 1e-5
) -> None:
    """Playback gives what the Tiny interpreter gives."""
    rng = np.random.default_rng(7)
    given = arrays or {
        i.name: np.asarray(rng.standard_normal(sizes(i)), np.float32).astype(i.dtype.numpy)
        for i in found.graph.inputs
    }
    played = run_module(found.module, given)
    for name, expected in found.expected(given).items():
        wide = [a.astype(np.float64) for a in (played[name], expected)]
        np.testing.assert_allclose(wide[0], wide[1], rtol=10 * tolerance, atol=tolerance)
        assert played[name].dtype == expected.dtype


# -- the three programs --------------------------------------------------------------------------

KERNELS = {
    "mlp": ["matmul", "matmul"],
    "softmax_layernorm": ["row"],
    "attention": ["row", "map", "matmul", "row", "map", "matmul"],
}
STREAMED = {"attention": ["row", "map", "map", "attention"]}
"""Where a template computes an attention without its scores in memory."""


@pytest.mark.parametrize("target", ["cpu", "sm80", "sm90"])
@pytest.mark.parametrize("name", KERNELS)
def test_the_three_programs(name: str, target: str) -> None:
    program = PROGRAMS[name]()
    found = lowered(lower_program(program), target)
    streamed = STREAMED if target == "cpu" else {}
    assert patterns(found.module) == streamed.get(name, KERNELS[name])
    arrays = inputs_for(program)
    given = {i.name: a for i, a in zip(found.graph.inputs, arrays, strict=True)}
    given |= found.graph.constants
    played = run_module(found.module, given)
    expected = run(program, arrays, backend="reference")
    for output, wanted in zip(found.module.outputs, expected, strict=True):
        np.testing.assert_allclose(played[output], wanted, rtol=1e-5, atol=1e-6)


def test_both_results_of_one_row_kernel_are_stored_by_it() -> None:
    module = lowered(lower_program(PROGRAMS["softmax_layernorm"]())).module
    (kernel,) = module.kernels
    assert {output.tensor for output in kernel.outputs} == set(module.outputs)
    assert kernel.inputs == ("in0", "in1", "in2")


def test_kernels_name_the_values_they_compute() -> None:
    module = lowered(lower_program(PROGRAMS["mlp"]())).module
    assert module.origin["matmul0"] == (5, 7, 15)
    assert module.origin["matmul1"] == (16, 18)


def test_the_attention_is_known_to_be_one() -> None:
    module = lowered(lower_program(PROGRAMS["attention"]()), "sm90").module
    assert [(chain.kind, chain.kernels) for chain in module.chains] == [
        ("row_softmax", ("row3",)),
        ("attention", ("matmul2", "row3", "matmul5")),
    ]
    assert loads(dumps(module)) == module


# -- section 7 of the document -------------------------------------------------------------------


def test_section_7_1_is_one_region(golden: Any) -> None:
    graph = specialise(text.loads(EXAMPLE), {"M": 1024, "N": 768, "K": 512})
    module = lowered(graph, "sm80").module
    (kernel,) = module.kernels
    assert kernel.pattern is Pattern.MATMUL
    assert [output.materialize for output in kernel.outputs] == [Materialize.DEFERRED]
    golden("section_7_1_region.json", dumps(module))
    plan = plan_to_json(plan_module(module, target_named("sm80")).of(kernel.name))
    assert plan["tile"] == [128, 64, 64]
    assert plan["stages"] == 2
    assert plan["warp_tile"] == "64x64"
    assert plan["vectorize"] == {"axis": "n.i.i", "width": 8}
    assert plan["local_edges"] == [{"from": "sum_k", "to": "relu", "buffer": "reg"}]
    assert plan["epilogue"] == ["bias", "relu"]
    small = specialise(text.loads(EXAMPLE), {"M": 8, "N": 12, "K": 16})
    # Tiny rounds each product to f16; the kernel widens first, as matrix units do.
    agrees(lowered(small, "sm80"), tolerance=5e-3)


def test_section_7_2_is_one_region_without_patches() -> None:
    given, y = convolution()
    found = lowered(graph_of(tuple(given), y=y), "sm80")
    (kernel,) = found.module.kernels
    assert kernel.pattern is Pattern.CONV
    assert set(found.module.tensors) == {"x0", "x1", "y"}
    agrees(found)


# -- producers -----------------------------------------------------------------------------------


def test_a_cheap_producer_is_computed_in_each_kernel_that_reads_it() -> None:
    (x,) = inputs((64, 96))
    shifted = build.binary(Fn.ADD, x, 1.0)
    rows = build.reduce(ReduceFn.SUM, shifted, [1], F32)
    columns = build.reduce(ReduceFn.MAX, shifted, [0], F32)
    found = lowered(graph_of((x,), rows=rows, columns=columns))
    assert patterns(found.module) == ["row", "row"]
    assert all(kernel.inputs == ("x0",) for kernel in found.module.kernels)
    agrees(found)


def test_an_expensive_producer_is_not_computed_twice() -> None:
    a, b = inputs((64, 32), (32, 64))
    product = matmul(a, b)
    rows = build.reduce(ReduceFn.SUM, product, [1], F32)
    columns = build.reduce(ReduceFn.MAX, product, [0], F32)
    found = lowered(graph_of((a, b), rows=rows, columns=columns))
    assert patterns(found.module) == ["matmul", "row", "row"]
    assert "2 kernels read it" in found.module.stored.values()
    agrees(found)


def test_what_a_contraction_reads_is_stored() -> None:
    a, b = inputs((16, 8), (8, 24))
    found = lowered(graph_of((a, b), y=matmul(Unary(Fn.EXP, a), b)))
    assert patterns(found.module) == ["map", "matmul"]
    agrees(found)


def test_a_reader_is_stored_after_all_when_that_is_cheaper() -> None:
    """The softmax reads the scaled scores twice; scaling them belongs to the product."""
    module = lowered(lower_program(PROGRAMS["attention"]())).module
    alone = [w for w in module.weighed if w.value in module.stored and not w.beside]
    assert any(w.together < w.apart for w in alone)


def test_rows_of_different_reductions_are_different_kernels() -> None:
    (x,) = inputs((8, 8))
    rows = build.keep_dims(build.reduce(ReduceFn.SUM, x, [1], F32), (8, 8), [1])
    columns = build.keep_dims(build.reduce(ReduceFn.SUM, x, [0], F32), (8, 8), [0])
    y = build.binary(Fn.ADD, Expand(rows, (8, 8)), Expand(columns, (8, 8)))
    found = lowered(graph_of((x,), y=y))
    assert len(found.module.kernels) > 1
    agrees(found)


def test_a_kernel_does_not_grow_without_end() -> None:
    (x,) = inputs((4, 8))
    value: Value = x
    for number in range(200):
        value = Unary(Fn.ABS if number % 2 else Fn.NEG, value)
    found = lowered(graph_of((x,), y=value))
    assert len(found.module.kernels) == 2
    agrees(found)


# -- outputs -------------------------------------------------------------------------------------


def test_an_output_that_is_another_ones_operand_is_stored_on_the_way() -> None:
    a, b = inputs((16, 8), (8, 24))
    product = matmul(a, b)
    found = lowered(graph_of((a, b), before=product, after=Unary(Fn.RELU, product)))
    (kernel,) = found.module.kernels
    assert len(kernel.outputs) == 2
    agrees(found)


def test_a_transposed_result_swaps_rows_and_columns() -> None:
    a, b = inputs((16, 8), (8, 24))
    product = matmul(a, b)
    found = lowered(graph_of((a, b), y=build.permute(product, (1, 0))))
    (kernel,) = found.module.kernels
    assert kernel.roles is not None
    assert [kernel.sizes[name[0]] for name in (kernel.roles.m, kernel.roles.n)] == [24, 16]
    agrees(found)


def test_outputs_that_are_one_value_an_input_or_a_constant() -> None:
    (x,) = inputs((4, 6))
    y = Unary(Fn.NEG, x)
    constant = Expand(Reshape(build.const(2.5, F32), (1, 1)), (3, 2))
    found = lowered(
        graph_of((x,), first=y, second=y, third=x, fourth=constant, fifth=Reshape(y, (8, 3)))
    )
    assert len(found.module.outputs) == 5
    agrees(found)


def test_a_repeated_value_is_stored_everywhere() -> None:
    (x,) = inputs((1, 6))
    agrees(lowered(graph_of((x,), y=Expand(Unary(Fn.EXP, x), (4, 6)))))


# -- guards --------------------------------------------------------------------------------------


def test_padding_of_a_computed_value_is_a_select() -> None:
    (x,) = inputs((5, 6))
    padded = Pad(Unary(Fn.EXP, x), (1, 0), (0, 2), build.const(-3.0, F32))
    found = lowered(graph_of((x,), y=build.binary(Fn.ADD, padded, 1.0)))
    (kernel,) = found.module.kernels
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    assert all(read.guards and read.fill is not None for read in reads)
    assert any(isinstance(let.expr, Select) for let in kernel.body)
    agrees(found)


@pytest.mark.parametrize("target", ["cpu", WIDE], ids=["small", "wide"])
def test_a_check_is_not_made_beyond_its_tensor(target: str | Target) -> None:
    """Whether the quotient is stored, or the divisor that was checked: then the quotient is taken
    beyond them, where both are zero."""
    x, y = inputs((5,), (5,), dtype=SI32)
    divisor = Check(y, Rule.NONZERO, "IntegerDivideByZero")
    padded = Pad(Binary(Fn.DIV, x, divisor), (1,), (1,), build.const(0, SI32))
    found = lowered(graph_of((x, y), y=build.binary(Fn.ADD, padded, 1)), target)
    assert patterns(found.module) == ["map", "map"]
    ones = {name: np.arange(1, 6, dtype=np.int32) for name in ("x0", "x1")}
    agrees(found, ones)


# -- updates, params, opaque ops -----------------------------------------------------------------


def test_an_update_writes_a_window_of_its_base() -> None:
    cache, rows = inputs((2, 8, 4), (2, 3, 4))
    start = Input("start", SI32, ())
    zero = build.const(0, SI32)
    updated = DynamicUpdate(cache, Unary(Fn.NEG, rows), (zero, start, zero))
    found = lowered(graph_of((cache, rows, start), y=updated), roles={"x0": "state"})
    (kernel,) = found.module.kernels
    (output,) = kernel.outputs
    assert output.base == "x0"
    assert found.module.tensors["x0"].role == "state"
    assert [(p.tensor, p.low, p.high) for p in kernel.params] == [("start", 0, 5)]
    rng = np.random.default_rng(0)
    given = {i.name: rng.standard_normal(sizes(i)).astype(np.float32) for i in (cache, rows)} | {
        "start": np.asarray(4, np.int32)
    }
    agrees(found, given)


def test_results_of_one_opaque_op_are_one_kernel() -> None:
    (x,) = inputs((6,))
    op = "divmod"
    parts = [Opaque(op, (Unary(Fn.NEG, x),), n, F32, (6,)) for n in (0, 1)]
    found = lowered(graph_of((x,), a=Unary(Fn.ABS, parts[0]), b=parts[1]))
    assert patterns(found.module) == ["map", "opaque", "map"]
    call = found.module.kernels[1].opaque
    assert call is not None
    assert (call.op, call.results) == ("divmod", (0, 1))
    assert len(found.module.kernels[1].outputs) == 2


# -- long rows -----------------------------------------------------------------------------------


def softmax(x: Value, shape: tuple[int, ...]) -> Value:
    def kept(value: Value) -> Value:
        return Expand(build.keep_dims(value, shape, [len(shape) - 1]), shape)

    last = [len(shape) - 1]
    shifted = Binary(Fn.SUB, x, kept(build.reduce(ReduceFn.MAX, x, last, F32)))
    power = Unary(Fn.EXP, shifted)
    return Binary(Fn.DIV, power, kept(build.reduce(ReduceFn.SUM, power, last, F32)))


def folds(kernel: Kernel) -> int:
    return sum(isinstance(let.expr, Fold) for let in walk(kernel.body))


def test_rows_that_do_not_fit_on_chip_are_read_in_one_pass_less() -> None:
    (x,) = inputs((3, 40))
    machine = target_named("cpu")
    small = replace(machine, limits=replace(machine.limits, cache_bytes=(64, 64)))
    graph = graph_of((x,), y=softmax(x, (3, 40)))
    long = lowered(graph, small)
    assert [folds(kernel) for kernel in long.module.kernels] == [2]
    assert folds(lowered(graph, machine).module.kernels[0]) == 0
    agrees(long)
    given = {"x0": np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)}
    for parts in (2, 5):
        played = run_module(long.module, given, fold_parts=parts)
        np.testing.assert_allclose(played["y"], long.expected(given)["y"], rtol=1e-5)


# -- shapes of axes ------------------------------------------------------------------------------


def test_axes_that_a_reshape_splits_are_whole_again_in_the_kernel() -> None:
    x, w = inputs((24, 8), (8, 5))
    split = Reshape(x, (4, 6, 8))
    product = build.product(split, w, ([], []), ([2], [0]), F32)
    found = lowered(graph_of((x, w), y=Reshape(product, (24, 5))))
    (kernel,) = found.module.kernels
    assert {a.name: a.size for a in kernel.axes} == {"m": 24, "n": 5, "k": 8}
    agrees(found)


def test_heads_become_a_batch() -> None:
    """[S, H*D] read as [H, S, D]: the product over D has a batch axis and strided rows."""
    q, k = inputs((10, 12), (10, 12), dtype=BF16)
    heads = [build.permute(Reshape(t, (10, 3, 4)), (1, 0, 2)) for t in (q, k)]
    wide = [build.cast(t, F32) for t in heads]
    scores = build.product(wide[0], wide[1], ([0], [0]), ([2], [2]), F32)
    found = lowered(graph_of((q, k), y=scores))
    (kernel,) = found.module.kernels
    assert kernel.roles is not None
    assert (kernel.roles.batch, kernel.sizes["b"]) == (("b",), 3)
    assert kernel.let(kernel.roles.lhs).dtype is BF16
    agrees(found)


def test_windows_are_one_kernel() -> None:
    (x,) = inputs((9, 4))
    view = build.windows(x, (3, 2), (2, 1), (1, 2))
    found = lowered(graph_of((x,), y=Unary(Fn.EXP, view)))
    assert patterns(found.module) == ["map"]
    agrees(found)


# -- equal layers --------------------------------------------------------------------------------


def block_of(x: Value, weights: list[Input]) -> Value:
    """Heads apart, scores, softmax, heads together, a projection, a residual."""
    q, k, v = (build.permute(Reshape(matmul(x, w), (8, 2, 4)), (1, 0, 2)) for w in weights[:3])
    scores = build.product(q, k, ([0], [0]), ([2], [2]), F32)
    mixed = build.product(softmax(scores, (2, 8, 8)), v, ([0], [0]), ([2], [1]), F32)
    together = Reshape(build.permute(mixed, (1, 0, 2)), (8, 8))
    return Binary(Fn.ADD, x, matmul(together, weights[3]))


def layers(count: int) -> Lowered:
    x = Input("x", F32, (8, 8))
    weights = [Input(f"w{n}", F32, (8, 8)) for n in range(4 * count)]
    value: Value = x
    for n in range(count):
        value = block_of(value, weights[4 * n : 4 * n + 4])
    return lowered(graph_of((x, *weights), y=value))


def test_a_block_of_attention_is_five_kernels() -> None:
    """The result of the heads is stored so that the projection sums over one axis."""
    found = layers(1)
    assert patterns(found.module) == ["matmul"] * 3 + ["attention", "matmul"]
    last = found.module.kernels[-1]
    assert {a.name: a.size for a in last.axes} == {"m": 8, "n": 8, "k": 8}
    agrees(found)


def test_equal_layers_are_drafted_and_keyed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[int] = []

    def counting(*args: Any) -> Kernel:
        drafted[-1] += 1
        return draft(*args)

    monkeypatch.setattr(greedy, "draft", counting)
    keys = []
    for count in (2, 5):
        drafted.append(0)
        module = layers(count).module
        keys.append({structure_key(kernel, module.tensors) for kernel in module.kernels})
        assert len(module.kernels) == 5 * count
    assert drafted[1] == drafted[0]
    assert keys[0] == keys[1]
    agrees(layers(3))
