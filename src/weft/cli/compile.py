"""`weft compile`: a program through the pipeline, every stage on disk if wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from weft.cli.report import printable
from weft.cli.sizes import Sizes, load_sized
from weft.cli.tables import new_table, print_table
from weft.driver.compile import Executable, compile_program
from weft.driver.pipeline import UNCHECKED, check_overrides, run_pipeline, stages_for
from weft.driver.signature import Role, make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, Compilation, check_level
from weft.driver.stages.links import links_of
from weft.driver.stages.remarks import with_origins
from weft.driver.tuning.measure import append, measure_program
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable
from weft.ptir.files import read_bytes
from weft.target.known import target_named
from weft.target.target import Target
from weft.testing.check import check_results
from weft.testing.data import random_inputs

ORIGINS: Final = "origins.json"
"""Beside the stages: which instructions, lines and layers everything in them comes from."""


def compile_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A PTIR program.")],
    target: Annotated[str, typer.Option(help="cpu, sm80 or sm90.")] = "cpu",
    dump: Annotated[
        str | None,
        typer.Option(metavar="STAGES", help="Stages to write, separated by commas, or all."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder for dumped stages, one file each."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
    from_: Annotated[
        tuple[str, Path] | None,
        typer.Option("--from", metavar="STAGE FILE", help="Read a stage from an edited dump."),
    ] = None,
    sizes: Sizes = None,
    state: Annotated[
        str, typer.Option(metavar="N,...", help="Inputs that the executable keeps and updates.")
    ] = "",
    params: Annotated[
        str, typer.Option(metavar="N,...", help="Inputs that stay the same in many runs.")
    ] = "",
    donate: Annotated[
        str, typer.Option(metavar="N,...", help="Inputs that a run may overwrite.")
    ] = "",
    level: Annotated[
        int,
        typer.Option("-O", metavar="LEVEL", help="Fusion: 0 none, 2 greedy, 3 exact."),
    ] = DEFAULT_LEVEL,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Run it on made-up inputs and compare with the reference, to 1e-3."
        ),
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measure", metavar="CSV", help="Measure each distinct kernel and add it to this log."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what each stage did and how long it took.")
    ] = False,
) -> None:
    """Compile FILE for a target, and write the output of each stage."""
    program = load_sized(file, sizes)
    chosen = target_named(target)
    check_level(level)
    wanted = _to_dump(dump, out, to, chosen)
    overrides = _read_edited(from_, to, chosen)
    for stage in overrides.keys() & UNCHECKED.keys():
        print(f"note: {stage} was given: {UNCHECKED[stage]}")
    roles = _parse_positions(params), _parse_positions(state), _parse_positions(donate)
    if to is not None:
        _refuse_to_run(to, check, measured)
        signature = make_signature(program, *roles)
        compilation = run_pipeline(Compilation(program, chosen, signature, overrides, level), to)
        print(f"{printable(str(file))}: {', '.join(compilation.values)}")
        _show_stages(compilation, compilation.seconds if verbose else None, wanted, out)
        return
    executable = compile_program(
        program,
        chosen,
        params=roles[0],
        state=roles[1],
        donate=roles[2],
        overrides=overrides,
        opt_level=level,
    )
    print(f"{printable(str(file))}: {executable.explain()}")
    _show_executable(executable, verbose, wanted, out, measured)
    if check:
        # At the end: who looks for a fault has the dumps by then.
        _check_outputs(executable)


def _refuse_to_run(to: str, check: bool, measured: Path | None) -> None:
    if check or measured is not None:
        what = "--check" if check else "--measure"
        raise UserError(f"{what} runs the program, but --to {to} stops before it is complete")


def _show_executable(
    executable: Executable,
    verbose: bool,
    wanted: Sequence[str],
    out: Path | None,
    measured: Path | None,
) -> None:
    """What is asked for beside the program itself: a report, a log, the stages to dump."""
    if verbose:
        print("\n".join(executable.report()))
    if verbose or wanted or measured:
        (cluster,) = executable.clusters.values()
        if measured is not None:
            _measure(cluster.compilation, measured)
        _show_stages(cluster.compilation, cluster.times if verbose else None, wanted, out)


def _show_stages(
    compilation: Compilation,
    times: Mapping[str, float] | None,
    wanted: Sequence[str],
    out: Path | None,
) -> None:
    """How long every stage took, where that is asked for, and the stages to dump."""
    if times is not None:
        _print_times(times, compilation)
    if wanted:
        _write_stages(compilation, wanted, out or Path())


def _check_outputs(executable: Executable) -> None:
    """Every output beside the reference's; ends the command where one differs."""
    program = executable.source
    inputs = random_inputs(program)
    for place, role in enumerate(executable.signature.roles):
        if role is Role.STATE:
            inputs[place][...] = np.zeros((), inputs[place].dtype)
    given = zip(inputs, executable.signature.roles, strict=True)
    results = executable.run([array.copy() for array, role in given if role is not Role.STATE])
    found = check_results(program, inputs, results)
    for line in found:
        print(printable(str(line)))
    if not all(line.passes for line in found):
        raise typer.Exit(1)


