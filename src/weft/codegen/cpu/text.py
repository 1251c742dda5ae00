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

`FORMS` has the line of each statement, `_KINDS` how the values of a type stand in it; both ways
follow from them. A line that begins with `#` says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from math import inf, nan
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn

from weft.codegen.cpu import ir
from weft.codegen.cpu.ir import LoopKind, Scalar, Stmt
from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.index_text import parse_expr, parse_guard
from weft.foundation.text import TokenStream, commas
from weft.foundation.whole_numbers import read_whole
from weft.region.ir import Place


class _Form(NamedTuple):
    """The line of a statement: `{name}` is a field of its record."""

    kind: type
    text: str
    parts: tuple[tuple[str, str, Any], ...] = ()
    """What stands behind it, unless a field has a value; a flag is true where its part stands."""
    fn: str | None = None
    """The function of a Let that has this form."""
    body: str | None = None
    """The field that has the lines up to a `}`."""


_IF: Final = (" if {guards} else {fill}", "guards", ())
_PLACES: Final = (" where {places}", "places", ())
_MEMORY: Final = _Form(
    ir.BufferArg,
    "{dtype}[{elements}]",
    ((" write", "written", False), (" noalias", "noalias", False)),
)
_PARAM: Final = _Form(ir.ParamArg, "param ${name} = b{buffer}[{element}] in {low}..{high}")
_ROUTINE: Final = _Form(ir.Routine, "routine {name} pieces={pieces}")
FORMS: Final = (
    _Form(
        ir.For,
        "{kind} {var} in {start}..{stop}",
        ((" by {step}", "step", 1), (" below {end}", "end", None)),
        body="body",
    ),
    _Form(
        ir.Load,
        "load {name} = b{buffer}[{address}]",
        (_IF, (" at [{point}]", "point", ()), _PLACES),
    ),
    _Form(ir.LoadRun, "run {name} over {var}={count} = b{buffer}[{address}]", (_IF,)),
    _Form(ir.Prefetch, "prefetch b{buffer}[{address}]"),
    _Form(ir.Let, "let {name}:{dtype} = const {value}", fn="const"),
    _Form(ir.Let, "let {name}:{dtype} = index {index}", fn="index"),
    _Form(ir.Let, "let {name}:{dtype} = {fn}({args})"),
    _Form(ir.Init, "init {acc}:{dtype} {fn} over [{loops}]", ((" from {start}", "start", None),)),
    _Form(ir.Accumulate, "accumulate {acc} <- {value}"),
    _Form(ir.Finish, "finish {name} = {accs}"),
    _Form(ir.Current, "current {name} = {acc}"),
    _Form(ir.Assign, "assign {acc} <- {value}"),
    _Form(ir.Merge, "merge {names} of {carries} from ({parts}) as {merged}", body="combine"),
    _Form(
        ir.Store,
        "store b{buffer}[{address}] = {value} at [{point}]",
        ((" if {guards}", "guards", ()), _PLACES),
    ),
    _Form(ir.Check, "check {name} = {x} {rule} {size} number {number} at {element}"),
    _Form(
        ir.Sort,
        "sort row {row} of b{out} = first {count} of {length} of b{x} in b{work} piece {piece}",
        ((" descending", "descending", False),),
    ),
    _Form(
        ir.Fourier,
        "fourier row {row} of b{out} = {length} pairs of b{x} by b{roots} in b{work} lanes {lanes}",
        ((" inverse", "inverse", False), (" divided", "divided", False)),
    ),
    _Form(
        ir.Tiles,
        "tiles b{sums} {adds} {rows}x{columns}x{words} of b{a}, b{b}",
        ((" in {parts} parts", "parts", 1),),
    ),
    _Form(ir.Turn, "turn b{target}[{place}] = {words} of b{source}"),
    _Form(ir.Words, "words {name} = {seed}, {offset} at {element}"),
)
_FIELD: Final = re.compile(r"\{(\w+)\}")
_LINE: Final = re.compile(r"(?:\s++|\#[^\n]*+)*+(?:(?P<line>\S(?:[^\n]*\S)?)|(?P<end>\Z))")


# -- printing ------------------------------------------------------------------------------------


def print_routines(routines: list[ir.Routine]) -> str:
    """The text of several routines."""
    return "\n".join(print_routine(routine) for routine in routines)


