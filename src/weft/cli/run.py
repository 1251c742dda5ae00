"""`weft run`: a program on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from weft.cli import arrays
from weft.cli.programs import (
    ONNX,
    ProgramFile,
    Shape,
    input_kinds,
    input_names,
    load_source,
    onnx_models,
)
from weft.cli.report import check_apart, complain
from weft.cli.tables import new_table, print_table
from weft.driver.backends import default_backend
from weft.driver.execute import run
from weft.driver.inputs import MAX_SEED
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import UserError
from weft.ops.default_backend import graph
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog

Array = NDArray[Any]
FIRST = 6
"""How many elements of an output are shown."""


def run_command(
    file: ProgramFile,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="The inputs: arr_0, arr_1, ... or any names, in order."),
    ] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=NPY", help="One input by its name, or its number."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ", help="The file for the outputs; without it, they are printed as a table."
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="The backend that runs it.")] = default_backend(),
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="The seed of the random ops.")] = 0,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Print on stderr how the program was legalised."),
    ] = False,
) -> None:
    """Run FILE. bf16, fp8 and 4-bit arrays are stored as bits under names such as 'arr_0:bf16'."""
    if out is not None:
        check_apart(out, file, inputs)
    log = PassLog()
    if file.suffix == ONNX:
        results = _run_model(file, inputs, input_ or [], backend)
    else:
        program = load_source(file, _shapes(inputs, input_))
        kinds = input_kinds(program)
        if inputs is None and not input_ and kinds:
            what = f"@{program.entry}" if isinstance(program, Program) else "the module"
            raise UserError(
                f"{what} takes the inputs {', '.join(kinds)}; give them with --inputs NPZ"
            )
        names = input_names(program) or [str(number) for number in range(len(kinds))]
        given = _read_inputs(inputs, input_ or [], names)
        results = run(program, given, backend=backend, seed=seed, log=log)
    for entry in log.entries if verbose else ():
        complain(str(entry))
    if out is None:
        print_table(_outputs_table(results))
    else:
        arrays.write_arrays(out, results)


def _shapes(path: Path | None, named: list[str] | None) -> Callable[[], list[Shape]] | None:
    """The shapes of the inputs that are given, in order, for a reader that needs them."""
    if path is None and not named:
        return None
    count = len(named or [])
    return lambda: [
        x.shape for x in _read_inputs(path, named or [], [str(k) for k in range(count)])
    ]


def _read_inputs(path: Path | None, named: Sequence[str], names: Sequence[str]) -> list[Array]:
    """The inputs in order, from an archive or one by one."""
    if path is not None and named:
        raise UserError("give the inputs with --inputs or with --input, not with both")
    if path is not None:
        return arrays.read_arrays(path, names)
    found: dict[str, Array] = {}
    for text in named:
        name, array = arrays.read_one(text)
        if name not in names and name.isdecimal() and int(name) < len(names):
            name = names[int(name)]
        if name not in names:
            raise UserError(f"there is no input {name!r}; they are {', '.join(names)}")
        if name in found:
            raise UserError(f"the input {name!r} is given twice")
        found[name] = array
    missing = [name for name in names if name not in found]
    if missing:
        raise UserError(f"the input {missing[0]!r} is not given; add --input {missing[0]}=NPY")
    return [found[name] for name in names]


def _run_model(path: Path, archive: Path | None, named: Sequence[str], backend: str) -> list[Array]:
    """The outputs of an ONNX model."""
    with graph(backend=backend):
        model = onnx_models().load(path)
        made = model(*_read_inputs(archive, named, model.inputs))
        return [each.numpy() for each in made.values()]


def _outputs_table(results: Sequence[Array]) -> Table:
    """One row for each output: its number, its type and its first values."""
    table = new_table()
    table.add_column("output", justify="right")
    table.add_column("type", no_wrap=True)
    table.add_column("first values")
    for index, array in enumerate(results):
        kind = f"{as_dtype(array.dtype)}{list(array.shape)}"
        table.add_row(str(index), Text(kind), Text(_first_values(array)))
    return table


def _first_values(array: Array) -> str:
    """The first elements in row-major order, short enough to read."""
    shown = [_element_text(value) for value in array.reshape(-1)[:FIRST]]
    return ", ".join(shown) + (", ..." if array.size > FIRST else "")


def _element_text(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    dtype = as_dtype(value.dtype)
    if dtype.is_integer:
        return str(int(value))
    return f"{complex(value):.6g}" if dtype.is_complex else f"{float(value):.6g}"
