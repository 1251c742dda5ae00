"""`weft explore`: a page that shows a program through every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.bundles import manifest
from weft.bundles.build import PROGRAM
from weft.cli.programs import load_program
from weft.cli.report import check_apart, complain, printable, write
from weft.cli.scripts import run_script
from weft.cli.sizes import Sizes, load_sized, sizes_in, with_sizes
from weft.driver.stages.compilation import DEFAULT_LEVEL, check_level
from weft.explorer.collect import Shown, of_program, records, watched
from weft.explorer.page import page
from weft.explorer.record import Options
from weft.explorer.serve import Server, Session
from weft.explorer.traces import events_in, left_out, records_of_trace
from weft.foundation.errors import UserError
from weft.foundation.files import check_writable
from weft.ptir.ir import Program
from weft.ptir.specialise import is_static
from weft.target.known import target_named


def explore_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A program, a Python script, a bundle, or a profile's trace."
        ),
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS...]", help="Arguments of a script."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PAGE", help="The page to write.")
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="TARGETS", help="The target; cpu,sm90 compares two.")
    ] = "cpu",
    level: Annotated[
        str, typer.Option("--opt-level", "-O", metavar="LEVELS", help="0,2 compares two levels.")
    ] = str(DEFAULT_LEVEL),
    sizes: Sizes = None,
    run: Annotated[bool, typer.Option(help="Run it to measure its kernels.")] = True,
    full: Annotated[
        bool,
        typer.Option("--full", help="Show the code of every kernel, not only of the slowest one."),
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page; stages can be edited on it.")
    ] = False,
    port: Annotated[int, typer.Option(help="The port to serve on; 0: any.")] = 0,
) -> None:
    """Write an HTML page that shows every stage of FILE: source, graphs, kernels, plans, machine
    code, times.

    The page is one file that can be opened from disk. A script is run, and every program that it
    compiles is on the page. A trace of weft profile has times only. With --serve you can edit a
    plan, or any other stage, on the page, and it is compiled again.
    """
    path = out or Path(f"{file.name.partition('.')[0]}.html")
    if not serve:
        check_apart(path, file)
        check_writable(path)
    events = events_in(file)
    if events is not None:
        if serve:
            raise UserError(f"{file} is a profile: it has no stages that could be edited")
        found = records_of_trace(events, str(file))
        if missing := left_out(events):
            complain(f"warning: {file}: {missing}")
    else:
        shown = _collect_shown(file, args or [], target.split(","), level.split(","), sizes, run)
        if serve:
            _serve(shown, file.name, port)
            return
        found, _ = records(shown, Options(full=full))
    text = page(found, file.name)
    write(text, path)
    kilobytes = -(-len(text) // 1000)
    print(f"wrote {printable(str(path))} ({kilobytes:,} kB): open it in a browser")


def _collect_shown(
    file: Path,
    args: list[str],
    targets: list[str],
    levels: list[str],
    sizes: list[str] | None,
    run: bool,
) -> list[Shown]:
    if file.suffix == ".py":
        with watched() as watcher:
            run_script(file, args)
        found = watcher.shown()
        if not found:
            raise UserError(f"{file} compiled nothing with Weft, so there is nothing to show")
        return found
    if file.is_dir():
        name, program = _of_bundle(file, sizes or [])
    else:
        program = load_sized(file, sizes)
        name = program.entry
    made = []
    for target in targets:
        target_named(target)
        for level in levels:
            made.append(of_program(name, program, target, _level(level), run))
    return made


def _of_bundle(folder: Path, sizes: list[str]) -> tuple[str, Program]:
    """The name of a bundle and the program that it was made of, where the bundle is whole. A size
    that nobody gives is the largest that it takes."""
    found = manifest.read_manifest(folder)
    found.check_files()
    program = load_program(folder / PROGRAM)
    if not sizes and is_static(program):
        return found.name, program
    given = sizes_in(sizes)
    largest = [f"{dim}={most}" for dim, (_, most) in found.sizes.items() if dim not in given]
    return found.name, with_sizes(program, [*sizes, *largest])


def _level(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UserError(f"{text!r} is not an optimisation level")
    check_level(int(text))
    return int(text)


def _serve(shown: list[Shown], title: str, port: int) -> None:
    server = Server(Session(shown, title), port)
    print(f"serving {server.address} (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
