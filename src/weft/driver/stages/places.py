"""From kernels back to what the user wrote: an error about a kernel names an instruction that the
kernel computes, and the line that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir.ir import Program

if TYPE_CHECKING:
    from weft.tiny.ir import Graph


@contextmanager
def naming_lines(compilation: Compilation) -> Iterator[None]:
    """Errors about kernels of a compilation, with their instructions."""
    try:
        yield
    except SpecViolation as error:
        found = [replace(f, where=_with_line(f.where, compilation)) for f in error.findings]
        raise type(error).of(found) from None
    except Unimplemented as error:
        raise Unimplemented(_with_line(error.op, compilation), error.reason) from None


def _with_line(where: str, compilation: Compilation) -> str:
    kernel = where.removeprefix("kernel ").partition(",")[0]
    place = _place_of(kernel, compilation)
    return f"{where}, {place}" if place and place not in where else where


def _place_of(kernel: str, compilation: Compilation) -> str:
    """The first instruction of a kernel, of those with a known line where there are any."""
    module = compilation.values.get("region")
    ids = () if module is None else module.origin.get(kernel, ())
    if not ids:
        return ""
    program = compilation.simple()
    main = program.main
    inside = [instruction for instruction in main.body if instruction.id in ids]
    inside.sort(key=lambda instruction: (main.label, instruction.id) not in program.locations)
    return program.place(main, inside[0]) if inside else ""


def with_lines_of(read: Program, made: Program) -> Program:
    """An edited program, with the user's lines for the instructions that stayed as they were."""
    written = {
        (body.label, instruction.id): instruction
        for body in made.bodies
        for instruction in body.body
    }
    lines = {
        (body.label, instruction.id): made.locations[body.label, instruction.id]
        for body in read.bodies
        for instruction in body.body
        if (body.label, instruction.id) in made.locations
        and written.get((body.label, instruction.id)) == instruction
    }
    return replace(read, locations=lines)


def with_origins_of(read: Graph, made: Graph) -> Graph:
    """An edited graph, with the origins of the values that stayed as they were."""
    known = {value: made.origin[value] for value in read.values if value in made.origin}
    return replace(read, origin=known)
