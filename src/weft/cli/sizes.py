"""`--sizes`: the sizes of dynamic dims, for programs that leave them open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from weft.cli.programs import ONNX, load_program
from weft.foundation.errors import UserError
from weft.ptir.ir import Program
from weft.ptir.specialise import specialise
from weft.ptir.types import symbols_of
from weft.ptir.verify import verify

Sizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--sizes", metavar="NAME=N,...", help="The sizes of dynamic dims; repeatable."),
]


def load_sized(path: Path, given: Sequence[str] | None) -> Program:
    """The program in a file, verified, with its dynamic dims fixed. The shapes of an ONNX model may
    follow from them, so it is read with the sizes."""
    if path.suffix != ONNX:
        program = load_program(path)
        verify(program)
        return with_sizes(program, given)
    program = load_program(path, sizes_in(given))
    verify(program)
    return with_sizes(program, None)


def with_sizes(program: Program, given: Sequence[str] | None) -> Program:
    """The program with its dynamic dims fixed."""
    sizes = sizes_in(given)
    names = list(
        dict.fromkeys(s.name for kind in program.main.parameters for s in symbols_of(kind))
    )
    odd = sizes.keys() - names
    if odd:
        there = f"its dynamic dims are {', '.join(names)}" if names else "it has no dynamic dims"
        raise UserError(
            f"--sizes names {min(odd)!r}, which @{program.entry} does not have: {there}"
        )
    missing = [name for name in names if name not in sizes]
    if missing:
        example = ",".join(f"{name}=32" for name in missing)
        raise UserError(
            f"@{program.entry} has dynamic dims, which a run binds: give their sizes for this "
            f"compile, as in --sizes {example}"
        )
    return specialise(program, sizes)


def sizes_in(given: Sequence[str] | None) -> dict[str, int]:
    """The sizes that the words of the option give, by the names of the dims."""
    text = ",".join(given or ())
    pairs = [_parse_size(part) for part in text.split(",") if part]
    sizes = dict(pairs)
    if len(sizes) < len(pairs):
        raise UserError(f"--sizes {text} gives one dim two sizes")
    return sizes


def _parse_size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not (name and number.isdecimal() and number.isascii()):
        raise UserError(f"{text!r} is not the size of a dynamic dim, such as B=32")
    return name, int(number)
