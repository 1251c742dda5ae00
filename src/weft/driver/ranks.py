"""Running on several ranks: simulated ones, and those that a launcher started.

Launchers say in the environment how many processes they started. MPI is loaded only where they do,
and once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

from weft.foundation.ranks import Alone, World, settle
from weft.ptir.interp import Interpreter
from weft.ptir.ir import Program
from weft.ptir.op import Value
from weft.ptir.verify import verify
from weft.runtime.mpi import join_world
from weft.runtime.rendezvous import run_ranks

_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""What launchers call the number of ranks: Open MPI, MPICH and its kin, MVAPICH, Slurm."""
PLACES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
"""What they call the number of a rank."""


class SimulatedProgram:
    """A program that ranks in this process run together, each by the reference interpreter."""

    def __init__(self, program: Program) -> None:
        verify(program)
        self._interpreter = Interpreter(program)

    def run(self, count: int, inputs: Callable[[int], Sequence[Value]]) -> list[tuple[Value, ...]]:
        """The results of each of so many ranks; `inputs` are those of a rank."""
        return run_ranks(count, lambda rank: self._interpreter.run(inputs(rank)))


def launched_count() -> int:
    """How many ranks the launcher started; 1 without a launcher."""
    return _launcher_number(_COUNTS) or 1


def _launcher_number(names: Sequence[str]) -> int | None:
    """A number that a launcher says under one of these names."""
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


@cache
def launched_world() -> World:
    """The world of this process, which its programs run in from now on."""
    count = launched_count()
    if count == 1:
        return Alone()
    world = join_world(count, _launcher_number(PLACES))
    settle(world)
    return world
