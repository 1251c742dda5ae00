"""`weft compile`: a program through the pipeline, every stage on disk if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from weft.cli.programs import load_program
from weft.cli.report import print_table, printable
from weft.driver.compilation import Compilation
from weft.driver.compile import compile_program
from weft.driver.pipeline import run_pipeline, stages_for
from weft.driver.signature import make_signature
from weft.foundation.errors import UserError
from weft.ptir.files import read_bytes
from weft.ptir.specialise import is_static
from weft.ptir.verify import verify
from weft.target.known import target_named


def compile_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A PTIR program.")],
    target: Annotated[str, typer.Option(help="cpu, sm80 or sm90.")] = "cpu",
    dump: Annotated[
        str, typer.Option(metavar="STAGES", help="Stages to write, with commas between, or all.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where dumped stages go, a file each.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
    from_: Annotated[
        tuple[str, Path] | None,
        typer.Option("--from", metavar="STAGE FILE", help="Read a stage from an edited dump."),
    ] = None,
    state: Annotated[
        str, typer.Option(metavar="N,...", help="Inputs that the executable keeps and updates.")
    ] = "",
    params: Annotated[
        str, typer.Option(metavar="N,...", help="Inputs that stay the same in many runs.")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what each stage did and how long it took.")
    ] = False,
) -> None:
    """Compile FILE for a target, and write what each stage made."""
    program = load_program(file)
    verify(program)
    if not is_static(program):
        raise UserError(
            f"{file} has dynamic dims, which are bound by the inputs of a run; "
            "use weft.compile from Python, or fix its sizes"
        )
    chosen = target_named(target)
    overrides = {from_[0]: _text_of(from_[1])} if from_ else {}
    signature = make_signature(program, _positions(params), _positions(state))
    if to is None:
        executable = compile_program(
            program, chosen, params=_positions(params), state=_positions(state), overrides=overrides
        )
        (cluster,) = executable.clusters.values()
        print(f"{printable(str(file))}: {executable.explain()}")
        if verbose:
            print("\n".join(executable.report()))
            _print_times(cluster.times, cluster.compilation)
        if dump:
            _write(cluster.compilation, dump, out or Path())
        return
    compilation = run_pipeline(Compilation(program, chosen, signature, overrides), to)
    print(f"{printable(str(file))}: {', '.join(compilation.values)}")
    if verbose:
        _print_times(compilation.seconds, compilation)
    if dump:
        _write(compilation, dump, out or Path())


def _text_of(file: Path) -> str:
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text") from None


def _positions(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UserError(f"{text!r} is not a list of input positions such as 0,2") from None


def _print_times(times: Mapping[str, float], compilation: Compilation) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("ms", justify="right")
    for name, seconds in times.items():
        table.add_row(name, f"{1e3 * seconds:.1f}")
    print_table(table)
    for line in compilation.log.summary:
        print(line)


def _write(compilation: Compilation, dump: str, out: Path) -> None:
    known = [stage.name for stage in stages_for(compilation.target)]
    wanted = known if dump == "all" else dump.split(",")
    for name in wanted:
        if name not in known:
            raise UserError(f"there is no stage {name!r} to dump; there are {', '.join(known)}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            if name in compilation.values:
                path = out / compilation.stages[name].file_name
                path.write_text(compilation.text(name))
                print(f"wrote {printable(str(path))}")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from None