def print_routine(routine: ir.Routine) -> str:
    buffers = enumerate(routine.buffers)
    lines = [
        _line_text(_ROUTINE, routine),
        *(f"buffer {number} {_line_text(_MEMORY, buffer)}" for number, buffer in buffers),
        *(f"scratch {dtype}[{elements}]" for dtype, elements in routine.scratch),
        *(_line_text(_PARAM, param) for param in routine.params),
        *(f"reports {code}: {why}" for code, why in routine.checks),
        *_block_lines(routine.body, ""),
    ]
    return "\n".join(lines) + "\n"


def _block_lines(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
    for stmt in body:
        form, line = _form_of(stmt), indent + statement_text(stmt)
        if form.body:
            yield line + " {"
            yield from _block_lines(getattr(stmt, form.body), indent + "  ")
            yield indent + "}"
        else:
            yield line


def statement_text(stmt: Stmt) -> str:
    """A statement on its line, without the body that it may have."""
    return _line_text(_form_of(stmt), stmt)


def _form_of(stmt: Stmt) -> _Form:
    forms = (form for form in FORMS if form.kind is type(stmt))
    return next(f for f in forms if f.fn is None or (isinstance(stmt, ir.Let) and f.fn == stmt.fn))


def _line_text(form: _Form, record: Any) -> str:
    kinds = _kinds_of(form.kind)
    parts = (part for part, name, value in form.parts if getattr(record, name) != value)
    return _FIELD.sub(
        lambda field: kinds[field[1]].write(getattr(record, field[1])), form.text + "".join(parts)
    )


def _scalar_text(value: Scalar | None) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else repr(value)


# -- parsing -------------------------------------------------------------------------------------


def parse_routines(text: str) -> list[ir.Routine]:
    """The routines of a text that `print_routines` wrote, or somebody edited."""
    return _Parser(text).routines()


class _Parser:
    """Reads a text whose tokens are lines."""

    def __init__(self, text: str) -> None:
        self.tokens = TokenStream(text, token=_LINE)

    def fail(self, why: str) -> NoReturn:
        self.tokens.reject(why, self.tokens.current.offset)

    def routines(self) -> list[ir.Routine]:
        found = []
        while not self.tokens.at_end:
            head = self.match(_ROUTINE)
            if head is None:
                self.fail("expected 'routine NAME pieces=N'")
            head["buffers"] = tuple(ir.BufferArg(**b) for b in self.all(_MEMORY, r"buffer \d+ "))
            scratch = self.all(_MEMORY, "scratch ")
            head["scratch"] = tuple((one["dtype"], one["elements"]) for one in scratch)
            head["params"] = tuple(ir.ParamArg(**param) for param in self.all(_PARAM))
            head["checks"] = tuple(self.checks())
            found.append(ir.Routine(**head, body=self.block(top=True)))
        return found

    def checks(self) -> Iterator[tuple[str, str]]:
        while m := re.fullmatch(r"reports (\w+): (.+)", self.tokens.current.text):
            self.tokens.take()
            yield m[1], m[2]

    def block(self, *, top: bool = False) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        while (text := self.tokens.current.text) != "}":
            if top and (self.tokens.at_end or text.startswith("routine ")):
                return tuple(found)
            if self.tokens.at_end:
                self.tokens.reject("a '}' is missing", len(self.tokens.text.rstrip()))
            found.append(self.statement())
        if top:
            self.fail("there is a '}' too many before here")
        self.tokens.take()
        return tuple(found)

    def statement(self) -> Stmt:
        for form in FORMS:
            found = self.match(form)
            if found is not None:
                if form.body:
                    found[form.body] = self.block()
                made: Stmt = form.kind(**found)
                return made
        line = self.tokens.current
        if let := re.match(r"let [\w.]+:\w+ = ", line.text):
            why = f"{line.text[let.end() :][:60]!r} is not a function of values"
            self.tokens.reject(why, line.offset + let.end())
        self.fail(f"cannot read {line.text[:60]!r}")

    def all(self, form: _Form, before: str = "") -> Iterator[dict[str, Any]]:
        """The fields of each line from here on that has a form."""
        while (found := self.match(form, before)) is not None:
            yield found

    def match(self, form: _Form, before: str = "") -> dict[str, Any] | None:
        """The fields of the current line, if it has this form; moves on."""
        line = self.tokens.current
        matched = _pattern(form, before).fullmatch(line.text)
        if matched is None:
            return None
        found: dict[str, Any] = {} if form.fn is None else {"fn": form.fn}
        for number, (_, name, value) in enumerate(form.parts):
            found[name] = value if matched[f"_{number}"] is None else True
        kinds = _kinds_of(form.kind)
        for name, text in matched.groupdict().items():
            if name in kinds and text is not None:
                try:
                    found[name] = kinds[name].read(text)
                except SpecViolation as error:
                    where = self.tokens.where(line.offset + matched.start(name))
                    raise error.at(where) from None
        self.tokens.take()
        return found


@cache
def _pattern(form: _Form, before: str) -> re.Pattern[str]:
    """A form as a pattern, with a group for each field and for each part."""
    kinds = _kinds_of(form.kind)
    parts = (f"(?P<_{n}>{re.escape(part)})?" for n, (part, _, _) in enumerate(form.parts))
    text = re.escape(form.text) + "".join(parts) + r" \{" * (form.body is not None)
    # A form has no braces but those of its fields, and `escape` puts a backslash before them.
    fields_as_groups = re.sub(
        r"\\\{(\w+)\\\}", lambda field: f"(?P<{field[1]}>{kinds[field[1]].pattern})", text
    )
    return re.compile(before + fields_as_groups)


def _fail(why: str) -> NoReturn:
    raise SpecViolation("MalformedText", why)


def _read_whole(digits: str) -> int:
    found = read_whole(digits)
    if found is None:
        _fail(f"{clipped(digits, 40)} is beyond 64 bits")
    return found


def _read_dtype(name: str) -> DType:
    if name not in BY_NAME:
        _fail(f"{name!r} is not a dtype")
    return BY_NAME[name]


def _read_scalar(text: str) -> Scalar | None:
    names = {"none": None, "true": True, "false": False, "inf": inf, "-inf": -inf, "nan": nan}
    if text in names:
        return names[text]
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        _fail(f"{text!r} is not a number")


def _read_loop(text: str) -> tuple[str, int, LoopKind]:
    m = re.fullmatch(r"(\S+)=(\d+) (unrolled|lanes)", text)
    if m is None:
        _fail(f"{text!r} is not 'variable=count kind'")
    return m[1], _read_whole(m[2]), LoopKind(m[3])


def _read_place(text: str) -> Place:
    m = re.fullmatch(r"\$([\w.]+) = ([\w.]+) below (\d+)", text)
    if m is None:
        _fail(f"{text!r} is not '$param = value below size'")
    return Place(m[1], m[2], _read_whole(m[3]))


class _Kind(NamedTuple):
    """How a value stands in a line."""

    pattern: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _listed(write: Callable[[Any], str], read: Callable[[str], Any], between: str = ", ") -> _Kind:
    """Several values, with something between them."""
    return _Kind(
        ".*?",
        lambda values: between.join(map(write, values)),
        lambda text: tuple(map(read, text.split(between))) if text else (),
    )


_KINDS: Final[Mapping[str, _Kind]] = {
    "str": _Kind(r"[\w.]+", str, str),
    "int": _Kind(r"\d+", str, _read_whole),
    "signed": _Kind(r"-?\d+", str, _read_whole),
    "bool": _Kind(r"\+?=", lambda adds: "+=" if adds else "=", "+=".__eq__),
    "DType": _Kind(r"\w+", str, _read_dtype),
    "LoopKind": _Kind("|".join(kind.value for kind in LoopKind), attrgetter("value"), LoopKind),
    "Scalar": _Kind(r"\S+", _scalar_text, _read_scalar),
    "Expr": _Kind(".+?", str, parse_expr),
    "Index": _listed(str, parse_expr),
    "tuple[Guard, ...]": _listed(str, parse_guard, " and "),
    "tuple[Place, ...]": _listed(lambda p: f"${p.param} = {p.value} below {p.size}", _read_place),
    "tuple[str, ...]": _listed(str, str),
    "tuple[tuple[str, ...], ...]": _listed(commas, lambda part: tuple(part.split(", ")), ") ("),
    "tuple[tuple[str, int, LoopKind], ...]": _listed(
        lambda loop: f"{loop[0]}={loop[1]} {loop[2].value}", _read_loop
    ),
}
"""By the type of a field."""


@cache
def _kinds_of(kind: type) -> dict[str, _Kind]:
    """The fields of a record that stand in its line."""
    types = {known.name: str(known.type).removesuffix(" | None") for known in fields(kind)}
    if kind is ir.ParamArg:
        types |= dict.fromkeys(("low", "high"), "signed")
    return {name: _KINDS[found] for name, found in types.items() if found in _KINDS}