def _measure(compilation: Compilation, log: Path) -> None:
    """Each distinct kernel beside its estimate, on stdout and in the log."""
    check_writable(log)
    lines = list(measure_program(compilation))
    append(log, lines)
    table = new_table()
    table.add_column("kernel", no_wrap=True)
    for title in ("FLOPs", "bytes", "occ", "estimate, µs", "actual, µs"):
        table.add_column(title, justify="right")
    for line in lines:
        times = f"{1e6 * line.estimate:,.1f}", f"{1e6 * line.actual:,.1f}"
        table.add_row(line.kernel, f"{line.FLOPs:,}", f"{line.Bytes:,}", str(line.occ), *times)
    print_table(table)


def _to_dump(dump: str | None, out: Path | None, to: str | None, target: Target) -> list[str]:
    """The stages that are written, each one that runs."""
    if dump is None:
        if out is not None:
            raise UserError(
                "--out is the folder for dumped stages: name the stages with --dump=STAGES"
            )
        return []
    known = [stage.name for stage in stages_for(target)]
    run = known[: known.index(to) + 1] if to in known else known
    wanted = run if dump == "all" else dump.split(",")
    for name in wanted:
        if name not in run:
            late = f"; --to {to} stops before it" if name in known else ""
            raise UserError(f"there is no stage {name!r} to dump: there are {', '.join(run)}{late}")
    return wanted


def _read_edited(given: tuple[str, Path] | None, to: str | None, target: Target) -> dict[str, str]:
    """The text that stands for a stage. Whether there is such a stage comes before reading it."""
    stage, file = given or ("", Path())
    check_overrides({stage: ""} if stage else {}, target, to)
    return {stage: _text_of(file)} if stage else {}


def _text_of(file: Path) -> str:
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError:
        raise UserError(f"{file} is not text") from None


def _parse_positions(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise UserError(f"{text!r} is not a list of input positions such as 0,2") from None


def _print_times(times: Mapping[str, float], compilation: Compilation) -> None:
    table = new_table()
    table.add_column("stage", no_wrap=True)
    table.add_column("ms", justify="right")
    for name, seconds in times.items():
        table.add_row(name, f"{1e3 * seconds:.1f}")
    print_table(table)
    for line in compilation.log.summary:
        print(line)


def _write_stages(compilation: Compilation, wanted: Sequence[str], out: Path) -> None:
    """The stages of a program with the lines that everything in them comes from, and beside them
    those of the bodies of its branches and loops."""
    bodies = [(out / label, body) for label, body in compilation.bodies.items()]
    try:
        for folder, part in [(out, compilation), *bodies]:
            folder.mkdir(parents=True, exist_ok=True)
            links = links_of(part) if "plan" in part.values else None
            for name in (name for name in wanted if name in part.stages):
                path = folder / part.stages[name].file_name
                text = part.text(name)
                path.write_text(with_origins(name, text, links) if links else text)
                print(f"wrote {printable(str(path))}")
            if links is not None:
                path = folder / ORIGINS
                path.write_text(json.dumps(links.to_json(), indent=1) + "\n")
                print(f"wrote {printable(str(path))}")
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}") from None
