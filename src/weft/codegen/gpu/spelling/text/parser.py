"""The dialect's text back into kernels; the package says what it looks like.

Records are read by the types of their fields, so a new statement needs no line here. Whether a text
makes sense is for `verify` to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.module import GpuModule, Launch
from weft.codegen.gpu.ir.scalar import INFIX, Lit, Name, Op, Scalar, Special, TableAt, Which, Wide
from weft.codegen.gpu.ir.swizzle import BY_SPAN, Swizzle
from weft.codegen.gpu.spelling.text.printer import in_front, spelling
from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.text import TokenStream, commas

MAX_NESTING: Final = 256
"""Levels of parentheses; a block counts as several."""
_BLOCK: Final = 4
_MARKS: Final = r"<<|>>|<=|>=|==|!=|[][(){}<>=,:*+/%&|^-]"
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INFIX: Final = {mark: fn for fn, mark in INFIX.items()}
_WORDS: Final = {which.value: which for which in Which}
_FRAME: Final = (ir.TensorMap, ir.SharedTile, ir.Barriers, ir.Table, ir.Workspace)
_SPECIAL: Final = (ir.Let, ir.Set, ir.For, ir.If, ir.Roles, ir.Epilogue, values.Compute)
"""Statements with a form of their own."""
_PLACES: Final = (ir.Address, ir.BarrierAt, ir.RegAt)
"""Records that are written `name[place]`."""
Defined: TypeAlias = ir.ElementSource | ElementOp
"""What an element program is made of."""
RECORDS: Final[Mapping[str, type]] = {
    spelling(cls): cls
    for cls in (*_FRAME, *get_args(ir.Stmt), *get_args(ir.ElementSource))
    if cls not in _SPECIAL
}


def parse_module(text: str) -> GpuModule:
    """The module of a text that `print_module` wrote, or somebody edited."""
    return _Reader(text).module()


class _Reader:
    def __init__(self, text: str) -> None:
        self.tokens = TokenStream(text, marks=_MARKS)
        self.depth = 0

    def module(self) -> GpuModule:
        module, tokens = GpuModule(), self.tokens
        while not tokens.at_end:
            at = tokens.current.offset
            if tokens.accept("launch"):
                name = tokens.label("the name of a kernel")
                tokens.expect("=")
                launch = Launch(self.name(), tuple(tokens.listed(tokens.integer, "(", ")")))
                self.once(module.launches, name, launch, at)
            elif tokens.accept("host"):
                name = tokens.label("the name of a kernel")
                self.once(module.hosted, name, tokens.label("the reason"), at)
            elif tokens.accept("kernel"):
                kernel = self.kernel()
                self.once(module.kernels, kernel.name, kernel, at)
            else:
                tokens.fail("expected 'launch', 'host' or 'kernel'")
        return module

    def once(self, found: dict[str, Any], name: str, value: object, at: int) -> None:
        if name in found:
            self.tokens.reject(f"{name} appears here for the second time", at)
        found[name] = value

    def name(self) -> str:
        """An identifier."""
        if _IDENTIFIER.fullmatch(self.tokens.current.text) is None:
            self.tokens.fail("expected a name")
        return self.tokens.name()

    @contextmanager
    def nested(self, weight: int = 1) -> Iterator[None]:
        """A level deeper."""
        self.depth += weight
        if self.depth > MAX_NESTING:
            self.tokens.fail("expected fewer levels")
        yield
        self.depth -= weight

    # -- kernels and blocks

    def kernel(self) -> ir.Kernel:
        tokens = self.tokens
        name = self.name()
        grid, threads = self.setting("grid"), self.setting("threads")
        cluster, resident, sets = (
            self.setting(word) if tokens.current.text == word else 1
            for word in ("cluster", "resident", "sets")
        )
        reports, together = tokens.accept("reports"), tokens.accept("together")
        tokens.expect("{")
        tokens.expect("buffers")
        buffers = tuple(tokens.listed(lambda: tokens.label("the name of a tensor"), "(", ")"))
        frame: dict[type, list[Any]] = {cls: [] for cls in _FRAME}
        body: list[ir.Stmt] = []
        while not tokens.accept("}"):
            at = tokens.current.offset
            item = self.item()
            if type(item) not in frame:
                body.append(self.as_statement(item, at))
            elif body:
                tokens.reject("maps, tiles, barriers and tables stand before the statements", at)
            elif isinstance(item, ir.Workspace) and frame[ir.Workspace]:
                tokens.reject("the workspace appears here for the second time", at)
            else:
                frame[type(item)].append(item)
        maps, tiles, barriers, tables, spaces = (tuple(frame[cls]) for cls in _FRAME)
        return ir.Kernel(
            name, grid, threads, buffers, maps, tiles, barriers, tables, tuple(body), reports,
            cluster, resident, next(iter(spaces), None), together, sets,
        )  # fmt: skip

    def setting(self, name: str) -> int:
        self.tokens.expect(name)
        self.tokens.expect("=")
        return self.tokens.integer()

    def block(self) -> tuple[ir.Stmt, ...]:
        body: list[ir.Stmt] = []
        with self.nested(_BLOCK):
            self.tokens.expect("{")
            while not self.tokens.accept("}"):
                at = self.tokens.current.offset
                body.append(self.as_statement(self.item(), at))
        return tuple(body)

    def as_statement(self, item: Any, at: int) -> ir.Stmt:
        if not isinstance(item, ir.Stmt):
            self.tokens.reject(f"{spelling(type(item))} is not a statement", at)
        return item

    def item(self) -> Any:
        """A statement, or a part of the kernel's frame."""
        tokens = self.tokens
        for word, read in _FORMS.items():
            if tokens.accept(word):
                return read(self)
        found = self.definition()
        return values.Compute(found) if isinstance(found, ElementOp) else found

    def let(self) -> ir.Stmt:
        return ir.Let(*self.assignment(), pinned=self.tokens.accept("pinned"))

    def set(self) -> ir.Stmt:
        return ir.Set(*self.assignment())

    def assignment(self) -> tuple[str, Scalar]:
        name = self.name()
        self.tokens.expect("=")
        return name, self.scalar()

    def loop(self) -> ir.Stmt:
        var = self.name()
        self.tokens.expect("in")
        self.tokens.expect("(")
        start = self.scalar()
        self.tokens.expect(",")
        stop = self.scalar()
        self.tokens.expect(",")
        step = self.scalar()
        self.tokens.expect(")")
        times = self.setting("times") if self.tokens.current.text == "times" else 1
        return ir.For(var, start, stop, step, self.block(), times)

    def condition(self) -> ir.Stmt:
        cond, then = self.scalar(), self.block()
        return ir.If(cond, then, self.block() if self.tokens.accept("else") else ())

    def roles(self) -> ir.Stmt:
        self.tokens.expect("{")
        cases: list[ir.Role] = []
        while not self.tokens.accept("}"):
            name, first, count = self.name(), self.setting("first"), self.setting("count")
            cases.append(ir.Role(name, first, count, self.block()))
        return ir.Roles(tuple(cases))

    def epilogue(self) -> ir.Stmt:
        found = self.given(ir.Epilogue, ("sources", "ops"))
        self.tokens.expect("{")
        program: list[Defined] = []
        while not self.tokens.accept("}"):
            at = self.tokens.current.offset
            item = self.definition()
            if not isinstance(item, Defined):
                self.tokens.reject("an element program has only sources and functions", at)
            program.append(item)
        ops = tuple(item for item in program if isinstance(item, ElementOp))
        sources = tuple(item for item in program if not isinstance(item, ElementOp))
        return ir.Epilogue(**found, sources=sources, ops=ops)

    # -- records

    def definition(self) -> Any:
        """`record(...)`, `name = record(...)` or `names : dtype = record(...)`."""
        tokens = self.tokens
        names = [self.name()]
        if tokens.current.text == "(":
            return self.record(names[0], {})
        while tokens.accept(","):
            names.append(self.name())
        dtype = self.value(DType) if tokens.accept(":") else None
        tokens.expect("=")
        what = self.name()
        if what not in RECORDS and dtype is not None and len(names) == 1:
            return self.function(names[0], dtype, what)
        return self.record(what, {"names": tuple(names), "dtype": dtype})

    def function(self, name: str, dtype: DType, fn: str) -> ElementOp:
        tokens = self.tokens
        if fn == "const":
            tokens.expect("(")
            constant = self.value(Number)
            tokens.expect(")")
            return ElementOp(name, dtype, fn, (), constant, tokens.accept("unrounded"))
        args = tuple(tokens.listed(self.name, "(", ")"))
        unrounded, loose = tokens.accept("unrounded"), tokens.accept("loose")
        return ElementOp(name, dtype, fn, args, None, unrounded, loose, tokens.accept("shared"))

    def record(self, what: str, named: Mapping[str, Any]) -> Any:
        """A record after its name; `named` is what stood in front of it."""
        at = self.tokens.current.offset
        if what not in RECORDS:
            self.tokens.fail(f"{what!r} is not a record of the dialect; expected one")
        cls = RECORDS[what]
        head = in_front(cls)
        found = {name: value for name, value in named.items() if value is not None}
        if "name" in head and len(found.get("names", ())) == 1:
            (found["name"],) = found.pop("names")
        if set(found) != set(head):
            before = " and ".join(head) or "nothing"
            self.tokens.reject(f"{before} must stand before {what}", at)
        return cls(**found, **self.given(cls, head))

    def given(self, cls: type, without: Sequence[str] = ()) -> dict[str, Any]:
        """The fields of a record, in order; those with a default may be left out."""
        kinds, found = _kinds(cls), dict[str, Any]()
        rest = [field for field in fields(cls) if field.name not in without]

        def one() -> None:
            name = self.tokens.current.text
            if name not in [field.name for field in rest]:
                self.tokens.fail(f"expected {_wanted_fields(rest)}")
            while rest[0].name != name:
                self.may_be_missing(rest.pop(0))
            rest.pop(0)
            self.tokens.take()
            self.tokens.expect("=")
            found[name] = self.value(kinds[name])

        self.tokens.listed(one, "(", ")")
        for field in rest:
            self.may_be_missing(field)
        return found

    def may_be_missing(self, field: Field[Any]) -> None:
        if field.default is MISSING:
            self.tokens.fail(f"expected the field {field.name!r} before here")

    # -- values

    def value(self, kind: Any) -> Any:
        """A value of an annotated type."""
        tokens = self.tokens
        if kind in _PLAIN:
            return _PLAIN[kind](self)
        if get_origin(kind) is tuple:
            return tuple(tokens.listed(lambda: self.value(get_args(kind)[0]), "(", ")"))
        if get_origin(kind) is UnionType:
            parts = [part for part in get_args(kind) if part is not NoneType]
            if len(parts) < len(get_args(kind)) and tokens.accept("none"):
                return None
            # A place is written by its name, any other record by that of its type.
            named = [part for part in parts if spelling(part) == tokens.current.text]
            return self.value((named or parts[-1:])[0])
        if kind in _PLACES:
            name = self.name()
            tokens.expect("[")
            place = tokens.integer() if kind is ir.RegAt else self.scalar()
            tokens.expect("]")
            return kind(name, place)
        if issubclass(kind, Enum):
            return self.chosen({str(member.value): member for member in kind})
        tokens.expect(spelling(kind))
        return kind(**self.given(kind))

    def chosen(self, table: Mapping[str, Any]) -> Any:
        text = self.tokens.current.text
        if text not in table:
            self.tokens.fail(f"expected one of {commas(table)}")
        self.tokens.take()
        return table[text]

    def number(self) -> Number:
        tokens = self.tokens
        if tokens.current.text in ("true", "false"):
            return tokens.take().text == "true"
        if re.fullmatch(r"-?[0-9]+", tokens.current.text):
            return tokens.integer()
        return tokens.number()

    def scalar(self) -> Scalar:
        tokens = self.tokens
        if tokens.current.kind == "number":
            return Lit(tokens.integer())
        with self.nested():
            if not tokens.accept("("):
                return self.named()
            found = self.scalar()
            if tokens.current.text in _INFIX:
                fn = _INFIX[tokens.take().text]
                found = Op(fn, found, self.scalar())
            tokens.expect(")")
            return found

    def named(self) -> Scalar:
        """A variable, a word, an entry of a table, or a function of numbers."""
        tokens = self.tokens
        name = self.name()
        if tokens.accept("["):
            index = self.scalar()
            tokens.expect("]")
            return TableAt(name, index)
        if tokens.current.text != "(":
            return Special(_WORDS[name]) if name in _WORDS else Name(name)
        args = tokens.listed(self.scalar, "(", ")")
        if name == "wide" and len(args) == 1:
            return Wide(args[0])
        if name not in ("min", "max") or len(args) != 2:
            tokens.fail(f"there is no {name} of {len(args)} numbers; expected another function")
        return Op(name, *args)


def _wanted_fields(rest: Sequence[Field[Any]]) -> str:
    return f"one of the fields {commas(field.name for field in rest)}" if rest else "')'"


@cache
def _kinds(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


_FORMS: Final[Mapping[str, Callable[[_Reader], ir.Stmt]]] = {
    "let": _Reader.let,
    "set": _Reader.set,
    "for": _Reader.loop,
    "if": _Reader.condition,
    "roles": _Reader.roles,
    "epilogue": _Reader.epilogue,
}
_PLAIN: Final[Mapping[Any, Callable[[_Reader], Any]]] = {
    Scalar: _Reader.scalar,
    str: _Reader.name,
    int: lambda reader: reader.tokens.integer(),
    bool: lambda reader: reader.chosen({"true": True, "false": False}),
    Number: _Reader.number,
    float: lambda reader: reader.tokens.number(),
    DType: lambda reader: reader.chosen(BY_NAME),
    Swizzle: lambda reader: reader.chosen({str(span): made for span, made in BY_SPAN.items()}),
}
