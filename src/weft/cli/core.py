"""`weft core`: modules of Core IR made from expressions, differentiated, and made canonical."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft import core_ir
from weft.cli.report import check_apart, write
from weft.foundation.errors import UserError

app = typer.Typer(
    help="Core IR modules: expressions, gradients, canonical forms.", no_args_is_help=True
)

ModuleFile = Annotated[Path, typer.Argument(metavar="FILE", help="A Core IR module.")]
Out = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The file for the module; default: stdout.")
]
Extensions = Annotated[
    str,
    typer.Option(
        metavar="NAME,...", help=f"Extensions to switch on: {', '.join(core_ir.EXTENSIONS)}."
    ),
]


@app.command("grad")
def grad_command(
    file: ModuleFile,
    wrt: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="The inputs; without it, every input of floats."),
    ] = "",
    output: Annotated[
        int | None,
        typer.Option(metavar="N", help="Which output to differentiate, where there are several."),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of a new input: the gradient of an output that is not a scalar.",
        ),
    ] = None,
    extensions: Extensions = "",
    out: Out = None,
) -> None:
    """Write the gradient of FILE: a module with the outputs of FILE, then the gradients."""
    if out is not None:
        check_apart(out, file)
    module = core_ir.load(file, extensions=_parse_names(extensions))
    made = core_ir.gradient(module, _parse_names(wrt) or None, output=output, seed=seed)
    write(core_ir.dumps(made), out)


@app.command("canonicalise")
def canonicalise_command(file: ModuleFile, extensions: Extensions = "", out: Out = None) -> None:
    """Write FILE in canonical form: constants folded, operands ordered, dead code gone."""
    module = core_ir.load(file, extensions=_parse_names(extensions))
    write(core_ir.dumps(core_ir.canonicalise(module)), out)


@app.command("expr")
def expr_command(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Such as 'x: f32[2, 3]; relu(x) * 0.5'.")
    ],
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A variable, as in x:f32[2,3]; may be repeated."),
    ] = None,
    extensions: Extensions = "",
    out: Out = None,
) -> None:
    """Write the module that an expression means."""
    variables = dict(_variable(text) for text in var or ())
    module = core_ir.from_expression(source, variables, extensions=_parse_names(extensions))
    write(core_ir.dumps(module), out)


def _parse_names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _variable(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not colon:
        raise UserError(f"{text!r} is not a variable such as x:f32[2,3]")
    return name.strip(), kind.strip()
