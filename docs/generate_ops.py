"""Writes docs/ops.md, the op reference, from the op classes.

    python docs/generate_ops.py            (or: make docs)

Everything on the page comes from the classes: a test fails when the file is not what this prints.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.foundation.dtypes import (
    ALL,
    ANY,
    COMPLEX,
    FLOATS,
    INTEGERS,
    SIGNED,
    UNSIGNED,
    DType,
    in_order,
)
from weft.ptir import all_ops
from weft.ptir.op import Op
from weft.ptir.schema import (
    Attributes,
    Bool,
    Choice,
    Dimension,
    DTypeOf,
    Float,
    Isize,
    ListOf,
    LiteralOf,
    Maybe,
    NewDimension,
    Number,
    Pair,
    PerAxis,
    RegionId,
    ScalarOf,
    SchemaKind,
    ShapeOf,
    String,
    Usize,
)

PAGE = Path(__file__).parent / "ops.md"
HEAD = """\
# Op reference

`make docs` generates this page from the op classes in `src/weft/ptir/ops/` and
`src/weft/coarse/`. To change it, edit their docstrings.

Every op is a method of the builder, `b.NAME(operands..., attribute=value, ...)`, and a word of the
[text form](text-format.md). In the builder, common ops have a shorter form, such as `b.reshape(x,
dims)`, and `cond`, `while_` and `scan` take Python functions that build their regions. Pass a name
with a dot to `b.emit`: `b.emit("byteir.softmax", x, axis=1)`.

Operands are tensors. An operand marked `?` is optional; an operand marked `*` means any number of
operands. Attributes marked `?` are optional. Ops of the PTIR contract have a tag. The others are
extension and coarse ops, which other implementations see as a `CustomCall` with the given target.
Attributes marked *declared* are not among the attributes of the call: they follow from the declared
type of its result. An op on a dtype that its table does not list is rejected with
`DTypeNotSupported`.
"""
_GROUPS: tuple[tuple[frozenset[DType], str], ...] = (
    (ANY, "any"),
    (INTEGERS, "integers"),
    (SIGNED, "signed integers"),
    (UNSIGNED, "unsigned integers"),
    (FLOATS, "floats"),
    (COMPLEX, "complex"),
)


def describe_dtypes(dtypes: frozenset[DType]) -> str:
    """`integers, floats, i1`: whole classes by name, what is left by dtype."""
    rest, words = set(dtypes), []
    for group, word in _GROUPS:
        if group <= rest:
            words.append(word)
            rest -= group
    return ", ".join([*words, *map(str, in_order(rest))])


def describe_kind(kind: SchemaKind) -> str:
    """The values that an attribute may have, in words."""
    match kind:
        case Maybe():
            return describe_kind(kind.inner)
        case ListOf(Pair()):
            return "list of (low, high)"
        case ListOf(NewDimension()):
            return "shape, one dim may be inferred (-1)"
        case ListOf():
            return f"list of {describe_kind(kind.inner)}"
        case Choice():
            return "one of " + ", ".join(f"`{member}`" for member in kind.enum)
        case _:
            return _KINDS[type(kind)]


_KINDS: dict[type, str] = {
    Usize: "number ≥ 0",
    RegionId: "region",
    Isize: "number",
    Bool: "`true` or `false`",
    Float: "float",
    Number: "boolean, integer or float",
    Dimension: "dim",
    String: "text",
    DTypeOf: "dtype",
    ShapeOf: "shape",
    ScalarOf: "scalar",
    LiteralOf: "tensor literal",
    Attributes: "map of custom-call attributes",
}


def describe_default(field: dataclasses.Field[Any]) -> str:
    usual = field.metadata.get("usual")
    if usual is not None:
        return f" (default in the builder {describe_usual(usual)})"
    if field.default is dataclasses.MISSING or field.default is None:
        return ""
    value = field.default
    return f" (default `{describe_value(value)}`)" if value != () else ""


def describe_usual(usual: Any) -> str:
    if isinstance(usual, PerAxis):
        return f"`{describe_value(usual.value)}` for each axis"
    return "none" if usual == () else f"`{describe_value(usual)}`"


def describe_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def attributes(cls: type[Op]) -> Iterator[str]:
    fixed = {name for given in cls.spellings().values() for name in given}
    for field in dataclasses.fields(cls):
        kind = field.metadata["kind"]
        if field.name in fixed:
            continue
        optional = isinstance(kind, Maybe) or field.default is not dataclasses.MISSING
        name = f"{field.name}?" if optional else field.name
        said = ", declared" if field.metadata.get("declared") else ""
        yield f"  - `{name}`: {describe_kind(kind)}{describe_default(field)}{said}"


def dtype_lines(cls: type[Op]) -> Iterator[str]:
    """One line for each spelling and each set of dtypes, operands with the same set together."""
    rows = cls.rows()
    for spelling, table in rows.items():
        grouped: dict[frozenset[DType], list[str]] = defaultdict(list)
        for operand, dtypes in table.items():
            grouped[dtypes].append(f"`{operand}`")
        text = "; ".join(
            f"{', '.join(names)}: {describe_dtypes(d)}" for d, names in grouped.items()
        )
        if text:
            yield f"  - `{spelling}`: {text}" if len(rows) > 1 else f"  - {text}"


def section(cls: type[Op]) -> str:
    names = ", ".join(f"`{name}`" for name in cls.spellings())
    wire = (
        f"tag {cls.tag}, `{cls.wire_name}`" if cls.call_target is None else f"`{cls.call_target}`"
    )
    operands = ", ".join(f"`{name}`" for name in cls.operands) or "none"
    lines = [
        f"### {names}",
        "",
        f"{wire} · operands: {operands}",
        "",
        inspect.getdoc(cls) or "",
        "",
    ]
    listed = list(attributes(cls))
    if listed:
        lines += ["- attributes", *listed]
    dtypes = list(dtype_lines(cls))
    if dtypes:
        lines += ["- dtypes", *dtypes]
    return "\n".join(lines).rstrip() + "\n"


def matrix(ops: Iterable[type[Op]]) -> str:
    """The table op x dtype: what the first operand (or the dtype attribute) may be."""
    head = "| op | " + " | ".join(map(str, ALL)) + " |"
    lines = [head, "|---|" + ":-:|" * len(ALL)]
    for cls in ops:
        for spelling, table in cls.rows().items():
            first = next(iter(table.values()), ANY)
            marks = " | ".join("x" if dtype in first else " " for dtype in ALL)
            lines.append(f"| {spelling} | {marks} |")
    return "\n".join(lines) + "\n"


def families() -> dict[str, list[type[Op]]]:
    """The ops by family, in the order of their tags."""
    found: dict[str, list[type[Op]]] = defaultdict(list)
    for cls in all_ops():
        found[cls.family].append(cls)
    return found


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    groups = families()
    contents = (
        f"- {title(family)}: " + ", ".join(f"`{name}`" for cls in ops for name in cls.spellings())
        for family, ops in groups.items()
    )
    parts.append("\n".join(contents) + "\n")
    for family, ops in groups.items():
        about = inspect.getdoc(sys.modules[ops[0].__module__]) or ""
        parts += [f"## {title(family)}\n", f"{about}\n", *map(section, ops)]
    note = "What the first operand may be; where that depends on an attribute, the union.\n"
    parts += ["## Table op × dtype\n", note, matrix(cls for ops in groups.values() for cls in ops)]
    return "\n".join(parts)


def title(family: str) -> str:
    return family.replace("_", " ").capitalize()


if __name__ == "__main__":
    PAGE.write_text(render())
