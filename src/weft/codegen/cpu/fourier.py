"""Discrete Fourier transforms as LLVM code, in the steps of `foundation.fourier_steps`.

Between steps real and imaginary parts lie apart, in the memory of the result and in as much beside
it by turns. The first step goes along a row, whose results it turns round; the others go along the
columns, of which there are several by then. The other sign is the same transform with real and
imaginary parts exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.ir import Fourier
from weft.codegen.cpu.transposing import transposed
from weft.foundation.fourier_steps import Step, steps_of

Pair: TypeAlias = tuple[Val, Val]
"""A vector of real parts, and one of imaginary ones."""
_QUARTERS: Final = 4


def transform_row(code: Code, scalar: str, stmt: Fourier, row: Val, pointers: list[str]) -> None:
    """A call of the function that transforms a row."""
    first = code.binary("mul", row, _at(2 * stmt.length))
    rows = (code.pointer(pointers[n], scalar, first) for n in (stmt.x, stmt.out))
    places = (*rows, pointers[stmt.work], pointers[stmt.roots])
    name = fourier_function(
        code, scalar, stmt.length, stmt.lanes, inverse=stmt.inverse, divided=stmt.divided
    )
    code.line(f"call void @{name}({', '.join(f'ptr {place}' for place in places)})")


def fourier_function(
    code: Code, scalar: str, size: int, lanes: int, *, inverse: bool, divided: bool = False
) -> str:
    """The name of the function `void (x, result, other memory, roots)` for one row."""
    name = f"fourier_{size}_{scalar}" + "_inverse" * inverse + "_divided" * divided
    if name not in code.functions:
        row = _Row(Code(), scalar, size, lanes, inverse, divided)
        row.write()
        code.declared.update(row.code.declared)
        code.functions.update(row.code.functions)
        places = ", ".join(f"ptr noalias %{place}" for place in ("x", "y", "work", "roots"))
        head = f"define internal void @{name}({places}) nounwind {{"
        code.functions[name] = f"{head}\nentry:\n{row.code.text()}\n  ret void\n}}"
    return name


def _at(value: int) -> Val:
    return number(value, "i64")


@dataclass
class _Row:
    code: Code
    scalar: str
    size: int
    lanes: int
    inverse: bool
    divided: bool

    def write(self) -> None:
        steps = steps_of(self.size)
        source = "%x"
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            left = len(steps) - 1 - steps.index(step)
            target = "%work" if left % 2 else "%y"
            if step.columns == 1:
                self._first(step, target)
            else:
                self._along_columns(step, source, target, is_last=following is None)
            source = target

    # -- the first step --------------------------------------------------------------------------

    def _first(self, step: Step, target: str) -> None:
        """Vectors along the row."""
        lanes = _power_below(min(max(self.lanes, step.factor), step.rest))

        def several(start: Val) -> None:
            inputs = [self._read_row(self._plus(start, q * step.rest), lanes)
                      for q in range(step.factor)]  # fmt: skip
            sums = self._transform_few(inputs)
            for p in range(1, step.factor):
                place = step.table + 2 * (p - 1) * step.rest
                root = [self._load("%roots", self._plus(start, place + side), lanes)
                        for side in (0, step.rest)]  # fmt: skip
                sums[p] = self._times(sums[p], root[0], root[1])
            self._write_turned(sums, target, self.code.binary("mul", start, _at(step.factor)))

        self._each(step.rest, lanes, several)

    def _read_row(self, index: Val, lanes: int) -> Pair:
        """Elements of the row, whose parts lie side by side."""
        twice = self.code.binary("shl", index, _at(1))
        both = self._load("%x", twice, 2 * lanes)
        real, imag = self.code.apart(both)
        return (imag, real) if self.inverse else (real, imag)

    def _write_turned(self, sums: Sequence[Pair], target: str, first: Val) -> None:
        for side in (0, 1):
            rows = transposed(self.code, [pair[side] for pair in sums])
            for lane, row in enumerate(rows):
                self._store(row, target, self._plus(first, side * self.size + lane * len(sums)))

    # -- the others ------------------------------------------------------------------------------

    def _along_columns(self, step: Step, source: str, target: str, *, is_last: bool) -> None:
        lanes = _power_below(min(self.lanes, step.columns))
        apart = step.rest * step.columns

        def element(j: Val) -> None:
            roots = [self._roots(step, j, p) for p in range(1, step.factor)] if apart else []
            here = self.code.binary("mul", j, _at(step.columns))
            there = self.code.binary("mul", j, _at(step.columns * step.factor))

            def several(column: Val) -> None:
                start = self.code.binary("add", here, column)
                inputs = [self._read_columns(source, self._plus(start, q * apart), lanes)
                          for q in range(step.factor)]  # fmt: skip
                sums = self._transform_few(inputs)
                to = self.code.binary("add", there, column)
                for p, pair in enumerate(sums):
                    turned = self._times(pair, *roots[p - 1]) if p and step.roots else pair
                    self._write_columns(
                        turned, target, self._plus(to, p * step.columns), is_last=is_last
                    )

            self._each(step.columns, lanes, several)

        if step.rest == 1:
            element(_at(0))
        else:
            self.code.loop(_at(0), _at(step.rest), 1, element)

    def _roots(self, step: Step, j: Val, p: int) -> Pair:
        """The root of an element and a result; nothing where all are one."""
        if not step.roots:
            return _at(0), _at(0)
        first = self.code.binary("mul", j, _at(2 * (step.factor - 1)))
        real, imag = (
            self._load("%roots", self._plus(first, step.table + 2 * (p - 1) + side), 1)
            for side in (0, 1)
        )
        return real, imag

    def _read_columns(self, source: str, index: Val, lanes: int) -> Pair:
        imag = self._plus(index, self.size)
        return self._load(source, index, lanes), self._load(source, imag, lanes)

    def _write_columns(self, pair: Pair, target: str, index: Val, *, is_last: bool) -> None:
        if not is_last:
            self._store(pair[0], target, index)
            self._store(pair[1], target, self._plus(index, self.size))
            return
        pair = self._scale_pair(pair, 1 / self.size) if self.divided else pair
        real, imag = reversed(pair) if self.inverse else pair
        order = ", ".join(f"i32 {n}, i32 {real.lanes + n}" for n in range(real.lanes))
        lanes = 2 * real.lanes
        text = f"shufflevector {real}, {imag}, <{lanes} x i32> <{order}>"
        both = self.code.assign(text, self.scalar, lanes)
        self._store(both, target, self.code.binary("shl", index, _at(1)))

    # -- memory ----------------------------------------------------------------------------------

    def _each(self, count: int, lanes: int, body: Callable[[Val], None]) -> None:
        """Vectors from the first element to the last; the last one may overlap the one before."""
        if count == lanes:
            body(_at(0))
            return

        def several(index: Val) -> None:
            whole = count % lanes == 0
            last = _at(count - lanes)
            body(index if whole else self.code.intrinsic("llvm.smin", index, last))

        self.code.loop(_at(0), _at(count), lanes, several)

    def _plus(self, index: Val, step: int) -> Val:
        return self.code.binary("add", index, _at(step)) if step else index

    def _load(self, place: str, index: Val, lanes: int) -> Val:
        return self.code.load(self.scalar, self.code.pointer(place, self.scalar, index), lanes, 4)

    def _store(self, value: Val, place: str, index: Val) -> None:
        self.code.store(value, self.code.pointer(place, self.scalar, index), 4)

    # -- arithmetic ------------------------------------------------------------------------------

    def _transform_few(self, x: list[Pair]) -> list[Pair]:
        """The transform of a few numbers."""
        size = len(x)
        if size == 1:
            return x
        if size % 2:
            return self._odd_sums(x)
        even, odd = self._transform_few(x[::2]), self._transform_few(x[1::2])
        turned = [self._turn(pair, p, size) for p, pair in enumerate(odd)]
        both = list(zip(even, turned, strict=True))
        return [
            *(self._plus_pair("fadd", a, b) for a, b in both),
            *(self._plus_pair("fsub", a, b) for a, b in both),
        ]

    def _odd_sums(self, x: list[Pair]) -> list[Pair]:
        """Numbers q and size - q are multiplied by roots that are conjugates."""
        size, half = len(x), len(x) // 2
        sums = [self._plus_pair("fadd", x[q], x[size - q]) for q in range(1, half + 1)]
        less = [self._plus_pair("fsub", x[q], x[size - q]) for q in range(1, half + 1)]
        first = x[0]
        for pair in sums:
            first = self._plus_pair("fadd", first, pair)
        found = [first] * size
        for p in range(1, half + 1):
            even, odd = x[0], None
            for q, (total, rest) in enumerate(zip(sums, less, strict=True), 1):
                angle = 2 * math.pi * (p * q % size) / size
                even = self._plus_pair("fadd", even, self._scale_pair(total, math.cos(angle)))
                part = self._scale_pair(rest, math.sin(angle))
                odd = part if odd is None else self._plus_pair("fadd", odd, part)
            if odd is not None:
                # Times -i.
                turned = odd[1], self._scale_pair(odd, -1.0)[0]
                found[p] = self._plus_pair("fadd", even, turned)
                found[size - p] = self._plus_pair("fsub", even, turned)
        return found

    def _plus_pair(self, op: str, a: Pair, b: Pair) -> Pair:
        return self.code.binary(op, a[0], b[0]), self.code.binary(op, a[1], b[1])

    def _scale_pair(self, x: Pair, factor: float) -> Pair:
        times = number(factor, self.scalar)
        return self.code.binary("fmul", x[0], times), self.code.binary("fmul", x[1], times)

    def _times(self, x: Pair, real: Val, imag: Val) -> Pair:
        binary = self.code.binary
        first = binary("fsub", binary("fmul", x[0], real), binary("fmul", x[1], imag))
        second = binary("fadd", binary("fmul", x[0], imag), binary("fmul", x[1], real))
        return first, second

    def _turn(self, x: Pair, p: int, size: int) -> Pair:
        """Times exp(-2 pi i p / size), for less than half a turn."""
        if p == 0:
            return x
        if _QUARTERS * p == size:
            return x[1], self._scale_pair(x, -1.0)[0]
        angle = -2 * math.pi * p / size
        real, imag = (number(part, self.scalar) for part in (math.cos(angle), math.sin(angle)))
        return self._times(x, real, imag)


def _power_below(count: int) -> int:
    """The largest power of two that is no greater."""
    return 1 << (count.bit_length() - 1)
