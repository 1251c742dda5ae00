"""Products with weights of few bits, in the spellings that programs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.ptir import Builder, Program, Value


def _emit(b: Builder, op: str, *args: object, **attrs: object) -> Value:
    found = b.emit(op, *args, **attrs)  # type: ignore[arg-type]
    assert isinstance(found, Value)
    return found


@dataclass(frozen=True)
class Case:
    """`x[rows, depth] @ w[columns, depth].T`, the weights made of codes."""

    rows: int = 4
    columns: int = 256
    depth: int = 256
    dtype: str = "bf16"
    group: int = 64
    weights: str = "bytes"
    end: str = ""

    def program(self) -> Program:
        b = Builder("weights of few bits")
        x = b.param(self.dtype, [self.rows, self.depth])
        if self.end in ("bias, silu", "scaled"):
            beside = b.param(self.dtype, [self.columns])
        w = _WEIGHTS[self.weights](b, self)
        y = b.dot_general(x, w, contract=([1], [1]), accum_dtype="f32", out_dtype=self.dtype)
        if self.end == "bias, silu":
            y = b.silu(y + b.broadcast_to(beside, [self.rows, self.columns]))
        if self.end == "scaled":
            y = y * b.broadcast_to(beside, [self.rows, self.columns])
        if self.end == "two results":
            return b.build(y, b.exp(y))
        return b.build(y)

    @property
    def groups(self) -> int:
        return self.columns * self.depth // self.group

    def matrix(self, b: Builder, x: Value) -> Value:
        return b.cast(b.reshape(x, [self.columns, self.depth]), self.dtype)


def _bytes(b: Builder, case: Case) -> Value:
    """A scale for each column."""
    codes = b.param("si8", [case.columns, case.depth])
    return _emit(b, "dequantize", codes, b.param(case.dtype, [case.columns]), axis=0)


def _grouped_bytes(b: Builder, case: Case) -> Value:
    """A scale in f32 for each group of neighbours."""
    codes = b.param("si8", [case.groups, case.group])
    return case.matrix(b, _emit(b, "dequantize", codes, b.param("f32", [case.groups]), axis=0))


def _halves(b: Builder, case: Case) -> Value:
    """As `nn.Packed` has them: of a group, the first half in the lower bits of its bytes."""
    codes = b.param("ui8", [case.groups, case.group // 2])
    scales = b.param(case.dtype, [case.groups])
    halves = [_emit(b, "bitwise_and", codes, 15), _emit(b, "shift_right", codes, 4)]
    steps = b.cast(b.concat(halves, axis=1), "si8") - 8
    return case.matrix(b, _emit(b, "dequantize", steps, scales, axis=0))


def _with_lows(b: Builder, case: Case) -> Value:
    """The same with a low end for each group."""
    shape = [case.groups, case.group]
    codes = b.param("ui8", [case.groups, case.group // 2])
    scales, lows = (b.param("f32", [case.groups, 1]) for _ in range(2))
    halves = [_emit(b, "bitwise_and", codes, 15), _emit(b, "shift_right", codes, 4)]
    steps = b.cast(b.concat(halves, axis=1), "f32")
    return case.matrix(b, steps * b.broadcast_to(scales, shape) - b.broadcast_to(lows, shape))


def _pairs(b: Builder, case: Case) -> Value:
    """Neighbours share a byte."""
    codes = b.param("ui8", [case.columns, case.depth // 2, 1])
    scales = b.param(case.dtype, [case.groups, 1])
    halves = [_emit(b, "bitwise_and", codes, 15), _emit(b, "shift_right", codes, 4)]
    steps = b.cast(b.reshape(b.concat(halves, axis=2), [case.groups, case.group]), "f32") - 8.0
    scaled = steps * b.broadcast_to(b.cast(scales, "f32"), [case.groups, case.group])
    return case.matrix(b, scaled)


def _words(b: Builder, case: Case, dtype: str = "ui32") -> Value:
    """Eight neighbours share a word."""
    shape = [case.columns, case.depth // 8, 8]
    given, scales = b.param(dtype, [*shape[:2], 1]), b.param(case.dtype, [case.groups, 1])
    codes = b.broadcast_to(given, shape)
    shifts = b.iota(dtype, shape, 2) * 4
    steps = _emit(b, "bitwise_and", _emit(b, "shift_right", codes, shifts), 15)
    real = b.cast(b.cast(b.reshape(steps, [case.groups, case.group]), "si32") - 8, "f32")
    scaled = real * b.broadcast_to(b.cast(scales, "f32"), [case.groups, case.group])
    return case.matrix(b, scaled)


def _signed_words(b: Builder, case: Case) -> Value:
    """The same in words with a sign, whose shifts may not be negative."""
    return _words(b, case, "si32")


def _floats(b: Builder, case: Case) -> Value:
    """8-bit floats with one scale."""
    codes, scale = b.param("fp8_e4m3", [case.columns, case.depth]), b.param("f32", [])
    scales = b.broadcast_to(scale, [case.columns, case.depth])
    return b.cast(b.cast(codes, "f32") * scales, case.dtype)


def _converted(b: Builder, case: Case) -> Value:
    """Nothing is made of them but numbers: results are scaled instead."""
    return b.cast(b.param("si8", [case.columns, case.depth]), case.dtype)


def _across(b: Builder, case: Case) -> Value:
    """Neighbours in memory are columns."""
    codes, scales = b.param("si8", [case.depth, case.columns]), b.param(case.dtype, [case.columns])
    w = _emit(b, "dequantize", codes, scales, axis=1)
    return b.transpose(w, [1, 0])


_WEIGHTS: dict[str, Callable[[Builder, Case], Value]] = {
    "bytes": _bytes,
    "bytes in groups": _grouped_bytes,
    "halves of bytes": _halves,
    "halves of bytes, lows": _with_lows,
    "pairs": _pairs,
    "words": _words,
    "signed words": _signed_words,
    "floats": _floats,
    "converted": _converted,
    "across": _across,
}
CASES: dict[str, Case] = {
    "bytes": Case(),
    "one row": Case(rows=1),
    "one row, halves of bytes": Case(rows=1, weights="halves of bytes"),
    "bytes in groups": Case(weights="bytes in groups"),
    "bytes in groups of 32, f16": Case(weights="bytes in groups", group=32, dtype="f16"),
    "halves of bytes": Case(rows=16, weights="halves of bytes"),
    "halves of bytes in groups of 32": Case(rows=9, weights="halves of bytes", group=32),
    "halves of bytes in groups of 16": Case(weights="halves of bytes", group=16),
    "lows": Case(weights="halves of bytes, lows", group=32),
    "pairs": Case(weights="pairs"),
    "words": Case(weights="words"),
    "signed words": Case(weights="signed words"),
    "floats": Case(weights="floats"),
    "results scaled": Case(weights="converted", end="scaled"),
    "results scaled, one row": Case(rows=1, weights="converted", end="scaled"),
    "many rows": Case(rows=64, weights="halves of bytes"),
    "odd columns": Case(rows=3, columns=261),
    "long sums": Case(rows=3, columns=261, depth=1024, weights="halves of bytes"),
    "long sums of bytes": Case(rows=9, depth=1024, weights="bytes in groups"),
    "bias and silu": Case(end="bias, silu"),
    "two results": Case(end="two results", weights="halves of bytes"),
}


def gated(rows: int) -> Program:
    """Two weights and a row, as the first half of a layer of a language model has them."""
    case = Case(rows=rows, weights="bytes")
    b = Builder("gate and up")
    x = b.param(case.dtype, [rows, case.depth])
    codes = [b.param("si8", [case.columns, case.depth]) for _ in range(2)]
    scales = [b.param(case.dtype, [case.columns]) for _ in range(2)]
    made = [
        b.dot_general(x, w, contract=([1], [1]), accum_dtype="f32", out_dtype=case.dtype)
        for w in (_emit(b, "dequantize", *pair, axis=0) for pair in zip(codes, scales, strict=True))
    ]
    return b.build(b.silu(made[0]) * made[1])
