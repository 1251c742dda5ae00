"""StableHLO files: telling them apart, reading and writing them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weft.foundation.errors import SpecViolation, UserError
from weft.interop.stablehlo.artifacts import MAGIC, artifact_text
from weft.interop.stablehlo.bindings import bindings, parse_module
from weft.interop.stablehlo.reading.module import to_program
from weft.interop.stablehlo.reading.sizes import SHAPE_OF
from weft.interop.stablehlo.records import read_module
from weft.interop.stablehlo.writing.module import write_module
from weft.ptir.counted_loops import with_counted_loops
from weft.ptir.files import read_bytes
from weft.ptir.ir import Program
from weft.ptir.verify import verify

EXTENSION: Final = ".mlir"
MOST_TURNS: Final = 1 << 16
"""Longer loops stay as they are until a gradient is taken of them."""
_BEGINS: Final = re.compile(
    r"(?:\s|//[^\n]*\n)*(?:#\w+ = |module\b|func\.func\b|\"builtin\.module\"|!\w+ = )"
)


def is_stablehlo(data: bytes | str) -> bool:
    """Whether a file's content begins as MLIR text or a portable artifact does."""
    if isinstance(data, bytes | bytearray) and data.startswith(MAGIC):
        return True
    head = data[:65536]
    text = head if isinstance(head, str) else head.decode("utf-8", "replace")
    return _BEGINS.match(text.removeprefix("\ufeff")) is not None


def loads(text: str | bytes, shapes: Sequence[Sequence[int] | int] | None = None) -> Program:
    """The program that a module in StableHLO, MHLO or CHLO stands for: its text, or the bytes of a
    portable artifact, such as `mlir_module_serialized` of a JAX export. `verify` checks it.

    Sizes that the text leaves open (`?`) are dynamic dims of the program. Where its operations
    compute with them (half of a batch, all rows but one), they must be known: `shapes` are then
    those of the inputs, and the program is for them alone. Some modules take sizes as inputs: a
    whole number in the place of a shape says which, and the program does not take that input.

    StableHLO has no counted loops: those of JAX come as `while`, and are `scan` here where their
    number of turns is seen.
    """
    if isinstance(text, bytes | bytearray) and text.startswith(MAGIC):
        text = artifact_text(bytes(text))
    if isinstance(text, bytes | bytearray):
        try:
            text = bytes(text).decode()
        except UnicodeDecodeError as error:
            raise SpecViolation(
                "MalformedText", f"the file is not UTF-8 text: byte {error.start} is wrong"
            ) from None
    if not isinstance(text, str):
        raise UserError(f"loads takes text or bytes, not {type(text).__name__}")
    program = to_program(read_module(parse_module(rewrite_examples(text))), shapes)
    try:
        return with_counted_loops(program, MOST_TURNS)
    except SpecViolation:
        # The verifier says what is wrong with it, and where.
        return program


def load(path: str | Path, shapes: Sequence[Sequence[int] | int] | None = None) -> Program:
    """The program in a file, as `loads` reads it."""
    return loads(read_bytes(path), shapes)


def dumps(program: Program) -> str:
    """The program as StableHLO text: the same text for the same program, every time.

    MLIR has verified it. `Unimplemented` names what StableHLO cannot say.
    """
    bindings()
    verify(program)
    return f"{parse_module(write_module(program))}"


@dataclass(frozen=True)
class StableHloText:
    """The conversion target that writes StableHLO."""

    name: str = "stablehlo"
    description: str = "StableHLO as text, for XLA, IREE and their front ends"
    extension: str = EXTENSION

    def convert(self, program: Program) -> str:
        return dumps(program)


TARGET: Final = StableHloText()


_COMPUTE: Final = re.compile(r"byre\.compute @(GetSeed|NextOffset)\(\)\s*:\s*(tensor<[^>]*>)")
_SHAPE_OF: Final = re.compile(r"shape\.shape_of (%[\w.$-]+) : (tensor<\d+xindex>)")

_INDEX: Final = re.compile(r"tensor<(\d+)xindex>")


def rewrite_examples(text: str) -> str:
    """Two forms that the coarse ops' documents use and that MLIR does not know, said in its words:
    what makes a seed or an offset, and `shape.shape_of` without the type of its operand."""
    if "byre.compute" in text:
        text = _COMPUTE.sub(r"stablehlo.custom_call @byre.\1() : () -> \2", text)

    def typed(match: re.Match[str]) -> str:
        declared = re.search(re.escape(match[1]) + r"\s*:\s*(tensor<[^>]*>)", text)
        if declared is None:
            return match[0]
        return f"stablehlo.custom_call @{SHAPE_OF}({match[1]}) : ({declared[1]}) -> {match[2]}"

    found = _SHAPE_OF.sub(typed, text)
    # A custom call takes no tensor of `index`.
    return _INDEX.sub(r"tensor<\1xi64>", found) if found != text else text
