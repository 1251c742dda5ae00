"""Programs on several ranks: simulated ones, and those that a launcher started.

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
from weft.runtime.mpi import joined
from weft.runtime.rendezvous import run_ranks

_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""What launchers call the number of ranks: Open MPI, MPICH and its kin, MVAPICH, Slurm."""


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
    for name in _COUNTS:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return 1


@cache
def launched_world() -> World:
    """The world of this process, which its programs run in from now on."""
    count = launched_count()
    if count == 1:
        return Alone()
    world = joined(count)
    settle(world)
    return world
