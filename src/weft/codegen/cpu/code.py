"""LLVM IR as text, one instruction a line: values, constants, intrinsics, blocks, loops.

A `Val` is an SSA name with its scalar type and number of lanes; operations on a scalar and a vector
spread the scalar first. An instruction that stands already where it can be used is not written
again, and one that is the same in every turn of a loop is written before it: LLVM would find both
too, at many times the cost. Nothing here knows about kernels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from weft.codegen.cpu.folding import are_in_order, converted, folded, number_text
from weft.foundation.errors import InternalError
from weft.foundation.memo import memo

RARE = 1
"""The number of the node that says how likely the first way of a branch is."""
_SUFFIX = {"float": "f32", "double": "f64"}
_MOST_GATHERED = 32
"""Lanes that a loop whose addresses LLVM rewrites may gather one by one: it compares the ways to
compute each of them with one another, and what is saved is little beside the loads."""
_NAMES = re.compile(r"%[\w.]+")
"""The values that an instruction takes."""


class Val(NamedTuple):
    """A value: its text, its scalar type, and how many lanes it has."""

    text: str
    scalar: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


def type_of(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def number(value: bool | int | float, scalar: str, lanes: int = 1) -> Val:
    """A constant."""
    if scalar in ("float", "double"):
        wide = struct.unpack("<f", struct.pack("<f", value))[0] if scalar == "float" else value
        text = f"0x{struct.unpack('<Q', struct.pack('<d', wide))[0]:016X}"
    else:
        text = number_text(value, scalar)
    return Val(text if lanes == 1 else f"splat ({scalar} {text})", scalar, lanes)


def multiples(step: int, scalar: str, lanes: int) -> Val:
    """The vector 0, step, 2 step, ..."""
    parts = (number(step * lane, scalar) for lane in range(lanes))
    return Val(f"<{', '.join(map(str, parts))}>", scalar, lanes)


@dataclass(slots=True)
class _Part:
    """A part of a function that is not carried out just once: a loop, or what may be skipped."""

    is_loop: bool
    before: list[str] = field(default_factory=list)
    """Instructions that go before a loop."""
    known: list[str] = field(default_factory=list)
    """The texts of instructions that are known inside alone."""


class Code:
    """The body of one function under construction."""

    def __init__(self) -> None:
        self.entry: list[str] = []
        self.lines: list[str] = []
        """Instructions and labels; before each loop an item with all that is written before it."""
        self.declared: dict[str, str] = {}
        self.functions: dict[str, str] = {}
        self.block = "entry"
        self._count = 0
        self._gathered = 0
        """Lanes that were put into vectors one by one."""
        self._known: dict[str, Val] = {}
        """The instructions that can be used here, by their text."""
        self._parts: list[_Part] = []
        """The parts around this place, the outermost first."""
        self._depths: dict[str, int] = {}
        """How many parts there are around the values that are made inside of some."""

    # -- lines and names -------------------------------------------------------------------------

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def text(self) -> str:
        """All of it."""
        return "\n".join(filter(None, (*self.entry, *self.lines)))

    def starts(self, first: int) -> list[int]:
        """The line of the text at which each item of `lines` begins, and where the last one ends;
        the text begins at a line."""
        counts = (1 + line.count("\n") if line else 0 for line in self.lines)
        return list(accumulate(counts, initial=first + len(self.entry)))

    def assign(self, text: str, scalar: str, lanes: int = 1) -> Val:
        """The result of an instruction that touches no memory: the same text is the same value."""
        found = self._known.get(text)
        if found is None:
            depth = self._depth_of(text) if self._parts else 0
            found = self._known[text] = self._write_value(text, scalar, lanes, depth)
            if depth:
                self._parts[depth - 1].known.append(text)
        return found

    def _depth_of(self, text: str) -> int:
        """How many parts are around the place where an instruction is written: outside of loops in
        which its operands stay the same."""
        depths, depth = self._depths, len(self._parts)
        if not self._parts[-1].is_loop or text.startswith("phi"):
            return depth
        inner = max([depths.get(name, 0) for name in _NAMES.findall(text)], default=0)
        while depth > inner and self._parts[depth - 1].is_loop:
            depth -= 1
        return depth

    def result(self, text: str, scalar: str, lanes: int = 1) -> Val:
        """The result of an instruction that is written now, whatever stands already."""
        return self._write_value(text, scalar, lanes, len(self._parts))

    def _write_value(self, text: str, scalar: str, lanes: int, depth: int) -> Val:
        self._count += 1
        name = f"%v{self._count}"
        if depth:
            self._depths[name] = depth
        where = self.lines if depth == len(self._parts) else self._parts[depth].before
        where.append(f"  {name} = {text}")
        return Val(name, scalar, lanes)

    @contextmanager
    def inside(self, is_loop: bool = False) -> Iterator[_Part]:
        """Around code that may be skipped or is a loop: what it computes is not known
        afterwards."""
        part = _Part(is_loop)
        self._parts.append(part)
        yield part
        self._parts.pop()
        for text in part.known:
            del self._known[text]

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def alloca(self, kind: str, count: int = 1) -> str:
        """Memory of the function's frame, taken once on entry."""
        name = self.fresh()
        size = f", i64 {count}" if count != 1 else ""
        self.entry.append(f"  {name} = alloca {kind}{size}, align 64")
        return name

    # -- operations ------------------------------------------------------------------------------

    def spread(self, value: Val, lanes: int) -> Val:
        """The value with that many lanes."""
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise InternalError(f"{value} cannot have {lanes} lanes")
        if not value.text.startswith("%"):
            return Val(f"splat ({value.scalar} {value.text})", value.scalar, lanes)
        first, mask = self.gather_lanes([value], lanes), type_of("i32", lanes)
        return self.assign(
            f"shufflevector {first}, {first.type} poison, {mask} zeroinitializer",
            value.scalar,
            lanes,
        )

    def level(self, *values: Val) -> list[Val]:
        """The values with equal lanes."""
        lanes = max([value.lanes for value in values])
        return [self.spread(value, lanes) for value in values]

    def binary(self, op: str, a: Val, b: Val) -> Val:
        if a.lanes != b.lanes:
            a, b = self.level(a, b)
        elif a.lanes == 1:
            known = folded(op, a.scalar, a.text, b.text)
            if known is not None:
                return Val(known, a.scalar)
        flags = " contract" if op in ("fadd", "fsub", "fmul") else ""
        return self.assign(f"{op}{flags} {a.type} {a.text}, {b.text}", a.scalar, a.lanes)

    def compare(self, op: str, a: Val, b: Val) -> Val:
        """`op` is an LLVM predicate with its instruction: `fcmp olt`, `icmp slt`."""
        a, b = self.level(a, b)
        known = folded(op, a.scalar, a.text, b.text) if a.lanes == 1 else None
        if known is not None:
            return Val(known, "i1")
        return self.assign(f"{op} {a}, {b.text}", "i1", a.lanes)

    def select(self, pred: Val, x: Val, y: Val) -> Val:
        if pred.text in ("true", "false"):
            x, y = self.level(x, y)
            return x if pred.text == "true" else y
        pred, x, y = self.level(pred, x, y)
        return self.assign(f"select {pred}, {x}, {y}", x.scalar, x.lanes)

    def convert(self, op: str, value: Val, scalar: str) -> Val:
        known = converted(op, value.scalar, value.text, scalar) if value.lanes == 1 else None
        if known is not None:
            return Val(known, scalar)
        kind = type_of(scalar, value.lanes)
        return self.assign(f"{op} {value} to {kind}", scalar, value.lanes)

    def intrinsic(self, name: str, *args: Val) -> Val:
        """An overloaded intrinsic on one type, such as `llvm.fma`."""
        values = self.level(*args)
        if len(values) == 2 and values[0].lanes == 1:
            known = folded(name, values[0].scalar, values[0].text, values[1].text)
            if known is not None:
                return Val(known, values[0].scalar)
        kind = values[0].type
        scalar = _SUFFIX.get(values[0].scalar, values[0].scalar)
        suffix = scalar if values[0].lanes == 1 else f"v{values[0].lanes}{scalar}"
        full = f"{name}.{suffix}"
        self.declared[full] = f"declare {kind} @{full}({', '.join([kind] * len(values))})"
        operands = ", ".join(map(str, values))
        return self.assign(f"call {kind} @{full}({operands})", values[0].scalar, values[0].lanes)

    def intrinsic_to(self, name: str, value: Val, scalar: str) -> Val:
        """An intrinsic that converts, such as `llvm.fptosi.sat`."""
        kind = type_of(scalar, value.lanes)
        vector = "" if value.lanes == 1 else f"v{value.lanes}"
        full = f"{name}.{vector}{_SUFFIX.get(scalar, scalar)}.{vector}{_SUFFIX[value.scalar]}"
        self.declared[full] = f"declare {kind} @{full}({value.type})"
        return self.assign(f"call {kind} @{full}({value})", scalar, value.lanes)

    def intrinsic_scalar(self, name: str, value: Val) -> Val:
        """An intrinsic that makes one number of a vector, such as `llvm.vector.reduce.or`."""
        scalar = _SUFFIX.get(value.scalar, value.scalar)
        full = f"{name}.v{value.lanes}{scalar}"
        self.declared[full] = f"declare {value.scalar} @{full}({value.type})"
        return self.assign(f"call {value.scalar} @{full}({value})", value.scalar)

    def dot(self, name: str, total: Val, a: Val, b: Val) -> Val:
        """An instruction that adds to each of four lanes what four products of bytes are."""
        full, kind = f"{name}.v4i32.v16i8", type_of("i8", 16)
        self.declared[full] = f"declare {total.type} @{full}({total.type}, {kind}, {kind})"
        sides = [self.assign(f"bitcast {side} to {kind}", "i8", 16) for side in (a, b)]
        operands = ", ".join(map(str, (total, *sides)))
        return self.assign(f"call {total.type} @{full}({operands})", total.scalar, total.lanes)

    def instruction(self, name: str, args: Sequence[Val], mask: Val | None, *constants: int) -> Val:
        """An instruction of AVX-512 on whole registers, such as `scalef`; 0 outside of a mask."""
        x = args[0]
        width = x.lanes * (32 if x.scalar == "float" else 64)
        bits = f"i{max(8, x.lanes)}"
        full = f"llvm.x86.avx512.mask.{name}.{'ps' if x.scalar == 'float' else 'pd'}.{width}"
        lanes = number(-1, bits) if mask is None else self.assign(f"bitcast {mask} to {bits}", bits)
        numbers = [number(n, "i32") for n in constants]
        # The last number: rounded as usual.
        usual = [number(4, "i32")] if width == 512 else []
        operands = [*args, *numbers, number(0.0, x.scalar, x.lanes), lanes, *usual]
        kinds = ", ".join(operand.type for operand in operands)
        self.declared[full] = f"declare {x.type} @{full}({kinds})"
        text = f"call {x.type} @{full}({', '.join(map(str, operands))})"
        return self.assign(text, x.scalar, x.lanes)

    def function(self, name: str, body: Callable[..., Val], *args: Val, rare: bool = False) -> Val:
        """A call of a function of values of one type that `body` writes, once per type; one that is
        rarely called is never copied to where it is."""
        values = self.level(*args)
        x = values[0]
        full = f"{name}_{x.scalar}_{x.lanes}"
        if full not in self.functions:
            functions, declared = _write_function(full, body, x.scalar, x.lanes, len(values), rare)
            for one, text in functions.items():
                self.functions.setdefault(one, text)
            self.declared.update(declared)
        operands = ", ".join(map(str, values))
        return self.assign(f"call {x.type} @{full}({operands})", x.scalar, x.lanes)

    def lane(self, value: Val, index: int) -> Val:
        if value.lanes == 1:
            return value
        return self.assign(f"extractelement {value}, i64 {index}", value.scalar)

    def apart(self, value: Val) -> tuple[Val, Val]:
        """The even lanes of a vector of four or more, and the odd ones."""
        lanes, kind = value.lanes // 2, value.type
        masks = (", ".join(f"i32 {2 * n + odd}" for n in range(lanes)) for odd in (0, 1))
        even, odd = (
            self.assign(
                f"shufflevector {value}, {kind} poison, <{lanes} x i32> <{mask}>",
                value.scalar,
                lanes,
            )
            for mask in masks
        )
        return even, odd

    def gather_lanes(self, parts: list[Val], lanes: int = 0) -> Val:
        """A vector from scalars; its lanes beyond them hold anything."""
        lanes, scalar = lanes or len(parts), parts[0].scalar
        if len(parts) == lanes and not any(part.text[0] == "%" for part in parts):
            return Val(f"<{', '.join(map(str, parts))}>", scalar, lanes)
        text = "poison"
        self._gathered += len(parts) if len(parts) > 1 else 0
        kind = type_of(scalar, lanes)
        for index, part in enumerate(parts):
            inserted = f"insertelement {kind} {text}, {part}, i64 {index}"
            text = self.assign(inserted, scalar, lanes).text
        return Val(text, scalar, lanes)

    def joined(self, parts: list[Val]) -> Val:
        """Vectors of equal lanes one after the other; their number is a power of two."""
        while len(parts) > 1:
            lanes, scalar = parts[0].lanes, parts[0].scalar
            mask = ", ".join(f"i32 {lane}" for lane in range(2 * lanes))
            parts = [
                self.assign(
                    f"shufflevector {a}, {b}, <{2 * lanes} x i32> <{mask}>", scalar, 2 * lanes
                )
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    # -- memory ----------------------------------------------------------------------------------

    def pointer(self, base: str, kind: str, index: Val) -> str:
        return self.assign(f"getelementptr inbounds {kind}, ptr {base}, {index}", "ptr").text

    def load(self, kind: str, pointer: str, lanes: int, align: int, scope: str = "") -> Val:
        loaded = type_of(kind, lanes)
        return self.result(f"load {loaded}, ptr {pointer}, align {align}{scope}", kind, lanes)

    def far_pointer(self, base: str, kind: str, index: Val) -> str:
        """A place that may lie beyond the buffer."""
        return self.assign(f"getelementptr {kind}, ptr {base}, {index}", "ptr").text

    def masked_load(self, kind: str, pointer: str, mask: Val, fill: Val, align: int) -> Val:
        """Neighbours where the mask holds, and the fill elsewhere."""
        loaded, lanes = type_of(kind, mask.lanes), mask.lanes
        full = f"llvm.masked.load.v{lanes}{_SUFFIX.get(kind, kind)}.p0"
        self.declared[full] = f"declare {loaded} @{full}(ptr, i32, {mask.type}, {loaded})"
        call = f"call {loaded} @{full}(ptr {pointer}, i32 {align}, {mask}, {fill})"
        return self.result(call, kind, lanes)

    def masked_store(self, value: Val, pointer: str, mask: Val, align: int) -> None:
        """The lanes of a vector for which a mask holds; nothing in the place of the others."""
        full = f"llvm.masked.store.v{value.lanes}{_SUFFIX.get(value.scalar, value.scalar)}.p0"
        self.declared[full] = f"declare void @{full}({value.type}, ptr, i32, {mask.type})"
        self.line(f"call void @{full}({value}, ptr {pointer}, i32 {align}, {mask})")

    def prefetch(self, place: str, *, writes: bool = False) -> None:
        """A hint that memory near a place, which need not exist, will be read or written once."""
        self.declared["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.line(f"call void @llvm.prefetch.p0(ptr {place}, i32 {int(writes)}, i32 3, i32 1)")

    def store(self, value: Val, pointer: str, align: int, scope: str = "") -> None:
        self.line(f"store {value}, ptr {pointer}, align {align}{scope}")

    # -- control ---------------------------------------------------------------------------------

    def loop(
        self,
        start: Val,
        stop: Val,
        step: int,
        body: Callable[[Val], None],
        *,
        rewritten: bool = True,
    ) -> None:
        """`for i in range(start, stop, step)`. Whether there is a first turn is asked before the
        loop, and whether there is another one at the end of each, as processors do it. One that is
        not to be rewritten keeps its addresses as they are written: LLVM does not see that the
        index moves evenly, and so does not look for cheaper ways to compute them, alone and
        together with those of all loops around."""
        self._count += 1
        inside, leave = (f"{part}{self._count}" for part in ("body", "exit"))
        before, outside = self.block, len(self.lines)
        self.lines.append("")
        if are_in_order(start.text, stop.text):
            self.line(f"br label %{inside}")
        else:
            self._branch_to(start, stop, inside, leave)
        self.label(inside)
        index, following = self.fresh(), self.fresh()
        place, gathered = len(self.lines), self._gathered
        self.line("")
        with self.inside(is_loop=True) as part:
            self._depths[index] = self._depths[following] = len(self._parts)
            body(Val(index, "i64"))
            few = self._gathered - gathered <= _MOST_GATHERED
            moved = index if rewritten and few else self._hide(index)
            self.line(f"{following} = add nsw i64 {moved}, {step}")
            after = self.block
            self._branch_to(Val(following, "i64"), stop, inside, leave)
        self.lines[place] = (
            f"  {index} = phi i64 [ {start.text}, %{before} ], [ {following}, %{after} ]"
        )
        self.lines[outside] = "\n".join(part.before)
        self.label(leave)

    def _hide(self, index: str) -> str:
        """The same number, of which LLVM's analysis of loops does not know that it is; there is no
        instruction for it in the end."""
        self.declared["llvm.expect.i64"] = "declare i64 @llvm.expect.i64(i64, i64)"
        return self.result(f"call i64 @llvm.expect.i64(i64 {index}, i64 0)", "i64").text

    def _branch_to(self, index: Val, stop: Val, inside: str, leave: str) -> None:
        """Into a loop where an index is before its end, else out of it."""
        going = self.compare("icmp slt", index, stop)
        self.line(f"br {going}, label %{inside}, label %{leave}")

    def leave(self, pred: Val, label: str) -> None:
        """Go on at a label of the function where `pred`, a single i1, holds."""
        self._count += 1
        stay = f"stay{self._count}"
        self.line(f"br {pred}, label %{label}, label %{stay}")
        self.label(stay)

    def when(self, pred: Val, body: Callable[[], None]) -> None:
        """`body` where `pred`, a single i1, holds."""
        self._count += 1
        inside, leave = f"then{self._count}", f"done{self._count}"
        self.line(f"br {pred}, label %{inside}, label %{leave}")
        self.label(inside)
        with self.inside():
            body()
        self.line(f"br label %{leave}")
        self.label(leave)

    def either(self, pred: Val, body: Callable[[], None], other: Callable[[], None]) -> None:
        """`body` where `pred`, a single i1, holds, else `other`."""
        self._count += 1
        ways = (f"then{self._count}", body), (f"else{self._count}", other)
        leave = f"done{self._count}"
        self.line(f"br {pred}, " + ", ".join(f"label %{name}" for name, _ in ways))
        for name, way in ways:
            self.label(name)
            with self.inside():
                way()
            self.line(f"br label %{leave}")
        self.label(leave)

    def unless(self, pred: Val, usual: Callable[[], Val], other: Callable[[], Val]) -> Val:
        """`other` where some lane holds `pred`, and `usual`, which is not computed then, where none
        does."""
        some = self.intrinsic_scalar("llvm.vector.reduce.or", pred) if pred.lanes > 1 else pred
        name = self.fresh()[1:]
        self.line(f"br {some}, label %{name}.rare, label %{name}.usual, !prof !{RARE}")
        found = []
        for way, body in (("rare", other), ("usual", usual)):
            self.label(f"{name}.{way}")
            with self.inside():
                value = body()
            found.append((value, self.block))
            self.line(f"br label %{name}.done")
        self.label(f"{name}.done")
        value = found[0][0]
        ways = ", ".join(f"[ {value.text}, %{block} ]" for value, block in found)
        return self.assign(f"phi {value.type} {ways}", value.scalar, value.lanes)

    def rarely(
        self, pred: Val, usual: Sequence[Val], other: Callable[[], Sequence[Val]]
    ) -> list[Val]:
        """`other` where some lane holds `pred`, else `usual`: the code of `other` is skipped by a
        branch, and has to choose lane by lane itself."""
        some = self.intrinsic_scalar("llvm.vector.reduce.or", pred) if pred.lanes > 1 else pred
        name = self.fresh()[1:]
        before = self.block
        self.line(f"br {some}, label %{name}.rare, label %{name}.done, !prof !{RARE}")
        self.label(f"{name}.rare")
        with self.inside():
            found = other()
        after = self.block
        self.line(f"br label %{name}.done")
        self.label(f"{name}.done")
        return [
            self.assign(
                f"phi {a.type} [ {a.text}, %{before} ], [ {b.text}, %{after} ]", a.scalar, a.lanes
            )
            for a, b in zip(usual, found, strict=True)
        ]


@memo(1 << 8)
def _write_function(
    full: str, body: Callable[..., Val], scalar: str, lanes: int, count: int, rare: bool
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """A function of `count` values of one type, after those that it calls, and what they declare:
    many programs call the same few."""
    inner = Code()
    names, kind = [f"%x{number}" for number in range(count)], type_of(scalar, lanes)
    result = body(inner, *(Val(name, scalar, lanes) for name in names))
    parameters = ", ".join(f"{kind} {name}" for name in names)
    how = "nounwind noinline cold" if rare else "nounwind"
    head = f"define internal {kind} @{full}({parameters}) {how} {{"
    inner.functions[full] = f"{head}\nentry:\n{inner.text()}\n  ret {result}\n}}"
    return inner.functions, inner.declared
