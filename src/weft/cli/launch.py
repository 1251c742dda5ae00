"""`weft launch`: a script on several ranks of this machine.

It is MPI's own launcher with what a run of Weft wants: each rank on cores of its own, a board on
which ranks write what they are at, and a look at whether they are still there. A job in which a
rank did not come to its end has failed, whatever its exit code; why is said last, and once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from weft.cli.report import complain
from weft.driver.ranks import PLACES
from weft.foundation.errors import UserError
from weft.foundation.ranks import collective_timeout
from weft.runtime.board import ENDED, FAILED, STARTING, Board

_LOOK: Final = 0.1
"""Seconds between looks at the ranks."""
_PLACE: Final = "".join(f"${{{name}:-" for name in PLACES) + "}" * len(PLACES)
_NUMBERED: Final = f'echo $$ > "{Board.first_file("$WEFT_BOARD", _PLACE)}"; exec "$@"'
"""A rank's process writes its number down before it becomes the script: one that ends before it
comes to the board is missed, too."""
_GRACE: Final = 1.0
"""How long MPI's launcher may take to end a job by itself."""
_DEAF: Final = 10.0
"""How long MPI's launcher may take to end a job when it is told to."""
_LAST_WORDS: Final = 0.3
"""How long the other ranks may take to say what they think of a failure."""


def launch_command(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    ranks: Annotated[int, typer.Option("-n", min=1, metavar="N", help="How many ranks.")] = 1,
    mpiexec: Annotated[str, typer.Option(help="MPI's own launcher.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Only print the command.")] = False,
) -> None:
    """Run a Python script on N ranks of this machine, which communicate through MPI
    (weft[mpi])."""
    launcher, own = _launcher(mpiexec, ranks), [sys.executable, script, *(args or [])]
    if dry_run:
        print(" ".join([*launcher, *own]))
        return
    if not Path(script).is_file():
        raise UserError(f"there is no file {script}")
    with tempfile.TemporaryDirectory(prefix="weft-ranks-") as folder:
        board = Board.made(Path(folder) / "board", ranks)
        command = [*launcher, "sh", "-c", _NUMBERED, "weft", *own]
        job = subprocess.Popen(command, env=_environment(board))  # noqa: S603
        code = _watch_job(job, board)
    raise typer.Exit(code)


def _launcher(given: str, ranks: int) -> list[str]:
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    found = shutil.which(given or "mpiexec", path=path)
    if found is None:
        raise UserError(
            f"{given or 'mpiexec'} was not found: install weft[mpi], or load the MPI of the cluster"
        )
    return [found, "-n", str(ranks), *_binding_options(found, ranks)]


def _binding_options(launcher: str, ranks: int) -> list[str]:
    """Options by which each rank has cores of its own, where there are enough."""
    asked = [launcher, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    if "Open MPI" not in said.stdout:
        return []
    cores = len(os.sched_getaffinity(0)) // ranks
    if cores:
        return ["--map-by", f"slot:PE={cores}:OVERSUBSCRIBE", "--bind-to", "core"]
    return ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]


def _environment(board: Board) -> dict[str, str]:
    """What ranks are told. A container's only user may be root, whom Open MPI refuses unasked."""
    found = {**os.environ, "WEFT_BOARD": str(board.path)}
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT") if not os.geteuid() else ():
        found |= {name: "1", f"{name}_CONFIRM": "1"}
    return found


def _watch_job(job: subprocess.Popen[bytes], board: Board) -> int:
    """The exit code of a job; a rank that is gone, or says that it has failed, ends it."""
    gone: list[str] = []
    began: float | None = None
    while job.poll() is None and not gone and not _has_failed(board):
        time.sleep(_LOOK)
        waiting = any(board.read(rank) == STARTING for rank in range(board.count))
        began = (began or time.monotonic()) if waiting else None
        gone = _ranks_gone(board) or _ranks_late(board, began)
    try:
        code = job.wait(_LAST_WORDS if _has_failed(board) else _GRACE)
    except subprocess.TimeoutExpired:
        code = _end_job(job)
    said = _has_failed(board)
    for sentence in _drop_repeated(board.told()) if said else gone or _ranks_gone(board):
        complain(f"weft: {sentence}")
        code = code or 1
    return code if code in range(256) else 1


def _end_job(job: subprocess.Popen[bytes]) -> int:
    """The exit code of a job that is told to end, and made to where it does not listen."""
    job.terminate()
    try:
        return job.wait(_DEAF)
    except subprocess.TimeoutExpired:
        job.kill()
        return job.wait()


def _has_failed(board: Board) -> bool:
    return any(board.read(rank) == FAILED for rank in range(board.count))


def _drop_repeated(sentences: list[str]) -> list[str]:
    """The sentences without those by which another rank says the same."""
    return list({said.partition(": ")[2] or said: said for said in reversed(sentences)}.values())[
        ::-1
    ]


def _ranks_gone(board: Board) -> list[str]:
    """The ranks that came, and whose process is gone before its end."""
    found = [f"rank {rank} ended before it called weft.mesh" for rank in _find_missing(board)]
    for rank in range(board.count) if not found else ():
        process, at = board.process(rank), board.read(rank)
        if process and at not in (ENDED, FAILED) and not Path(f"/proc/{process}").exists():
            found.append(f"rank {rank} died, killed or by os._exit; it {at}")
    return found


def _find_missing(board: Board) -> list[int]:
    """The ranks whose process is gone before they came to where others are."""
    ranks = range(board.count)
    if not any(map(board.process, ranks)):
        return []
    started = ((rank, board.first_process(rank)) for rank in ranks if not board.process(rank))
    return [rank for rank, process in started if process and not Path(f"/proc/{process}").exists()]


def _ranks_late(board: Board, began: float | None) -> list[str]:
    """Whom the others wait for where ranks join, once the deadline is over."""
    timeout = collective_timeout()
    if began is None or time.monotonic() - began < timeout:
        return []
    ranks = range(board.count)
    here = next(rank for rank in ranks if board.process(rank))
    away = ", ".join(f"rank {rank}" for rank in ranks if not board.process(rank))
    return [
        f"rank {here} waited {timeout:g} s at weft.mesh, but {away or 'MPI'} did not come to it; "
        "WEFT_COLLECTIVE_TIMEOUT sets the limit"
    ]
