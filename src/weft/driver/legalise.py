"""Legalisation: a program made to fit a backend, before the backend sees it.

    before   any program without dynamic dims that verifies
    after    an equivalent one in which the backend supports every op, dtype, custom call and
             Required hint; or `Unimplemented`, which names the first that it does not

An op that the backend does not support is decomposed where an exact decomposition exists, and what
that makes likewise. Nothing else changes, and a program that fits is returned as it is. Where a
backend supports an op with some attributes and not with others, all of that op are decomposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from weft.driver.conversion import Capabilities, is_supported, require_legal
from weft.foundation.dtypes import BF16, F16, DType
from weft.foundation.grouped_rows import GroupedRows, OuterRows
from weft.foundation.whole_ops import Fourier, WholeOp
from weft.ptir.composite import Composite
from weft.ptir.decompose import decompose
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import Program, ValueKey
from weft.ptir.op import Op
from weft.ptir.passes import optimise
from weft.ptir.passes.log import PassLog
from weft.ptir.products_in_turns import TurnSizes, in_turns
from weft.ptir.streams import assign_streams
from weft.ptir.term import Term
from weft.runtime.artifact import Site
from weft.target.target import Kind, Target

MAX_ROUNDS = 8
"""Rounds in which ops become others that are none of the target's either."""
TURN_SIZES: Final = TurnSizes(least=1 << 30, piece=1 << 28, summing=4096)
"""A product of 1 GB is made in turns on a GPU, of 256 MB each. Where the gradient of its second
factor is carried, a turn has 4096 rows: reading and writing that takes 6 % of the time of the
products of such a turn, if nothing hides it, and as many rows are tiles for all units of a GPU."""


def legalise(program: Program, backend: Capabilities, log: PassLog | None = None) -> Program:
    """The program in what the backend supports. `log` is told of every op that was decomposed."""
    for _ in range(MAX_ROUNDS):
        ops = (instruction.op for body in program.bodies for instruction in body.body)
        lacking = {
            type(op) for op in ops if type(op) in DECOMPOSITIONS and not is_supported(op, backend)
        }
        simpler = decompose(program, DECOMPOSITIONS.keys() - lacking, log) if lacking else program
        if simpler is program:
            break
        program = simpler
    require_legal(program, backend)
    return program


def without_composites(
    program: Program, log: PassLog | None = None, target: Target | None = None
) -> Program:
    """The program with every composite op decomposed but those that a target has kernels for, and
    what that makes simplified; large products are made in turns where that pays on the target."""
    kept = {cls for cls in DECOMPOSITIONS if not issubclass(cls, Composite)}
    simpler = decompose(program, kept, log, partial(_keeps_whole, target))
    simple = program if simpler is program else assign_streams(optimise(simpler, log))
    if target is None or target.kind is not Kind.GPU:
        return simple
    return in_turns(simple, TURN_SIZES, log)


def _keeps_whole(target: Target | None, op: Op, operands: Sequence[Term]) -> bool:
    if target is None or not isinstance(op, Composite):
        return False
    types = tuple(operand.tensor for operand in operands)
    whole = op.whole(*types)
    return whole is not None and stays_whole(whole, types[0].dtype, target)


def guarded_by(program: Program, target: Target) -> dict[ValueKey, Site]:
    """For each instruction of the program without composite ops that came from one which rejects
    operands while it runs: that one, and what it says."""
    sites: dict[str, Site] = {}
    marks: dict[ValueKey, str] = {}
    for body in program.bodies:
        for instruction in body.body:
            op = instruction.op
            said = op.rejection() if isinstance(op, Composite) else None
            if said is not None:
                mark = marks[body.label, instruction.id] = str(len(sites))
                what, line = program.named(body, instruction), program.line(body, instruction)
                sites[mark] = Site(what, line, *said)
    if not sites:
        return {}
    # Whatever an instruction becomes inherits its line.
    simple = without_composites(replace(program, locations=marks), target=target)
    return {key: sites[mark] for key, mark in simple.locations.items() if mark in sites}


_LINE: Final = 16
"""Bytes that rows in memory are multiples of."""
_MOST: Final = 1 << 31
"""Elements of rows, and entries of the table, that are counted in 32 bits."""


def stays_whole(op: WholeOp, dtype: DType, target: Target) -> bool:
    """Whether an op that may be taken apart as PTIR has kernels of its own on a target."""
    if isinstance(op, Fourier):
        return target.kind is Kind.CPU
    if target.kind is not Kind.GPU or not isinstance(op, GroupedRows | OuterRows):
        return False
    if not target.has("wgmma") or dtype not in (BF16, F16):
        return False
    sides = (op.height, op.width) if isinstance(op, OuterRows) else (op.depth, op.columns)
    lines = all(n * dtype.storage_bytes % _LINE == 0 for n in sides)
    return min(op.rows, op.groups, *sides) > 0 and lines and op.rows * max(sides) < _MOST
