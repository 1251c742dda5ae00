"""What programs are made of besides ops: tuples, results, literals, hints, functions, calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import F32, SI32, DType
from weft.ptir.builder import Builder, Value
from weft.ptir.ir import HintKind, HintPolicy, HintRegion, Program
from weft.ptir.types import TensorType, TupleType, ValueType, tensor
from weft.testing.conformance.case import Case, Refused, Trial, Values, exactly
from weft.testing.conformance.cases.common import Array, case, defined, judged, program, trial
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles.rounding import whole, wrapped

FAMILY = "programs"


def cases() -> Iterator[Case]:
    """Tuples, results, hints and the like, and custom calls that nobody knows."""
    for name, make in _PROGRAMS.items():
        row = name.partition("/")[0]
        yield Case(name, FAMILY, row, None, make)
    for kind in HintKind:
        for policy in HintPolicy:
            make = partial(_make_hinted, kind, policy)
            yield Case(f"hint/{kind}/{policy}", FAMILY, "hint", None, make)
    for dtype in defined("custom_call"):
        yield case("custom_call", dtype, "unknown", trial=partial(_unknown_call, dtype))


# -- tuples --------------------------------------------------------------------------------------


def _tuple_program(
    kind: ValueType, body: Callable[[Builder, Value], list[Value]]
) -> Callable[[], Program]:
    def build() -> Program:
        b = Builder()
        return b.build(*body(b, b.param_of(kind)))

    return build


PAIR = TupleType((tensor("f32", [2, 3]), tensor("si32", [4])))
NESTED = TupleType((tensor("f32", [2]), TupleType((tensor("si32"), tensor("i1", [3])))))


def _sample_pair() -> list[Array]:
    return [sample(F32, (2, 3), "pair"), sample(SI32, (4,), "pair")]


def _elements_trial() -> Trial:
    x, y = _sample_pair()
    build = _tuple_program(PAIR, lambda b, p: [b.neg(p[1]), b.transpose(p[0], [1, 0])])
    return trial(build, [x, y], exactly(wrapped(-whole(y), SI32)), exactly(x.T.copy()))


def _whole_tuple() -> Trial:
    """A tuple parameter that is returned as it is comes out flattened."""
    x, y = _sample_pair()
    return trial(_tuple_program(PAIR, lambda b, p: [p]), [x, y], exactly(x), exactly(y))


def _nested_tuple() -> Trial:
    inputs = [
        np.array([1.5, -2.5], np.float32),
        np.array(7, np.int32),
        np.array([True, False, True]),
    ]
    build = _tuple_program(NESTED, lambda b, p: [p, b.neg(p[0])])
    return trial(build, inputs, *(exactly(a) for a in inputs), exactly(-inputs[0]))


def _tuple_and_element() -> Trial:
    """The tuple of an instruction is returned, and one of its elements used."""
    x = np.array([3.0, -1.0, 7.0, 5.0], np.float32)

    def body(b: Builder, value: Value) -> list[Value]:
        top = b.top_k(value, k=2, axis=0, largest=True, indices_dtype="si32")
        return [top, b.neg(top[0])]

    want = [np.array([7.0, 5.0], np.float32), np.array([2, 3], np.int32)]
    values = [*want, -want[0]]
    return trial(program([x], body), [x], *(exactly(a) for a in values))


def _tuple_through_cond() -> Trial:
    """A region may take a tuple."""
    x, y = _sample_pair()

    def body(b: Builder, p: Value) -> list[Value]:
        yes = b.constant(True, "i1")
        return [b.cond(yes, lambda r, t: r.neg(t[0]), lambda r, t: r.abs(t[0]), p)]

    return trial(_tuple_program(PAIR, body), [x, y], exactly(-x))


# -- results, parameters, literals ---------------------------------------------------------------


def _same_result_twice() -> Trial:
    x = sample(F32, (3, 2), "twice")

    def body(b: Builder, value: Value) -> list[Value]:
        negated = b.neg(value)
        return [negated, negated]

    return trial(program([x], body), [x], exactly(-x), exactly(-x))


def _parameter_returned() -> Trial:
    x, y = sample(F32, (3,), "returned"), sample(SI32, (2,), "returned")
    return trial(program([x, y], lambda b, a, c: [c, a]), [x, y], exactly(y), exactly(x))


def _no_results() -> Trial:
    x = sample(F32, (3,), "nothing")
    return trial(program([x], lambda b, value: []), [x])


def _make_unused() -> Trial:
    """Parameters and instructions that nothing reads."""
    x, y = sample(F32, (3,), "unused", 0), sample(F32, (3,), "unused", 1)

    def body(b: Builder, used: Value, unused: Value) -> Value:
        b.exp(unused)
        return b.neg(used)

    return trial(program([x, y], body), [x, y], exactly(-x))


def _many_parameters() -> Trial:
    inputs = [np.array(i, np.int32) for i in range(64)]

    def body(b: Builder, *values: Value) -> Value:
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total

    return trial(program(inputs, body), inputs, exactly(np.array(2016, np.int32)))


def _long_chain() -> Trial:
    x = np.array([3, -4], np.int32)

    def body(b: Builder, value: Value) -> Value:
        for _ in range(500):
            value = value + 1
        return value

    return trial(program([x], body), [x], exactly(np.array([503, 496], np.int32)))


def _make_diamond() -> Trial:
    """A value with many readers, and a diamond."""
    x = np.array([1, 2, 3], np.int32)

    def body(b: Builder, value: Value) -> list[Value]:
        doubled = value + value
        left, right = doubled * 3, doubled - 1
        return [left + right, doubled * doubled]

    want = [np.array([7, 15, 23], np.int32), np.array([4, 16, 36], np.int32)]
    return trial(program([x], body), [x], *(exactly(a) for a in want))


def _literals() -> Trial:
    """Literals as operands, alone and beside a value."""
    x = np.array([[1, 2], [3, 4]], np.int32)

    def body(b: Builder, value: Value) -> list[Value]:
        other = b.literal(np.array([[10, 20], [30, 40]], np.int32))
        return [b.add(value, other), b.sub(other, other)]

    want = [np.array([[11, 22], [33, 44]], np.int32), np.zeros((2, 2), np.int32)]
    return trial(program([x], body), [x], *(exactly(a) for a in want))


def _constant_result() -> Trial:
    value = np.array([1.5, -0.0], np.float32)
    return trial(program([], lambda b: b.constant(value)), [], exactly(value))


def _views() -> Trial:
    """A chain of ops that move nothing by themselves, then one that reads the result."""
    x = sample(SI32, (4, 6), "views")

    def body(b: Builder, value: Value) -> Value:
        turned = b.transpose(b.slice(value, [1, 0], [3, 6]), [1, 0])
        spread = b.broadcast_to(b.reshape(turned, [6, 1, 3]), [6, 2, 3])
        return b.neg(b.reshape(spread, [4, 9]))

    moved = np.repeat(x[1:4].T.reshape(6, 1, 3), 2, axis=1).reshape(4, 9)
    return trial(program([x], body), [x], exactly(wrapped(-whole(moved), SI32)))


# -- functions and names -------------------------------------------------------------------------


def _other_function() -> Trial:
    """Only the entry function runs, wherever it stands."""
    x = sample(F32, (3,), "functions")

    def build() -> Program:
        first, second = Builder("unused"), Builder("main")
        unused = first.build(first.exp(first.param("f32", [2])))
        value = second.param("f32", [3])
        main = second.build(second.neg(value))
        return dataclasses.replace(main, functions=(*unused.functions, *main.functions))

    return trial(build, [x], exactly(-x))


def _odd_name(name: str) -> Trial:
    x = sample(F32, (3,), "names")

    def build() -> Program:
        b = Builder(name)
        return b.build(b.neg(b.param("f32", [3])))

    return trial(build, [x], exactly(-x))


def _two_symbols() -> Trial:
    """Derived dims: a concatenation of two unknown lengths, then a reduction over it."""
    x, y = np.array([1, 2, 3], np.int32), np.array([4, 5], np.int32)

    def body(b: Builder, one: Value, two: Value) -> Value:
        return b.reduce_sum(b.concat([one, two], 0), [0])

    build = program([x, y], body, dims=[["?A"], ["?B"]])
    return trial(build, [x, y], exactly(np.array(15, np.int32)))


def _empty_symbol() -> Trial:
    x = np.zeros((0, 3), np.float32)

    def body(b: Builder, value: Value) -> Value:
        return b.reduce_sum(value, [0])

    build = program([x], body, dims=[["?A", 3]])
    return trial(build, [x], exactly(np.zeros(3, np.float32)))


# -- hints ---------------------------------------------------------------------------------------


def _make_hinted(kind: HintKind, policy: HintPolicy) -> Trial:
    """A hint changes nothing but how a backend may run its instructions. One that is required and
    not met is refused."""
    x = np.array([[1, -2, 3], [4, 5, -6]], np.int32)

    def build() -> Program:
        b = Builder()
        made = b.build(_hint_body(kind, b, b.param("si32", [2, 3])))
        body = made.main.body
        hint = HintRegion(0, kind, policy, (0,), (body[-1].id,), body)
        return made.with_main(dataclasses.replace(made.main, hints=(hint,)))

    wide = x.astype(np.int64)
    want = {
        HintKind.ELEMENTWISE_DAG: -wide * wide,
        HintKind.DOT_EPILOGUE: -(wide @ wide.T),
        HintKind.REDUCTION_CHAIN: (-wide).sum(axis=1),
    }[kind]
    expected = Values((exactly(want.astype(np.int32)),), policy is HintPolicy.REQUIRED)
    return judged(build, [x], expected)


def _hint_body(kind: HintKind, b: Builder, x: Value) -> Value:
    if kind is HintKind.ELEMENTWISE_DAG:
        return b.mul(b.neg(x), x)
    if kind is HintKind.DOT_EPILOGUE:
        return b.neg(b.dot_general(x, x, contract=([1], [1])))
    return b.reduce_sum(b.neg(x), [1])


# -- custom calls --------------------------------------------------------------------------------


def _unknown_call(dtype: DType) -> Trial:
    """A target that nobody can know: a backend says so and never guesses."""
    x = sample(dtype, (2, 3), "call")

    def body(b: Builder, value: Value) -> Value:
        output = TensorType(dtype, (2, 3))
        return b.custom_call("example.conformance.unknown.v1", value, output=output, depth=3)

    return judged(program([x], body), [x], Refused())


_PROGRAMS: dict[str, Callable[[], Trial]] = {
    "tuple/elements": _elements_trial,
    "tuple/whole": _whole_tuple,
    "tuple/nested": _nested_tuple,
    "tuple/and-element": _tuple_and_element,
    "tuple/through-cond": _tuple_through_cond,
    "results/twice": _same_result_twice,
    "results/parameter": _parameter_returned,
    "results/none": _no_results,
    "results/constant": _constant_result,
    "values/unused": _make_unused,
    "values/many-parameters": _many_parameters,
    "values/long-chain": _long_chain,
    "values/shared": _make_diamond,
    "values/literals": _literals,
    "values/views": _views,
    "functions/other": _other_function,
    "functions/quotes": partial(_odd_name, 'a "quoted" name'),
    "functions/newline": partial(_odd_name, "two\nlines # no comment"),
    "functions/unicode": partial(_odd_name, "\u00e9l\u00e8ve \u4e2d\u6587 \U0001f9f5"),
    "functions/long": partial(_odd_name, "n" * 300),
    "symbols/two": _two_symbols,
    "symbols/empty": _empty_symbol,
}
