"""L2 cache hints of elementwise kernels: which data the second-level cache should keep or evict
first.

Hints are for tensors many times as large as the cache: nothing of them is left for the next kernel
either way. Operands that come point by point get in the way of the writes less where they last; and
rows that are gathered may be wanted again, so results pass by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Final

from weft.memory.ir import MemRef
from weft.region.ir import Kernel, Read
from weft.target.target import Target

_MANY_TIMES: Final = 4
"""Of the cache's bytes. Where operands last a concat of 268 MB takes 124.3 instead of 125.3 us, a
copy of 2 GB 988 instead of 1003, a transpose of 1 GB 508 instead of 516; but a copy of 134 MB 62.7
instead of 62.0, and padding 103 MB 47.9 instead of 47.0."""


class CacheHints:
    """The operands of a kernel that should last, and whether its results pass by."""

    def __init__(self, kernel: Kernel, refs: Mapping[str, MemRef], target: Target) -> None:
        reads = {let.name: let.expr for let in kernel.body if isinstance(let.expr, Read)}
        gathered = {name for name, read in reads.items() if read.places}
        axes = {axis.name for axis in kernel.axes if axis.size > 1}
        streams = {name for name in reads if axes <= set(kernel.let(name).axes)} - gathered
        large = _MANY_TIMES * target.limits.cache_bytes[-1]
        come = _tensor_bytes(refs, (reads[name].tensor for name in streams))
        stored = _tensor_bytes(refs, (output.tensor for output in kernel.outputs))
        self.lasting = frozenset(streams if come >= large else ())
        self.passing = bool(gathered) and stored >= large


def _tensor_bytes(refs: Mapping[str, MemRef], tensors: Iterable[str]) -> int:
    """Of all these tensors, once each."""
    return sum(prod(refs[name].shape) * refs[name].element_bytes for name in {*tensors})
