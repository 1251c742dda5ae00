"""Loop nests as text, one statement a line, and back.

routine k0 pieces=12
buffer 0 f32[64] write noalias
param $p0 = b2[0] in 0..5
parallel p1 in 0..12 {
  lanes j_l in 0..4 {
    load v0 = b0[4*p1 + j_l] if 0 <= j_l - 1 < 3 else 0.0
    let v1:f32 = exp(v0)
    store b1[4*p1 + j_l] = v1 at [4*p1 + j_l]
  }
}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, nan
from typing import NoReturn

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind, Scalar, Stmt
from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.index_expr import Guard, constant
from weft.foundation.index_text import parse_expr, parse_guard, parse_index
from weft.foundation.whole_numbers import read_whole
from weft.region.ir import Place

# -- printing ------------------------------------------------------------------------------------


def print_routines(routines: list[ir.Routine]) -> str:
    """The text of several routines."""
    return "\n".join(print_routine(routine) for routine in routines)


def print_routine(routine: ir.Routine) -> str:
    lines = [f"routine {routine.name} pieces={routine.pieces}"]
    for number, buffer in enumerate(routine.buffers):
        flags = " write" * buffer.written + " noalias" * buffer.noalias
        lines.append(f"buffer {number} {buffer.dtype}[{buffer.elements}]{flags}")
    for dtype, elements in routine.scratch:
        lines.append(f"scratch {dtype}[{elements}]")
    for p in routine.params:
        lines.append(f"param ${p.name} = b{p.buffer}[{p.element}] in {p.low}..{p.high}")
    lines += [f"reports {code}: {why}" for code, why in routine.checks]
    lines += _block_lines(routine.body, 0)
    return "\n".join(lines) + "\n"


def _block_lines(body: tuple[Stmt, ...], depth: int) -> list[str]:
    lines: list[str] = []
    for stmt in body:
        inner: tuple[Stmt, ...] | None = None
        if isinstance(stmt, ir.For):
            inner = stmt.body
        elif isinstance(stmt, ir.Merge):
            inner = stmt.combine
        opening = " {" if inner is not None else ""
        lines.append("  " * depth + statement_text(stmt) + opening)
        if inner is not None:
            lines += [*_block_lines(inner, depth + 1), "  " * depth + "}"]
    return lines


def statement_text(stmt: Stmt) -> str:
    """A statement on its line, without the body that it may have."""
    match stmt:
        case ir.For(var=var, start=start, stop=stop, step=step, kind=kind, end=end):
            by = f" by {step}" if step != 1 else ""
            below = f" below {end}" if end is not None else ""
            return f"{kind.value} {var} in {start}..{stop}{by}{below}"
        case ir.Load(name=name, buffer=buffer, address=address, guards=guards, fill=fill):
            condition = _condition(guards, fill)
            where = f" at [{', '.join(map(str, stmt.point))}]" if stmt.point else ""
            return (
                f"load {name} = b{buffer}[{address}]{condition}{where}{_places_text(stmt.places)}"
            )
        case ir.LoadRun(name=name, var=var, count=count, buffer=buffer, address=address):
            condition = _condition(stmt.guards, stmt.fill)
            return f"run {name} over {var}={count} = b{buffer}[{address}]{condition}"
        case ir.Prefetch(buffer=buffer, address=address):
            return f"prefetch b{buffer}[{address}]"
        case ir.Let(name=name, dtype=dtype):
            return f"let {name}:{dtype} = {_expression(stmt)}"
        case ir.Init(acc=acc, dtype=dtype, fn=fn, loops=loops, start=start):
            over = ", ".join(f"{var}={count} {kind.value}" for var, count, kind in loops)
            first = f" from {_scalar_text(start)}" if start is not None else ""
            return f"init {acc}:{dtype} {fn} over [{over}]{first}"
        case ir.Accumulate(acc=acc, value=value):
            return f"accumulate {acc} <- {value}"
        case ir.Finish(name=name, accs=accs):
            return f"finish {name} = {', '.join(accs)}"
        case ir.Current(name=name, acc=acc):
            return f"current {name} = {acc}"
        case ir.Assign(acc=acc, value=value):
            return f"assign {acc} <- {value}"
        case ir.Merge(names=names, carries=carries, parts=parts, merged=merged):
            sets = " ".join(f"({', '.join(part)})" for part in parts)
            lists = [", ".join(part) for part in (names, carries, merged)]
            return f"merge {lists[0]} of {lists[1]} from {sets} as {lists[2]}"
        case ir.Store(buffer=buffer, address=address, value=value, point=point):
            where = f"at [{', '.join(map(str, point))}]{_places_text(stmt.places)}"
            return f"store b{buffer}[{address}] = {value} {where}"
        case ir.Check(name=name, x=x, rule=rule, size=size, number=number, element=element):
            return f"check {name} = {x} {rule} {size} number {number} at {element}"
        case ir.Sort(x=x, out=out, work=work, row=row, piece=piece):
            way = " descending" if stmt.descending else ""
            rows = f"row {row} of b{out} = first {stmt.count} of {stmt.length} of b{x}"
            return f"sort {rows} in b{work} piece {piece}{way}"
        case ir.Tiles(sums=sums, a=a, b=b, rows=rows, columns=columns, words=words):
            how = "+=" if stmt.adds else "="
            several = f" in {stmt.parts} parts" if stmt.parts > 1 else ""
            return f"tiles b{sums} {how} {rows}x{columns}x{words} of b{a}, b{b}{several}"
        case ir.Turn(target=target, place=place, source=source, words=words):
            return f"turn b{target}[{place}] = {words} of b{source}"
        case ir.Words(name=name, seed=seed, offset=offset, element=element):
            return f"words {name} = {seed}, {offset} at {element}"


def _places_text(places: tuple[Place, ...]) -> str:
    if not places:
        return ""
    return " where " + ", ".join(f"${p.param} = {p.value} below {p.size}" for p in places)


def _expression(let: ir.Let) -> str:
    if let.fn == "const":
        return f"const {_scalar_text(let.value)}"
    if let.fn == "index":
        return f"index {let.index or constant(0)}"
    return f"{let.fn}({', '.join(let.args)})"


def _condition(guards: tuple[Guard, ...], fill: Scalar | None) -> str:
    return f" if {' and '.join(map(str, guards))} else {_scalar_text(fill)}" if guards else ""


def _scalar_text(value: Scalar | None) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else repr(value)


# -- parsing -------------------------------------------------------------------------------------


def parse_routines(text: str) -> list[ir.Routine]:
    """The routines of a text that `print_routines` wrote, or somebody edited."""
    return _Parser(text).routines()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lines: list[tuple[int, str]] = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#")
        ]
        self.at = 0

    def fail(self, why: str) -> NoReturn:
        number = self.lines[min(self.at, len(self.lines) - 1)][0] if self.lines else 1
        raise SpecViolation("MalformedText", why, where=f"line {number}")

    def match(self, pattern: str) -> re.Match[str] | None:
        """The current line, if it has this form; moves on."""
        if self.at >= len(self.lines):
            return None
        found = re.fullmatch(pattern, self.lines[self.at][1])
        self.at += found is not None
        return found

    def routines(self) -> list[ir.Routine]:
        found = []
        while self.at < len(self.lines):
            head = self.match(r"routine (\w+) pieces=(\d+)")
            if head is None:
                self.fail("expected 'routine NAME pieces=N'")
            buffers, scratch = tuple(self._buffers()), tuple(self._scratch())
            params, checks = tuple(self._params()), tuple(self._checks())
            body = self._block(top=True)
            found.append(
                ir.Routine(head[1], buffers, self._whole(head[2]), body, params, scratch, checks)
            )
        return found

    def _buffers(self) -> Iterator[ir.BufferArg]:
        while m := self.match(r"buffer \d+ (\w+)\[(\d+)\]( write)?( noalias)?"):
            yield ir.BufferArg(self._dtype(m[1]), self._whole(m[2]), bool(m[3]), bool(m[4]))

    def _scratch(self) -> Iterator[tuple[DType, int]]:
        while m := self.match(r"scratch (\w+)\[(\d+)\]"):
            yield self._dtype(m[1]), self._whole(m[2])

    def _params(self) -> Iterator[ir.ParamArg]:
        while m := self.match(r"param \$([\w.]+) = b(\d+)\[(\d+)\] in (-?\d+)\.\.(-?\d+)"):
            yield ir.ParamArg(m[1], *(self._whole(m[i]) for i in range(2, 6)))

    def _checks(self) -> Iterator[tuple[str, str]]:
        while m := self.match(r"reports (\w+): (.+)"):
            yield m[1], m[2]

    def _places(self, text: str | None) -> tuple[Place, ...]:
        found = re.findall(r"\$([\w.]+) = ([\w.]+) below (\d+)", text or "")
        return tuple(Place(name, value, self._whole(size)) for name, value, size in found)

    def _block(self, *, top: bool = False) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        while True:
            if self.at >= len(self.lines) or (
                top and self.lines[self.at][1].startswith("routine ")
            ):
                if not top:
                    self.fail("a '}' is missing")
                return tuple(found)
            if self.match(r"\}"):
                if top:
                    self.fail("there is a '}' too many before here")
                return tuple(found)
            found.append(self._statement())

    def _statement(self) -> Stmt:
        kinds = "|".join(kind.value for kind in LoopKind)
        if m := self.match(
            rf"({kinds}) ([\w.]+) in (.+?)\.\.(.+?)(?: by (\d+))?(?: below (\d+))? \{{"
        ):
            start, stop = parse_expr(m[3]), parse_expr(m[4])
            step, end = self._whole(m[5] or "1"), self._whole(m[6]) if m[6] else None
            return ir.For(m[2], start, stop, step, LoopKind(m[1]), self._block(), end)
        if m := self.match(
            r"load ([\w.]+) = b(\d+)\[(.+?)\](?: if (.+) else (\S+))?(?: at \[(.+)\])?( where .+)?"
        ):
            condition = self._condition(m[4], m[5])
            point = parse_index(m[6].split(", ")) if m[6] else ()
            number, places = self._whole(m[2]), self._places(m[7])
            return ir.Load(m[1], number, parse_expr(m[3]), *condition, places, point)
        if m := self.match(
            r"run ([\w.]+) over ([\w.]+)=(\d+) = b(\d+)\[(.+?)\](?: if (.+) else (\S+))?"
        ):
            condition = self._condition(m[6], m[7])
            return ir.LoadRun(
                m[1], m[2], self._whole(m[3]), self._whole(m[4]), parse_expr(m[5]), *condition
            )
        if m := self.match(r"prefetch b(\d+)\[(.+)\]"):
            return ir.Prefetch(self._whole(m[1]), parse_expr(m[2]))
        if m := self.match(r"store b(\d+)\[(.+?)\] = ([\w.]+) at \[(.*)\]( where .+)?"):
            point = parse_index(m[4].split(", ")) if m[4] else ()
            return ir.Store(self._whole(m[1]), parse_expr(m[2]), m[3], point, self._places(m[5]))
        if m := self.match(r"check (\S+) = (\S+) (\w+) (\d+) number (\d+) at (.+)"):
            element = parse_expr(m[6])
            return ir.Check(m[1], m[2], m[3], self._whole(m[4]), self._whole(m[5]), element)
        if m := self.match(
            r"sort row (.+) of b(\d+) = first (\d+) of (\d+) of b(\d+) in b(\d+) piece (.+?)"
            r"( descending)?"
        ):
            row, piece = parse_expr(m[1]), parse_expr(m[7])
            out, count, length, x, work = (self._whole(m[i]) for i in range(2, 7))
            return ir.Sort(x, out, work, row, piece, length, count, bool(m[8]))
        if m := self.match(
            r"tiles b(\d+) (\+?=) (\d+)x(\d+)x(\d+) of b(\d+), b(\d+)(?: in (\d+) parts)?"
        ):
            sums, rows, columns, words, a, b = (self._whole(m[i]) for i in (1, 3, 4, 5, 6, 7))
            parts = self._whole(m[8] or "1")
            return ir.Tiles(sums, a, b, rows, columns, words, m[2] == "+=", parts)
        if m := self.match(r"turn b(\d+)\[(.+)\] = (\d+) of b(\d+)"):
            target, words, source = (self._whole(m[i]) for i in (1, 3, 4))
            return ir.Turn(target, parse_expr(m[2]), source, words)
        if m := self.match(r"words (\S+) = (\S+), (\S+) at (.+)"):
            return ir.Words(m[1], m[2], m[3], parse_expr(m[4]))
        if m := self.match(r"let ([\w.]+):(\w+) = (.+)"):
            return self._let(m[1], self._dtype(m[2]), m[3])
        return self._accumulation()

    def _accumulation(self) -> Stmt:
        if m := self.match(r"init ([\w.]+):(\w+) (\w+) over \[(.*)\](?: from (\S+))?"):
            loops = tuple(self._loop(part) for part in m[4].split(", ")) if m[4] else ()
            first = self._scalar(m[5]) if m[5] else None
            return ir.Init(m[1], self._dtype(m[2]), m[3], loops, first)
        if m := self.match(r"accumulate (\S+) <- (\S+)"):
            return ir.Accumulate(m[1], m[2])
        if m := self.match(r"finish (\S+) = (.+)"):
            return ir.Finish(m[1], tuple(m[2].split(", ")))
        if m := self.match(r"current (\S+) = (\S+)"):
            return ir.Current(m[1], m[2])
        if m := self.match(r"assign (\S+) <- (\S+)"):
            return ir.Assign(m[1], m[2])
        if m := self.match(r"merge (.+) of (.+) from (.+) as (.+) \{"):
            parts = tuple(tuple(p.split(", ")) for p in re.findall(r"\(([^)]*)\)", m[3]))
            names, carries, merged = (tuple(m[i].split(", ")) for i in (1, 2, 4))
            combine = tuple(s for s in self._block() if isinstance(s, ir.Let))
            return ir.Merge(names, carries, parts, combine, merged)
        self.fail(f"cannot read {self.lines[self.at][1][:60]!r}")

    def _loop(self, text: str) -> tuple[str, int, LoopKind]:
        m = re.fullmatch(r"(\S+)=(\d+) (unrolled|lanes)", text)
        if m is None:
            self.fail(f"{text!r} is not 'variable=count kind'")
        return m[1], self._whole(m[2]), LoopKind(m[3])

    def _let(self, name: str, dtype: DType, text: str) -> ir.Let:
        if text.startswith("const "):
            return ir.Let(name, dtype, "const", value=self._scalar(text.removeprefix("const ")))
        if text.startswith("index "):
            return ir.Let(name, dtype, "index", index=parse_expr(text.removeprefix("index ")))
        m = re.fullmatch(r"(\w+)\((.*)\)", text)
        if m is None:
            self.fail(f"{text[:60]!r} is not a function of values")
        return ir.Let(name, dtype, m[1], tuple(m[2].split(", ")))

    def _whole(self, digits: str) -> int:
        found = read_whole(digits)
        if found is None:
            self.fail(f"{clipped(digits, 40)} is beyond 64 bits")
        return found

    def _dtype(self, name: str) -> DType:
        if name not in BY_NAME:
            self.fail(f"{name!r} is not a dtype")
        return BY_NAME[name]

    def _condition(
        self, guards: str | None, fill: str | None
    ) -> tuple[tuple[Guard, ...], Scalar | None]:
        """Guards, and the value where one fails; both are missing where there is no condition."""
        if guards is None or fill is None:
            return (), None
        return tuple(parse_guard(part) for part in guards.split(" and ")), self._scalar(fill)

    def _scalar(self, text: str) -> Scalar | None:
        names = {"none": None, "true": True, "false": False, "inf": inf, "-inf": -inf, "nan": nan}
        if text in names:
            return names[text]
        try:
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        except ValueError:
            self.fail(f"{text!r} is not a number")
