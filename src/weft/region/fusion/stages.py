"""Inlining, staging or storing of fused values, improved window by window.

The start is a choice that computes nothing twice. Block by block, the other answer is tried: to
compute a block where it is read, or to keep it, so that its kernel becomes a stage of the one that
reads it, or stays by itself. All kernels are then fitted to the machine and joined as ever, and the
answer counts if they take less time so. Blocks that several kernels compute come first, for a stage
computes them once; then those that take little to compute again. A window ends when so many answers
in turn were no better, on every machine alike, or when it has had its time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Final

from weft.foundation.tally import counted
from weft.region.cost import kernel_seconds, operations_of
from weft.region.fusion.greedy import LARGEST, Fusion, is_shorter
from weft.region.fusion.resources import stop_reason
from weft.region.fusion.windows import TIME_LIMIT
from weft.region.ir import Module
from weft.region.writing.emit import Root, Stop

MOST_STAGES: Final = 12
"""Of one kernel, where this much is tried."""
MOST_TRIES: Final = 16
"""Answers in turn that are no better, after which a window stays as it is. In the programs of
`benchmarks/fusion_programs.py` those that are better are found at the first."""
_CHEAP: Final = 4
"""Operations of a block that is hardly work to compute again."""

Lower = Callable[[Fusion], Module]
"""From a choice to kernels, with all stages that pay."""


@dataclass
class Search:
    """The choice about the blocks around stages. `lower` makes kernels of one."""

    fusion: Fusion
    lower: Lower
    best: Module | None = None
    taken: float = float("inf")
    tried: int = 0
    windows: int = 0
    _known: set[tuple[frozenset[str], frozenset[str]]] = field(default_factory=set)

    def run(self, windows: Sequence[Sequence[str]]) -> Module | None:
        """The kernels of the best choice found, with a note; None where none could be made."""
        self._try(self.fusion.inlined, ())
        for blocks in windows:
            if self._has_stages(blocks):
                self.windows += 1
                self._improve(blocks, thread_time() + TIME_LIMIT)
        return self.best

    def __str__(self) -> str:
        return (
            f"stages chosen in {counted(self.windows, 'window')}, {TIME_LIMIT:g} s each at most: "
            f"{counted(self.tried, 'choice')} tried"
        )

    def _has_stages(self, blocks: Collection[str]) -> bool:
        """Whether stages are made of blocks of a window, and so of what is around them."""
        sources = self.fusion.view.sources
        names = {sources[name].tensor.name for name in blocks if name in sources}
        kernels = self.best.kernels if self.best is not None else ()
        return any(stage.name in names for kernel in kernels for stage in kernel.stages)

    def _improve(self, blocks: Sequence[str], until: float) -> None:
        fusion, changed, found = self.fusion, True, self.tried
        while changed:
            changed = False
            for name in self._in_turn(blocks):
                if self.tried - found >= MOST_TRIES or thread_time() > until:
                    return
                better = False
                if name in fusion.inlined:
                    better = self._try(fusion.inlined - {name}, {*fusion.kept, name})
                elif self._may_inline(name):
                    better = self._try(fusion.inlined | {name}, {*fusion.kept} - {name})
                if better:
                    changed, found = True, self.tried

    def _in_turn(self, blocks: Sequence[str]) -> Iterator[str]:
        """The blocks that there are two answers about, the most promising first."""
        fusion = self.fusion
        users = {name: len(fusion.roots_using(name)) for name in blocks if fusion.is_work(name)}
        again = [name for name in users if name in fusion.inlined and users[name] > 1]
        cheap = [name for name in users if name not in fusion.inlined and self._is_cheap(name)]
        yield from dict.fromkeys((*again, *cheap, *users))

    def _is_cheap(self, name: str) -> bool:
        return operations_of(self.fusion.view.blocks[name].fn) <= _CHEAP

    def _may_inline(self, name: str) -> bool:
        """Whether every kernel that reads a block may compute it, within the machine's limits."""
        fusion = self.fusion
        for user in fusion.roots_using(name):
            inside = fusion.closure((user,))
            more = fusion.closure((user,), (name,))
            if len(more) >= LARGEST:
                return False
            try:
                before, after = (fusion.drafted((Root(user),), n)[0] for n in (inside, more))
            except Stop:
                return False
            if stop_reason(before, after, fusion.tensors, fusion.target, in_stages=True):
                return False
        return True

    def _try(self, inlined: Collection[str], kept: Collection[str]) -> bool:
        """Take a choice if its kernels take less time than the best so far."""
        key = frozenset(inlined), frozenset(kept)
        if key in self._known:
            return False
        self._known.add(key)
        choice = self.fusion.afresh(one_place=True)
        choice.inlined, choice.kept = set(inlined), frozenset(kept)
        try:
            module = self.lower(choice)
        except Stop:
            return False
        self.tried += 1
        target = self.fusion.target
        seconds = sum(kernel_seconds(kernel, module.tensors, target) for kernel in module.kernels)
        if not is_shorter(seconds, self.taken):
            return False
        self.best, self.taken = module, seconds
        self.fusion.inlined, self.fusion.kept = set(inlined), frozenset(kept)
        return True
