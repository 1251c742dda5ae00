"""Checks that all ranks are about to run the same program.

Ranks trace and compile on their own. A constant that one of them read elsewhere, or an `if` that
asks for the number of the rank, makes its program another one; where the exchanges look alike all
the same, its results would be wrong without a word. So before the first run of a program with
exchanges all ranks compare digests of it. Who agreed once does not meet again: a program that one
rank knows to be everybody's, all do.

What a program is called with is taken to be the same on all ranks where it does not say otherwise.
That is looked at in the same meeting, in tensors that are not large, and is a warning: ranks that
each drew their own weights learn nothing together.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import WeftWarning, clipped
from weft.foundation.lines import place_of, user_line
from weft.foundation.ranks import Meeting, RankFailed, World, world_here
from weft.ptir.compare_ranks import lines_of
from weft.ptir.ir import Program, Ref
from weft.ptir.ops.collective import Collective, MarkVarying
from weft.ptir.ops.indexing import DynamicSlice
from weft.ptir.specialise import is_static
from weft.ptir.text.printer import print_type
from weft.ptir.types import TensorType

Array = NDArray[Any]

_FIRST_RUN = "the first run of a program"
_SIZE = 32
_NOT_LOOKED_AT = bytes(_SIZE)
_MOST_BYTES = 1 << 20
"""Inputs that take more are not compared."""
_WORDS = 400
"""Bytes of what a rank says of its program where it is another one."""


class Agreement:
    """That a program is the same on all ranks."""

    def __init__(self, program: Program, count: int, line: str) -> None:
        self._program, self._count, self._line = program, count, line

    @cached_property
    def _digest(self) -> bytes:
        digest = hashlib.sha256()
        for line in lines_of(self._program):
            digest.update(line.text.encode() + b"\n")
        return digest.digest()

    def reach(self, inputs: Callable[[], Sequence[Array | None]] | None = None) -> None:
        """Return when all ranks have come to this program; an error where one came to another.
        `inputs` are to be the same on all ranks, but for those that are None."""
        world = world_here()
        if world.count == 1 or world.count != self._count or self._digest in world.agreed:
            return
        everybody = tuple(range(world.count))
        marks = b"" if inputs is None else b"".join(map(_digest_of_array, inputs()))
        given = hashlib.sha256(marks).digest() if marks else _NOT_LOOKED_AT
        mine = np.frombuffer(self._digest + given, np.uint8)
        found = world.meet(Meeting(_FIRST_RUN, everybody, self._line), mine)
        digests = [one.tobytes()[:_SIZE] for one in found]
        if len(set(digests)) > 1:
            raise RankFailed(self._apart(world, digests))
        world.agreed.add(self._digest)
        values = {one.tobytes()[_SIZE:] for one in found}
        if len(values) > 1 and _NOT_LOOKED_AT not in values:
            self._warn(world, marks)

    def _warn(self, world: World, marks: bytes) -> None:
        """Say which input differs between ranks."""
        meeting = Meeting("which arguments of the ranks differ", tuple(range(world.count)))
        rows = np.array(world.meet(meeting, np.frombuffer(marks, np.uint64)))
        at = int(np.argmax((rows != rows[0]).any(0)))
        other = int(np.argmax(rows[:, at] != rows[0, at]))
        if world.rank:
            return
        names = self._program.input_names
        what = f"the argument {names[at]}" if at < len(names) else "a tensor that is captured"
        kind = self._program.main.parameters[at]
        place = place_of(user_line())
        warnings.warn_explicit(
            f"{what} of type {print_type(kind)} differs between rank 0 and rank {other} in the "
            f"first call of {self._program.entry}, which takes it to be the same on all ranks: "
            "weft.replicate it, or say in split how it is split",
            WeftWarning,
            place.file if place else "weft",
            place.number if place else 1,
        )

    def _apart(self, world: World, digests: Sequence[bytes]) -> str:
        """Which ranks have another program than most, and where it begins to be another one."""
        meeting = Meeting("where the programs of the ranks differ", tuple(range(world.count)))
        lines = list(lines_of(self._program))
        marks = [hashlib.sha256(line.text.encode()).digest()[:8] for line in lines]
        longest = max(int(one) for one in world.meet(meeting, np.array(len(lines))))
        padded = b"".join(marks).ljust(8 * longest, b"\0")
        rows = np.array(world.meet(meeting, np.frombuffer(padded, np.uint64)))
        usual = digests.index(Counter(digests).most_common(1)[0][0])
        others = [rank for rank, one in enumerate(digests) if one != digests[usual]]
        at = int(np.argmax(rows[usual] != rows[others[0]]))
        mine = lines[at].told if at < len(lines) else "nothing more"
        words = mine.encode()[:_WORDS].ljust(_WORDS, b"\0")
        said = world.meet(meeting, np.frombuffer(words, np.uint8))
        told = [one.tobytes().rstrip(b"\0").decode(errors="replace") for one in said]
        named = "rank " if len(others) == 1 else "ranks "
        named += clipped(", ".join(map(str, others)), 60)
        return (
            f"{named} traced another program than rank {usual}: {told[others[0]]} where rank "
            f"{usual} has {told[usual]}; all ranks run one program, and what differs between them "
            "is an argument that is split, or made of weft.rank()"
        )


def _digest_of_array(array: Array | None) -> bytes:
    """Eight bytes that stand for the elements of an array."""
    if array is None:
        return bytes(8)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()[:8]


def same_inputs(program: Program) -> tuple[int, ...]:
    """The positions of inputs that are to be the same on all ranks, and are not large. Of one that
    is cut by a position each rank may have its own part alone."""
    main = program.main
    if not is_static(program) or any(not isinstance(kind, TensorType) for kind in main.parameters):
        return ()
    own = {
        operand.id
        for instruction in main.body
        if isinstance(instruction.op, MarkVarying | DynamicSlice)
        for operand in instruction.operands[:1]
        if isinstance(operand, Ref)
    }
    pairs = enumerate(zip(main.parameter_ids, main.parameters, strict=True))
    return tuple(
        at
        for at, (number, kind) in pairs
        if number not in own and isinstance(kind, TensorType) and kind.bytes <= _MOST_BYTES
    )


def agreement_on(program: Program) -> Agreement | None:
    """What the ranks that run a program have to agree on; None where it exchanges nothing."""
    for body in program.bodies:
        for instruction in body.body:
            op = instruction.op
            if isinstance(op, Collective):
                line = getattr(op, "line", "") or program.line(body, instruction)
                return Agreement(program, op.rank_count, line)
    return None
