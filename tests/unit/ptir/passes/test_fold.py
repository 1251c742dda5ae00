"""Constant folding: through the reference meaning, within bounds, and never a violation."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.one_op import by_name
from tests.unit.ptir.passes.programs import Case, agree, mnemonics, specials
from weft.foundation.dtypes import ANY, COMPLEX, FLOATS, NUMBERS, ORDERED, SI32, DType
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program, tensor
from weft.ptir.ops.constant import Constant
from weft.ptir.passes import PassLog, dce, fold


def folded(program: Program) -> tuple[Program, PassLog]:
    """Folded, with what has become dead removed, so that the remaining ops can be listed."""
    log = PassLog()
    return dce(fold(program, log)), log


UNARY = {"neg": NUMBERS, "abs": NUMBERS, "exp": FLOATS | COMPLEX, "erf": FLOATS}
BINARY = {"add": NUMBERS, "mul": NUMBERS, "maximum": ORDERED, "minimum": ORDERED}


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_dense_constants_become_the_result_of_the_op(name: str) -> None:
    for dtype in by_name({**UNARY, **BINARY}[name]):
        values = specials(dtype.numpy) if not dtype.is_complex else np.array([1 + 2j, -3.5])
        b = Builder()
        first = b.constant(values, dtype)
        operands = [first] if name in UNARY else [first, b.literal(values[::-1].copy(), dtype)]
        program = b.build(b.emit(name, *operands))
        after, log = folded(program)
        assert mnemonics(after) == ["constant"], str(dtype)
        assert log.counts == {"fold-constants": 1}
        agree(program, after, [])


def test_a_known_result() -> None:
    b = Builder()
    product = b.dot_general(
        b.constant([[1, 2], [3, 4]], "si32"), b.literal([10, 100], "si32"), contract=([1], [0])
    )
    after, _ = folded(b.build(b.reshape(product, [1, 2])))
    (instruction,) = after.main.body
    assert isinstance(instruction.op, Constant)
    assert instruction.op.value.array.tolist() == [[210, 430]]


@pytest.mark.parametrize("dtype", by_name(ANY), ids=str)
def test_a_splat_stays_a_splat(dtype: DType) -> None:
    """An elementwise op of repeated values is computed once and repeated, whatever the size."""
    for seed in range(6):
        case = Case(seed)
        shape = [1000, 1000] if seed == 0 else case.shape(1)
        value = case.rng.choice(specials(np.dtype(np.float32 if dtype.is_complex else dtype.numpy)))
        x = case.splat(value, dtype, shape) if seed else case.b.full(shape, 1, dtype)
        case.done(case.b.emit("compare", x, x, op="equal"))
        after, log = folded(case.program)
        assert log.counts == {"fold-splat": 1}
        assert mnemonics(after) == ["broadcast_to"]
        agree(case.program, after, [])


def test_a_splat_over_a_dynamic_shape() -> None:
    b = Builder()
    x = b.param("f32", ["?B", 2])
    program = b.build(x + (b.full(x.shape, 2.0, "f32") * 3.0))
    after, _ = folded(program)
    assert mnemonics(after) == ["broadcast_to", "add"]
    agree(program, after, [np.ones((3, 2), np.float32)])


def test_constants_that_are_broadcast_are_read_through() -> None:
    b = Builder()
    row = b.broadcast_to(b.constant([1.0, 2.0]), [3, 2])
    program = b.build(b.emit("mul", row, b.constant(np.arange(6, dtype=np.float32).reshape(3, 2))))
    after, _ = folded(program)
    assert mnemonics(after) == ["constant"]
    agree(program, after, [])


def test_chains_fold_in_one_go() -> None:
    b = Builder()
    y = b.constant([0.5, 1.5])
    for _ in range(5):
        y = b.exp(b.neg(y))
    program = b.build(y)
    after, log = folded(program)
    assert mnemonics(after) == ["constant"]
    assert log.counts["fold-constants"] == 10
    agree(program, after, [])


def test_what_is_cheaper_to_compute_than_to_store_stays() -> None:
    b = Builder()
    program = b.build(
        b.iota("si32", [4, 4], 0),
        b.broadcast_to(b.constant([1.0, 2.0]), [3, 2]),
        b.compare(b.iota("si32", [4, 4], 0), b.iota("si32", [4, 4], 1), "less_equal"),
    )
    assert fold(program) is program


@pytest.mark.parametrize(("size", "folds"), [(65_536, True), (65_537, False)])
def test_the_bound_on_elements(size: int, folds: bool) -> None:
    b = Builder()
    program = b.build(b.neg(b.constant(np.arange(size, dtype=np.int32))))
    assert (fold(program) is not program) == folds


def test_the_bound_is_an_option() -> None:
    b = Builder()
    program = b.build(b.neg(b.constant([1, 2, 3], "si32")))
    assert fold(program, max_elements=2) is program
    assert mnemonics(dce(fold(program, max_elements=3))) == ["constant"]


def test_a_large_operand_with_a_small_result_folds() -> None:
    b = Builder()
    program = b.build(b.reduce_sum(b.constant(np.ones(100_000, np.int32)), [0]))
    after, _ = folded(program)
    assert mnemonics(after) == ["constant"]
    agree(program, after, [])


@pytest.mark.parametrize("splat", [False, True])
def test_a_violation_belongs_to_the_run(splat: bool) -> None:
    b = Builder()
    zero = b.full([3], 0, "si32") if splat else b.constant([1, 0, 1], "si32")
    program = b.build(b.emit("div", b.constant([1, 2, 3], "si32"), zero))
    assert fold(program) is program
    with pytest.raises(SpecViolation) as caught:
        weft.run(fold(program))
    assert caught.value.code == "IntegerDivideByZero"


def test_an_index_out_of_range_stays() -> None:
    b = Builder()
    program = b.build(b.emit("take", b.constant([1.0, 2.0]), b.constant([5], "si32")))
    assert fold(program) is program


def test_what_needs_too_much_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "1000")
    b = Builder()
    wide = {"strides": [9000], "base_dilation": [1], "window_dilation": [1]}
    x = b.constant([1.0, 2.0])
    reduced = b.emit(
        "reduce_window",
        x,
        output=None,
        window_dims=[1],
        padding=[(4500, 4500)],
        reduce="sum",
        **wide,
    )
    program = b.build(reduced)
    assert fold(program) is program
    monkeypatch.delenv("WEFT_MAX_TENSOR_BYTES")
    assert fold(program) is not program


def test_random_ops_custom_calls_and_barriers_stay() -> None:
    b = Builder()
    c = b.constant([1.0, 2.0])
    kind = tensor("f32", [2])
    results = [
        b.emit("rng_uniform", shape=[2], dtype="f32"),
        b.custom_call("somebody.kernel.v1", c, output=kind),
        b.emit("stop_gradient", c),
    ]
    program = b.build(*results)
    assert fold(program) is program


def test_control_flow_stays_and_its_regions_fold() -> None:
    b = Builder()
    c = b.constant(1.0)
    pred = b.constant(True)
    out = b.cond(
        pred,
        lambda r, x: r.emit("add", x, r.neg(r.constant(2.0))),
        lambda r, x: x,
        c,
    )
    program = b.build(out)
    after, _ = folded(program)
    assert "cond" in mnemonics(after)
    assert [i.op.mnemonic for i in after.regions[0].body] == ["constant", "add"]
    agree(program, after, [])


def test_tuples_are_not_constants() -> None:
    b = Builder()
    top = b.emit("top_k", b.constant([3.0, 1.0]), k=1, axis=0, largest=True, indices_dtype=SI32)
    program = b.build(top[0])
    assert fold(program) is program


def test_empty_and_rank_0() -> None:
    b = Builder()
    program = b.build(b.neg(b.constant(np.zeros((0, 3), np.float32))), b.neg(b.constant(2.0)))
    after, _ = folded(program)
    assert mnemonics(after) == ["constant", "constant"]
    agree(program, after, [])
