"""Program files of every kind: PTIR in its forms, and what is lowered to it: Core IR modules,
StableHLO text, ONNX models and exported programs of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from weft import core_ir, ptir
from weft.cli.commands import work_of
from weft.cli.report import write
from weft.core_ir.files import EXTENSION, is_core_ir
from weft.foundation.errors import (
    BackendUnavailable,
    Finding,
    SpecViolation,
    Unimplemented,
    UserError,
)
from weft.interop import stablehlo
from weft.ptir.files import EXTENSIONS, read_bytes

Shape: TypeAlias = tuple[int, ...]
Source: TypeAlias = ptir.Program | core_ir.Module
KINDS: Final = "A program of PTIR, Core IR, StableHLO, ONNX or torch.export (.pt2)."
ProgramFile: TypeAlias = Annotated[
    Path,
    typer.Argument(metavar="FILE", help=KINDS),
]
ONNX: Final = ".onnx"
_EXPORTED: Final = ".pt2"
_FORMS: Final = {
    **EXTENSIONS, EXTENSION: "Core IR", stablehlo.EXTENSION: "StableHLO", ONNX: "ONNX",
}  # fmt: skip
WRITTEN: Final = ", ".join(f"{extension} ({form})" for extension, form in _FORMS.items())
"""The extensions of files that can be written, for people."""
READ: Final = frozenset({*_FORMS, _EXPORTED})
"""The extensions of files that hold programs."""


def load_source(
    path: Path,
    shapes: Callable[[], list[Shape]] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Source:
    """What a file holds, as it is: its content tells which kind it is, or its extension. StableHLO
    that cannot be read without the shapes of its inputs is read with them, and an ONNX model with
    the sizes of its open axes."""
    data = read_bytes(path)
    if path.suffix == ".py":
        raise UserError(
            f"{path} is a Python script, not a program: programs are files such as {WRITTEN}. Run "
            "the script with python; weft.ptir.save writes a program to a file"
        )
    if path.suffix == ONNX:
        return onnx_models().load_program(path, sizes)  # type: ignore[no-any-return]
    if path.suffix == _EXPORTED:
        return _exported_programs().load_program(path)  # type: ignore[no-any-return]
    if path.suffix == EXTENSION or is_core_ir(data):
        return core_ir.loads(data)
    if path.suffix == stablehlo.EXTENSION or stablehlo.is_stablehlo(data):
        return _stablehlo(data, shapes)
    return ptir.loads(data)


def _stablehlo(data: bytes, shapes: Callable[[], list[Shape]] | None) -> ptir.Program:
    try:
        return stablehlo.loads(data)
    except (SpecViolation, Unimplemented):
        if shapes is None:
            raise
        return stablehlo.loads(data, shapes())


def onnx_models() -> Any:
    """The reader of ONNX, whose package is not always installed."""
    try:
        return work_of("models")
    except BackendUnavailable:
        raise UserError(
            "an ONNX model is read and written by the package onnx, which is not installed; "
            "pip install 'weft[onnx]'",
            "PackageMissing",
        ) from None


def _exported_programs() -> Any:
    """The reader of torch's programs."""
    try:
        return work_of("exported")
    except BackendUnavailable:
        raise UserError(
            "a program of torch.export is read by PyTorch, which is not installed; "
            "pip install 'weft[torch]'",
            "PackageMissing",
        ) from None


def load_program(path: Path, sizes: Mapping[str, int] | None = None) -> ptir.Program:
    """What a file holds, as a PTIR program; an ONNX model with the sizes of its open axes."""
    return as_program(load_source(path, sizes=sizes))


def as_program(source: Source) -> ptir.Program:
    return core_ir.to_ptir(source) if isinstance(source, core_ir.Module) else source


def findings_of(source: Source) -> list[Finding]:
    """Everything that is wrong with a program, in the codes of its kind."""
    if isinstance(source, core_ir.Module):
        return core_ir.verify(source, collect=True)
    return ptir.verify(source, collect=True)


def count_instructions(source: Source) -> int:
    if isinstance(source, core_ir.Module):
        return len(source.operations)
    return sum(len(body.body) for body in source.bodies)


def program_text(source: Source, format: str) -> str | bytes:
    """A program for people to read; a module in its own text, or as PTIR in the other formats."""
    if isinstance(source, core_ir.Module) and format == "text":
        return core_ir.dumps(source)
    return ptir.dumps(as_program(source), format)


def save_as(source: Source, path: Path) -> None:
    """Write a program in the form that the extension names."""
    if path.suffix not in _FORMS:
        raise UserError(f"cannot tell the format of {path} by its extension; use one of {WRITTEN}")
    if path.suffix == ONNX:
        onnx_models().export(as_program(source), path)
    elif path.suffix == stablehlo.EXTENSION:
        write(stablehlo.dumps(as_program(source)), path)
    elif path.suffix != EXTENSION:
        ptir.save(as_program(source), path)
    elif isinstance(source, core_ir.Module):
        core_ir.save(source, path)
    else:
        raise UserError(
            f"cannot write {path}: PTIR can express more than Core IR; write .txt, .json or .bin"
        )


def input_kinds(source: Source) -> list[str]:
    """The types of the inputs, and their names where they have any."""
    if isinstance(source, core_ir.Module):
        return [f"{name}: {op.result_type}" for name, op in _list_names(source)]
    return [str(kind) for kind in source.main.parameters]


def input_names(source: Source) -> list[str]:
    """The names of the inputs; those of a PTIR program have some where it was read from a model."""
    if isinstance(source, core_ir.Module):
        return [name for name, _ in _list_names(source)]
    return list(source.input_names)


def _list_names(module: core_ir.Module) -> list[tuple[str, core_ir.CoreOperation]]:
    return [(str(op.attributes.get("name", "")), op) for op in module.inputs]
