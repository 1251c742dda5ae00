"""Exact fusion: the greedy choice, improved window by window.

A window is a set of blocks whose kernels depend on one another, at most `MOST_BLOCKS` of them; what
lies outside stays as it is. Every kernel that the window allows is drafted and costed as greedy
would, and the solver takes the cheapest ones that fit together. No window gets dearer, so the whole
is never dearer than greedy's choice, neither before nor after kernels are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from time import thread_time
from typing import Final

from weft.foundation.records import dataclass
from weft.foundation.tally import counted
from weft.poly_view.ir import BlockKind
from weft.region.fusion.greedy import HEAVY, LARGEST, Fusion, is_shorter
from weft.region.fusion.merge import Group, merge_groups
from weft.region.fusion.milp import Candidate, Solution, Window, solve
from weft.region.fusion.resources import stop_reason
from weft.region.fusion.windows import MOST_BLOCKS, TIME_LIMIT, windows_of
from weft.region.ir import Kernel
from weft.region.writing.emit import Root, Stop

MOST_CANDIDATES: Final = 512
"""Kernels that are drafted for one window; with more, it is cut in two."""
DRAFTING: Final = 0.8 * TIME_LIMIT
"""Seconds in which they are drafted, or else it is cut in two; the solver has what is left."""


def fuse_exactly(fusion: Fusion) -> list[Group]:
    """The roots of every kernel, in an order in which they can run."""
    fusion.choose()
    greedy = set(fusion.inlined)
    before = _merge_all(fusion)
    search = _Search(fusion)
    fusion.inlined = greedy
    search.run()
    after = _merge_all(fusion)
    # What takes less before kernels are merged may take more after it.
    best = after if is_shorter(after.seconds, before.seconds) else before
    times = f"{1e6 * before.seconds:.1f} µs by greedy, {1e6 * best.seconds:.1f} µs now"
    fusion.inlined = best.inlined
    fusion.notes.append(f"{search}: {times}")
    return best.groups


@dataclass(frozen=True)
class _Merged:
    """A choice after its kernels were merged, which inlines some more, and what they take."""

    groups: list[Group]
    inlined: set[str]
    seconds: float


def _merge_all(fusion: Fusion) -> _Merged:
    groups, blocks = merge_groups(fusion), fusion.view.blocks
    drafted = [g for g in groups if blocks[g[0].block].kind is not BlockKind.OPAQUE]
    seconds = sum(fusion.kernel(group)[1] for group in drafted)
    return _Merged(groups, set(fusion.inlined), seconds)


class _TooMany(Exception):
    """A window allows more kernels than are worth drafting."""


@dataclass(frozen=True)
class _Cut:
    """One kernel of a root: everything it inlines, and of the window what it computes and what it
    reads."""

    needed: frozenset[str]
    computed: frozenset[str]
    read: frozenset[str]


@dataclass
class _Search:
    """The windows of one program."""

    fusion: Fusion
    solved: dict[Window, Solution | None] = field(default_factory=dict)
    windows: int = 0
    unproved: int = 0

    def __str__(self) -> str:
        late = f", {self.unproved} of them not to the end" if self.unproved else ""
        return (
            f"exact fusion, {counted(self.windows, 'window')} of up to {MOST_BLOCKS} blocks, "
            f"{len(self.solved)} distinct, {TIME_LIMIT:g} s each at most{late}"
        )

    def run(self) -> None:
        for blocks in windows_of(self.fusion):
            self._improve(blocks)

    def _improve(self, blocks: Sequence[str]) -> None:
        """Take the cheapest choice about these blocks, where it is cheaper than the present one."""
        started = thread_time()
        try:
            window, roots = window_of(self.fusion, blocks, started + DRAFTING)
        except _TooMany:
            if len(blocks) > 1:
                self._improve(blocks[len(blocks) // 2 :])
                self._improve(blocks[: len(blocks) // 2])
            return
        if window not in self.solved:
            left = TIME_LIMIT - (thread_time() - started)
            self.solved[window] = solve(window, max(0.0, left))
        self.windows += 1
        solution = self.solved[window]
        self.unproved += solution is None or not solution.proved
        if solution is not None and is_shorter(solution.seconds, self._present(blocks, roots)):
            self._take(blocks, solution)

    def _present(self, blocks: Sequence[str], roots: Sequence[str]) -> float:
        """What the kernels around a window take now."""
        stored = [name for name in blocks if name not in self.fusion.inlined]
        return sum(self.fusion.kernel((Root(name),))[1] for name in (*stored, *roots))

    def _take(self, blocks: Sequence[str], solution: Solution) -> None:
        fusion = self.fusion
        for number, name in enumerate(blocks):
            if number in solution.stored:
                fusion.inlined.discard(name)
            else:
                fusion.inlined.add(name)


# -- windows -------------------------------------------------------------------------------------


def window_of(
    fusion: Fusion, blocks: Sequence[str], until: float = math.inf
) -> tuple[Window, list[str]]:
    """Every kernel that a choice about some blocks allows, and the roots outside that take part.
    Who drafts them has time `until` then, by the clock of the thread."""
    numbers = {name: number for number, name in enumerate(blocks)}
    roots = _roots_around(fusion, numbers)
    found: list[Candidate] = []
    heavy: dict[str, int] = {}
    left = MOST_CANDIDATES
    for number, root in enumerate((*blocks, *roots)):
        cuts = list(_cuts(fusion, root, numbers, left))
        left -= len(cuts)
        for cut, seconds in _kernels(fusion, root, cuts, until):
            computed, read = (
                tuple(sorted(numbers[name] for name in names)) for names in (cut.computed, cut.read)
            )
            once = (n for n in sorted(cut.needed) if fusion.view.blocks[n].kind in HEAVY)
            limited = tuple(heavy.setdefault(name, len(heavy)) for name in once)
            found.append(Candidate(number, computed, read, limited, seconds))
    return Window(len(blocks), tuple(found)), roots


def _roots_around(fusion: Fusion, window: Mapping[str, int]) -> list[str]:
    """The stored blocks outside whose kernels could compute blocks of the window."""
    found: dict[str, None] = {}
    stack, seen = list(window), set(window)
    while stack:
        for reader in fusion.readers[stack.pop()]:
            if reader in window or reader in fusion.inlined:
                if reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
            else:
                found[reader] = None
    return list(found)


def _cuts(fusion: Fusion, root: str, window: Mapping[str, int], most: int) -> Iterator[_Cut]:
    """Every way to compute or read what a root needs of the window."""
    count = 0
    empty = frozenset[str]()
    states = [(tuple(fusion.sources[root]), _Cut(empty, empty, empty))]
    while states:
        pending, cut = states.pop()
        while pending:
            name, pending = pending[-1], pending[:-1]
            if name in cut.needed or name in cut.read:
                continue
            if name in window:
                # Read it from memory, in a state that is gone on with later; or compute it, here
                # and now.
                states.append((pending, _Cut(cut.needed, cut.computed, cut.read | {name})))
                cut = _Cut(cut.needed | {name}, cut.computed | {name}, cut.read)
            elif name in fusion.inlined:
                cut = _Cut(cut.needed | {name}, cut.computed, cut.read)
            else:
                continue
            pending += fusion.sources[name]
        count += 1
        if count > most:
            raise _TooMany
        yield cut


def _kernels(
    fusion: Fusion, root: str, cuts: Sequence[_Cut], until: float
) -> Iterator[tuple[_Cut, float]]:
    """The cuts that are kernels, within the machine's limits; the present one is in any case."""
    fewest = min(cuts, key=lambda cut: len(cut.needed))
    present = fusion.closure((root,))
    bare = _draft(fusion, root, fewest)
    for cut in cuts:
        if thread_time() > until:
            raise _TooMany
        found = _draft(fusion, root, cut)
        if found is None or len(cut.needed) >= LARGEST:
            continue
        kernel, seconds = found
        start = kernel if bare is None else bare[0]
        stop = stop_reason(start, kernel, fusion.tensors, fusion.target, weighed=True)
        # So the present choice is among the candidates, and a solution is never dearer.
        if stop is None or cut.needed == present:
            yield cut, seconds


def _draft(fusion: Fusion, root: str, cut: _Cut) -> tuple[Kernel, float] | None:
    try:
        return fusion.drafted((Root(root),), cut.needed)
    except Stop:
        return None
