"""Everything that must be refused: programs that break a rule, and data that does.

The expected code is all that counts. A program that breaks a rule of types never reaches a backend;
what depends on the data (an index, a divisor) is the backend's to find.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import (
    ALL,
    F32,
    INDICES,
    INTEGERS,
    SI8,
    SI32,
    SI64,
    SIGNED,
    UI8,
    DType,
    in_order,
)
from weft.ptir.files import loads
from weft.ptir.ir import Instruction, Program
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.testing.conformance.case import Case, Rejected, Trial
from weft.testing.conformance.cases.common import Array, Dims, apply, defined, table
from weft.testing.conformance.cases.rejected_programs import PROGRAMS
from weft.testing.conformance.cases.rejected_types import LINES

FAMILY = "rejections"


def cases(others: Iterable[Case]) -> Iterator[Case]:
    """Undefined dtypes, programs by code, and data by code. `others` are the cases of the ops: a
    program on an undefined dtype is one of theirs with the dtype exchanged."""
    yield from _cases_of_other_dtypes(_first_of_each(others))
    for code, lines in LINES.items():
        for line in lines:
            name, _, rest = line.partition(": ") if ": " in line else line.partition(":")
            yield _rejection_case(
                code, None, name, trial=partial(_text_trial, code, _one_line(rest))
            )
    for code, programs in PROGRAMS.items():
        for name, text in programs.items():
            yield _rejection_case(code, None, name, trial=partial(_text_trial, code, text))
    yield from _data_rejections()


def _rejection_case(
    code: str, dtype: DType | None, *parts: object, trial: Callable[[], Trial]
) -> Case:
    name = "/".join(str(p) for p in ("reject", code, *parts, dtype) if p is not None)
    return Case(name, FAMILY, code, dtype, trial)


# -- programs as text ----------------------------------------------------------------------------


def _one_line(line: str) -> str:
    """The program of `types => instruction : type`."""
    types, _, rest = line.partition("=> ")
    instruction, _, output = rest.rpartition(" : ")
    kinds = _split_types(types)
    parameters = ", ".join(f"%{i}: {kind}" for i, kind in enumerate(kinds))
    target = "" if instruction.startswith("%") else f"%{len(kinds)} = "
    return (
        f"ptir.v0.4\nentry @main\n\nfunc @main({parameters}) -> ({output}) {{\n"
        f"  {target}{instruction} : {output}\n  return %{len(kinds)}\n}}\n"
    )


def _split_types(types: str) -> list[str]:
    """The types of a list; commas inside brackets do not part them."""
    found, depth = [""], 0
    for letter in types.strip():
        depth += letter in "[("
        depth -= letter in "])"
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [kind.strip() for kind in found if kind.strip()]


def _text_trial(code: str, text: str) -> Trial:
    return Trial(partial(loads, text), (), Rejected(code))


# -- undefined dtypes ----------------------------------------------------------------------------


_PLAIN = {F32, SI8}


def _first_of_each(others: Iterable[Case]) -> dict[str, Case]:
    """One case of each op, on a dtype that stands for nothing else in the program."""
    chosen: dict[str, Case] = {}
    for candidate in others:
        row = candidate.row
        if row not in SPELLINGS or "dynamic" in candidate.id.split("/"):
            continue
        if candidate.dtype in _PLAIN or len(defined(row)) < 3 or _PLAIN.isdisjoint(defined(row)):
            chosen.setdefault(row, candidate)
    return chosen


def _cases_of_other_dtypes(first: dict[str, Case]) -> Iterator[Case]:
    code = "DTypeNotSupported"
    for row, allowed in table().items():
        if "result" in SPELLINGS[row][0].dtypes or row not in first:
            continue  # nothing in such a program has another dtype; or there is none to begin with
        for dtype in ALL:
            if dtype not in allowed:
                make = partial(_exchange_dtype, first[row], dtype)
                yield _rejection_case(code, None, row, dtype, trial=make)
        for name, others in _other_tables(row, allowed):
            for dtype in ALL:
                if dtype not in others:
                    make = partial(_exchanged_at, first[row], name, dtype)
                    yield _rejection_case(code, None, row, f"{name}={dtype}", trial=make)


def _other_tables(row: str, allowed: frozenset[DType]) -> Iterator[tuple[str, frozenset[DType]]]:
    """The operands and attributes of an op with a dtype table of their own."""
    tables = list(SPELLINGS[row][0].rows()[row].items())
    for name, dtypes in tables[1:]:
        if dtypes != allowed:
            yield name, dtypes


def _base_program(base: Case) -> Program:
    return base.trial().program()


def _exchange_dtype(base: Case, dtype: DType) -> Trial:
    """The program with one dtype for another wherever it stands."""

    def build() -> Program:
        def swap(found: DType) -> DType:
            return dtype if found is base.dtype else found

        return _with_dtypes(_base_program(base), swap)

    return Trial(build, (), Rejected("DTypeNotSupported"))


def _with_dtypes(program: Program, swap: Callable[[DType], DType]) -> Program:
    main = program.main
    body = tuple(
        dataclasses.replace(i, op=_op_with(i.op, swap), output=_type_with(i.output, swap))
        for i in main.body
    )
    parameters = tuple(_type_with(kind, swap) for kind in main.parameters)
    results = tuple(_type_with(kind, swap) for kind in main.results)
    return program.with_main(
        dataclasses.replace(main, parameters=parameters, body=body, results=results)
    )


def _op_with(op: Op, swap: Callable[[DType], DType]) -> Op:
    changed = {
        field.name: swap(value)
        for field in dataclasses.fields(op)
        if isinstance(value := getattr(op, field.name), DType)
    }
    return dataclasses.replace(op, **changed)


def _type_with(kind: ValueType, swap: Callable[[DType], DType]) -> ValueType:
    if isinstance(kind, TupleType):
        return TupleType(tuple(_type_with(element, swap) for element in kind.elements))
    return TensorType(swap(kind.dtype), kind.shape)


def _exchanged_at(base: Case, name: str, dtype: DType) -> Trial:
    """The program with another dtype for one operand or attribute."""

    def build() -> Program:
        program = _base_program(base)
        (instruction,) = program.main.body
        if name in instruction.op.all_attributes():
            op = dataclasses.replace(instruction.op, **{name: dtype})
            return _with_body(program, dataclasses.replace(instruction, op=op))
        place = [operand.strip("?*") for operand in instruction.op.operands].index(name)
        parameters = list(program.main.parameters)
        parameters[place] = _type_with(parameters[place], lambda _: dtype)
        main = dataclasses.replace(program.main, parameters=tuple(parameters))
        return program.with_main(main)

    return Trial(build, (), Rejected("DTypeNotSupported"))


def _with_body(program: Program, instruction: Instruction) -> Program:
    return program.with_main(dataclasses.replace(program.main, body=(instruction,)))


# -- data that breaks a rule ---------------------------------------------------------------------


def _make_rejected(
    code: str, row: str, inputs: Sequence[Array], dims: Sequence[Dims] | None = None, **attrs: Any
) -> Trial:
    return Trial(apply(row, inputs, dims=dims, **attrs), tuple(inputs), Rejected(code))


def _data_rejections() -> Iterator[Case]:
    yield from _arithmetic()
    yield from _indices()
    yield from _size_rejections()
    for dtype in defined("cholesky"):
        for upper in (False, True):
            for name, matrix in _indefinite(dtype).items():
                make = partial(
                    _make_rejected, "NotPositiveDefinite", "cholesky", [matrix], upper=upper
                )
                side = "upper" if upper else "lower"
                yield _rejection_case("NotPositiveDefinite", dtype, side, name, trial=make)


def _arithmetic() -> Iterator[Case]:
    for row in ("div", "fmod"):
        for dtype in in_order(INTEGERS):
            x = np.ones((2, 3), dtype.numpy)
            y = np.array([[1, 1, 1], [1, 0, 1]]).astype(dtype.numpy)
            for name, pair in {"one": [x, y], "rank0": [x[0, 0, ...], y[1, 1, ...]]}.items():
                make = partial(_make_rejected, "IntegerDivideByZero", row, pair)
                yield _rejection_case("IntegerDivideByZero", dtype, row, name, trial=make)
    for row, code in (
        ("pow", "InvalidExponent"),
        ("shift_left", "InvalidShift"),
        ("shift_right", "InvalidShift"),
    ):
        for dtype in in_order(SIGNED):
            x = np.array([1, 2, 3]).astype(dtype.numpy)
            for amount in (-1, int(dtype.lowest)):
                y = np.array([1, 0, amount], object).astype(np.int64).astype(dtype.numpy)
                make = partial(_make_rejected, code, row, [x, y])
                yield _rejection_case(code, dtype, row, f"amount={amount}", trial=make)


def _indices() -> Iterator[Case]:
    gather, scatter = "GatherIndexOutOfBounds", "ScatterIndexOutOfBounds"
    for index in in_order(INDICES):
        for dtype in (F32, SI32, UI8):
            x = np.ones((4, 3), dtype.numpy)
            for name, bad in {"low": -1, "high": 4, "far": 2**31 - 1}.items():
                at = np.array([[0, 1, bad]], index.numpy)
                update = np.ones((1, 3), dtype.numpy)
                make = partial(_make_rejected, gather, "take", [x, at])
                yield _rejection_case(gather, dtype, "take", index, name, trial=make)
                make = partial(_make_rejected, gather, "gather", [x, at], axis=0)
                yield _rejection_case(gather, dtype, "gather", index, name, trial=make)
                for kind in ("add", "max", "min", "replace"):
                    make = partial(
                        _make_rejected,
                        scatter,
                        "scatter_reduce",
                        [x, at, update],
                        axis=0,
                        reduce=kind,
                    )
                    yield _rejection_case(
                        scatter, dtype, "scatter_reduce", kind, index, name, trial=make
                    )
                rows = np.array([[0], [bad]], index.numpy)
                make = partial(
                    _make_rejected, scatter, "scatter_add", [x, rows, np.ones((2, 3), dtype.numpy)],
                    update_window_dims=[1], inserted_window_dims=[0],
                    scatter_dims_to_operand_dims=[0], index_vector_dim=1,
                )  # fmt: skip
                yield _rejection_case(scatter, dtype, "scatter_add", index, name, trial=make)
                ids = np.array([0, 1, bad, 2], index.numpy)
                for row in ("segment_sum", "segment_max"):
                    make = partial(
                        _make_rejected, scatter, row, [x, ids], num_segments=4, accum_dtype=None,
                        indices_are_sorted=False, unique=False,
                    )  # fmt: skip
                    yield _rejection_case(scatter, dtype, row, index, name, trial=make)


def _size_rejections() -> Iterator[Case]:
    """Sizes that only the inputs tell."""
    x = np.zeros((0, 3), np.float32)
    dims: list[Dims] = [["?B", 3]]
    for row in ("arg_max", "argmin"):
        make = partial(
            _make_rejected,
            "EmptyReduction",
            row,
            [x],
            dims,
            axis=0,
            keepdims=False,
            output_dtype=SI64,
        )
        yield _rejection_case("EmptyReduction", None, row, "dynamic", trial=make)
    code = "InvalidAttributeValue"
    y = np.zeros((2, 3), np.float32)
    attrs = {"k": 3, "axis": 0, "largest": True, "indices_dtype": SI32}
    make = partial(_make_rejected, code, "top_k", [y], dims, **attrs)
    yield _rejection_case(code, None, "k-larger", "dynamic", trial=make)
    make = partial(_make_rejected, code, "slice", [y], dims, starts=[1, 0], sizes=[2, 3])
    yield _rejection_case(code, None, "slice-outside", "dynamic", trial=make)
    start = np.zeros(2, np.int32)
    make = partial(_make_rejected, code, "dynamic_slice", [y, start], [*dims, [2]], sizes=[3, 3])
    yield _rejection_case(code, None, "dynamic-slice-larger", "dynamic", trial=make)
    make = partial(_make_rejected, "ShapeMismatch", "reshape", [y], dims, new_shape=[-1, 4])
    yield _rejection_case("ShapeMismatch", None, "reshape", "dynamic", trial=make)
    pair = [np.zeros(2, np.float32), np.zeros(3, np.float32)]
    make = partial(_make_rejected, "DynamicDimensionMismatch", "add", pair, [["?B"], ["?B"]])
    yield _rejection_case("DynamicDimensionMismatch", None, "inputs", "dynamic", trial=make)


def _indefinite(dtype: DType) -> dict[str, Array]:
    return {
        "negative": np.array([[1, 2], [2, 1]], dtype.numpy),
        "zero": np.zeros((2, 2), dtype.numpy),
        "nan": np.array([[1, 0], [0, np.nan]], dtype.numpy),
        "in-a-batch": np.stack([np.eye(2), -np.eye(2)]).astype(dtype.numpy),
    }
