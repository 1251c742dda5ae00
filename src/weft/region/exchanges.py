"""Scheduling of collectives among the kernels: when reductions over ranks are carried out, and
which of them together.

An exchange goes on while kernels run, until something reads what it gives. So what needs no result
of one comes before what does, and the exchanges stand in the order in which their operands are
made: gradients in that of the backward pass. Neighbours that are reduced alike are one exchange, a
bucket, because many small exchanges take longer than a large one. One that reads the result of
another is never in the same bucket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from weft.foundation.ranks import ReducesOverRanks
from weft.foundation.records import replace
from weft.region.ir import Kernel, Module

BUCKET = 4 << 20
"""Bytes from which on a bucket is full: an exchange of so many takes hundreds of times as long as
an empty one."""


def reduced_alike(kernel: Kernel, module: Module) -> Hashable | None:
    """What reductions over ranks have in common that can be one exchange; None for all else."""
    call = kernel.opaque
    if call is None or call.pairs or not isinstance(call.op, ReducesOverRanks):
        return None
    return (call.op.ranks_and_fn, module.tensors[call.inputs[0]].dtype)


def buckets(module: Module) -> Iterator[tuple[Kernel, ...]]:
    """The kernels in order, those together that are one exchange."""
    held: list[Kernel] = []
    for kernel in module.kernels:
        if held and not _joins(kernel, held, module):
            yield tuple(held)
            held = []
        held.append(kernel)
    if held:
        yield tuple(held)


def _joins(kernel: Kernel, held: list[Kernel], module: Module) -> bool:
    key = reduced_alike(kernel, module)
    made = {name for other in held for name in _made_tensors(other)}
    return (
        key is not None
        and key == reduced_alike(held[0], module)
        and _result_bytes(held, module) < BUCKET
        and made.isdisjoint(kernel.inputs)
    )


def _result_bytes(kernels: list[Kernel], module: Module) -> int:
    return sum(module.tensors[output.tensor].bytes for k in kernels for output in k.outputs)


def as_they_are_made(module: Module) -> Module:
    """The module with its exchanges in buckets, each as early as its operands are there, and what
    needs them as late as it can be."""
    if all(reduced_alike(kernel, module) is None for kernel in module.kernels):
        return module
    return replace(module, kernels=tuple(_Order(module).kernels()))


@dataclass
class _Order:
    """Kernels on their way into another order."""

    module: Module
    open: dict[Hashable, list[Kernel]] = field(default_factory=dict)
    """Exchanges whose operands are there, in buckets that are not full."""
    coming: Counter[Hashable] = field(default_factory=Counter)
    """How many more there will be of each kind before one is needed."""
    done: list[Kernel] = field(default_factory=list)

    def kernels(self) -> list[Kernel]:
        left = list(self.module.kernels)
        while left:
            now, left = self._split_ready(left)
            self._round(now)
        return self.done

    def _split_ready(self, kernels: list[Kernel]) -> tuple[list[Kernel], list[Kernel]]:
        """What needs no exchange among these kernels, exchanges too, and what does."""
        away = {name for kernel in kernels if self._key(kernel) for name in _made_tensors(kernel)}
        now, left = [], []
        for kernel in kernels:
            bases = {output.base for output in kernel.outputs if output.base is not None}
            if away.isdisjoint({*kernel.inputs, *bases}):
                now.append(kernel)
            else:
                left.append(kernel)
                away.update(_made_tensors(kernel))
        return now, left

    def _round(self, kernels: list[Kernel]) -> None:
        """Kernels and exchanges that need none of each other's results."""
        exchanges = [kernel for kernel in kernels if self._key(kernel)]
        self.coming = Counter(map(self._key, exchanges))
        waiting: dict[str, list[Kernel]] = {}
        for kernel in exchanges:
            waiting.setdefault(kernel.inputs[0], []).append(kernel)
        here = {name for kernel in kernels for name in _made_tensors(kernel)}
        for operand in [name for name in waiting if name not in here]:
            self._collect(waiting.pop(operand))
        for kernel in kernels:
            if self._key(kernel) is None:
                self.done.append(kernel)
                for name in _made_tensors(kernel):
                    self._collect(waiting.pop(name, []))

    def _key(self, kernel: Kernel) -> Hashable | None:
        return reduced_alike(kernel, self.module)

    def _collect(self, exchanges: list[Kernel]) -> None:
        """Put exchanges whose operands are there into their buckets. One that is full, or to which
        no more come, is carried out."""
        for kernel in exchanges:
            key = self._key(kernel)
            held = self.open.setdefault(key, [])
            held.append(kernel)
            self.coming[key] -= 1
            if not self.coming[key] or _result_bytes(held, self.module) >= BUCKET:
                self.done += self.open.pop(key)


def _made_tensors(kernel: Kernel) -> tuple[str, ...]:
    """What a kernel makes, in an order that is the same in every process: ranks that take their
    exchanges in different orders add up different tensors."""
    return tuple(dict.fromkeys(output.tensor for output in kernel.outputs))
