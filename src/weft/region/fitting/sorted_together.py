"""Scatters that are alike, as the gradients of a recommender's tables: their updates are sorted by
the same kernels.

    a = scatter(x, i); ...; b = scatter(y, j)    ->    sort(i, j); a = gather(x); ...; b = gather(y)

Sorting a few thousand places is a dozen kernels that hardly take longer than their start, and of
which each waits for the one before. Kernels that make places, and whatever they are made of, move
in front of the first scatter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.whole_ops import Scatter
from weft.region.fitting.whole_ops import is_worth_sorting
from weft.region.ir import Kernel, Module, Pattern, Tensor

_MOST_UPDATES: Final = 1 << 17
"""Of one scatter: its kernels take less time than their starts."""
_MOST_SCATTERS: Final = 32
"""Each is an operand and a result of one kernel."""


def sorted_together(module: Module) -> tuple[Module, dict[str, tuple[Kernel, ...]]]:
    """The module with places made early enough, and the scatters whose updates are sorted with
    those of each scatter: of several, all with the first and none with the others."""
    order = _Order(module)
    groups: dict[object, list[list[int]]] = {}
    for number, kernel in enumerate(module.kernels):
        key = _likeness(kernel, module.tensors)
        if key is None:
            continue
        several = groups.setdefault(key, [])
        if not several or not order.may_join(number, several[-1]):
            several.append([])
        several[-1].append(number)
    found = [group for several in groups.values() for group in several if len(group) > 1]
    made: dict[str, tuple[Kernel, ...]] = {}
    for group in found:
        kernels = [module.kernels[number] for number in group]
        made |= {kernel.name: () for kernel in kernels} | {kernels[0].name: tuple(kernels)}
    return replace(module, kernels=order.with_places_first(found)), made


def _likeness(kernel: Kernel, tensors: Mapping[str, Tensor]) -> object:
    """What scatters must have in common; None for other kernels, and where sorting takes long."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, Scatter):
        return None
    op, (x, index, _) = call.op, (tensors[name] for name in call.inputs)
    if op.outer > 1 or (op.each and op.width > 1) or op.count > _MOST_UPDATES:
        return None
    return (op.rows, op.count, index.dtype) if is_worth_sorting(op, x) else None


class _Order:
    """Which kernels have to run before which."""

    def __init__(self, module: Module) -> None:
        self.kernels = module.kernels
        makers: dict[str, int] = {}
        self.before: list[frozenset[int]] = []
        for number, kernel in enumerate(module.kernels):
            bases = [output.base for output in kernel.outputs if output.base is not None]
            self.before.append(
                frozenset(makers[n] for n in (*kernel.inputs, *bases) if n in makers)
            )
            makers |= {output.tensor: number for output in kernel.outputs}
        self.makers = makers

    def places_of(self, number: int) -> set[int]:
        """The kernels that the places of a scatter are made by, and those before these."""
        call = self.kernels[number].opaque
        maker = self.makers.get(call.inputs[1]) if call is not None else None
        left = [] if maker is None else [maker]
        found = set(left)
        while left:
            fresh = self.before[left.pop()] - found
            found |= fresh
            left += fresh
        return found

    def may_join(self, number: int, group: list[int]) -> bool:
        """Whether the places of a scatter can be made before the first one of a group runs."""
        late = {found for found in self.places_of(number) if found >= group[0]}
        maps = all(self.kernels[found].pattern is Pattern.MAP for found in late)
        return maps and len(group) < _MOST_SCATTERS

    def with_places_first(self, groups: list[list[int]]) -> tuple[Kernel, ...]:
        """The kernels with the places of every group made before its first scatter."""
        early: dict[int, set[int]] = {
            group[0]: set[int]().union(*map(self.places_of, group)) for group in groups
        }
        made: dict[int, None] = {}
        for number in range(len(self.kernels)):
            wanted = sorted(early.get(number, ()))
            made.update(dict.fromkeys((*wanted, number)))
        return tuple(self.kernels[number] for number in made)
