"""The conversion target "toy-listing": a line for each instruction, indented by depth."""

from __future__ import annotations

from weft.driver.conversion import entry_point_name, walk_program
from weft.ptir import Program


class ListingTarget:
    """Every member of `weft.driver.conversion.ConversionTarget`."""

    name = "toy-listing"
    description = "a line for each instruction"
    extension = ".lst"

    def convert(self, program: Program) -> str:
        lines = [f"{entry_point_name(program)}:"]
        for visit in walk_program(program):
            instruction = visit.instruction
            indent = "  " * (visit.depth + 1)
            lines.append(f"{indent}{instruction.summary} : {instruction.output}")
        return "\n".join(lines) + "\n"


TARGET = ListingTarget()
