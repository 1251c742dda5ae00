"""Whether all ranks are about to run one program.

Ranks trace and compile on their own. A constant that one of them read elsewhere, or an `if` that
asks for the number of the rank, makes its program another one; where the exchanges look alike all
the same, its results would be wrong without a word. So before the first run of a program with
exchanges all ranks compare digests of it. Who agreed once does not meet again: a program that one
rank knows to be everybody's, all do.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from weft.foundation.errors import clipped
from weft.foundation.ranks import Meeting, RankFailed, World, world_here
from weft.ptir.ir import Program
from weft.ptir.likeness import lines_of
from weft.ptir.ops.collective import Collective

_FIRST_RUN = "the first run of a program"
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

    def reach(self) -> None:
        """Return when all ranks have come to this program; an error where one came to another."""
        world = world_here()
        if world.count == 1 or world.count != self._count or self._digest in world.agreed:
            return
        everybody = tuple(range(world.count))
        mine = np.frombuffer(self._digest, np.uint8)
        found = world.meet(Meeting(_FIRST_RUN, everybody, self._line), mine)
        digests = [one.tobytes() for one in found]
        if len(set(digests)) > 1:
            raise RankFailed(self._apart(world, digests))
        world.agreed.add(self._digest)

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


def agreement_on(program: Program) -> Agreement | None:
    """What the ranks that run a program have to agree on; None where it exchanges nothing."""
    for body in program.bodies:
        for instruction in body.body:
            op = instruction.op
            if isinstance(op, Collective):
                line = getattr(op, "line", "") or program.line(body, instruction)
                return Agreement(program, op.rank_count, line)
    return None
