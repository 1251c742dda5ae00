"""The cost model of CPU kernels: the time of a kernel under a plan, counted in the loops that the
plan makes.

A kernel's own price (`region.cost`) counts what has to be done; this one counts what is done: rests
of tiles, operands packed again for every block, rows computed twice, sums that wait for one
another, and data that come again because a cache did not keep them. The rates are the target's, and
computing and moving are put together alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.counts import Access, Place, count
from weft.target.roofline import quantisation, together
from weft.target.target import Target

_LINE: Final = 64
"""Bytes that caches move at a time."""
_FIRST: Final = 1.0
"""Lines that could have come in the time that the first one of a run takes longer: those after it
are fetched ahead."""
_BYTES_A_CYCLE: Final = (32.0, 10.0)
"""From the second cache, and from the third."""
_ROOM: Final = 0.75
"""Of a cache, what a loop finds again."""
_PIECE: Final = 8e-9
"""Seconds to hand out a piece."""


@dataclass(frozen=True)
class Price:
    """Seconds of one core for all pieces, computing and moving from beyond each cache, and of all
    cores together, with the launch."""

    computing: float
    moving: tuple[float, ...]
    seconds: float


def price(routine: ir.Routine, target: Target) -> Price:
    """The price of a routine on all units of its target."""
    root, limits, rates = count(routine, target), target.limits, target.rates
    # The rate of multiply-adds is two a cycle and unit, of two operations for each lane.
    cycle = 4 * max(1, limits.vector_bits // 32) * limits.units / rates.matrix_flops["f32"]
    registers = limits.vector_registers or 16
    computing = cycle * sum(p.runs * p.cycles(registers) for p in root.every())
    moving = tuple(_seconds_to_move(root, routine, target, cycle))
    seconds = together(target, (computing, *moving)) + _PIECE * routine.pieces
    busy = limits.units * quantisation(routine.pieces, limits.units)
    return Price(computing, moving, seconds / busy + rates.launch_seconds)


def _seconds_to_move(root: Place, routine: ir.Routine, target: Target, cycle: float) -> list[float]:
    """Seconds of one core to move what comes from beyond each cache."""
    memory = [(b.dtype, b.elements) for b in routine.buffers] + list(routine.scratch)
    sizes = {number: dtype.storage_bytes * n for number, (dtype, n) in enumerate(memory)}
    caches = target.limits.cache_bytes[: len(_BYTES_A_CYCLE) + 1]
    from_memory = target.limits.units / target.rates.bandwidth
    rates = [*(cycle / each for each in _BYTES_A_CYCLE[: len(caches) - 1]), from_memory]
    return [
        rate * _traffic(root, sizes, _ROOM * room)
        for rate, room in zip(rates, caches, strict=False)
    ]


def _traffic(place: Place, sizes: Mapping[int, int], room: float) -> float:
    """Bytes that come from beyond a cache each time a loop is entered. What one run touches and the
    cache keeps is there for the next one; of what it does not keep, every run fetches its own."""
    # What a run of the loop touches is still there for the next run: from beyond the cache comes
    # what all runs together touch, once. Otherwise the loop's own accesses are fetched in every
    # turn, and each inner loop is asked the same.
    if _touched_bytes(place, sizes, place.along) <= room:
        return _touched_bytes(place, sizes, place.along | {place.loop.var}) if place.loop else 0.0
    alone = _touched_bytes(replace(place, inner=[]), sizes, frozenset(place.sides))
    return place.trips * (alone + sum(_traffic(inner, sizes, room) for inner in place.inner))


def _touched_bytes(place: Place, sizes: Mapping[int, int], along: frozenset[str]) -> float:
    """Bytes of the lines that a place, and all inside it, touches along some loops."""
    alike: dict[tuple[int, tuple[tuple[str, float], ...]], list[Access]] = {}
    for inner in place.every():
        for access in inner.accesses:
            alike.setdefault((access.buffer, access.steps), []).append(access)
    total = dict.fromkeys(sizes, 0.0)
    for (buffer, _), accesses in alike.items():
        run, runs = _bytes_and_runs(accesses[0], along)
        # Accesses whose steps are alike move together: those that overlap count once.
        end, united = -math.inf, 0.0
        for first in sorted(access.first for access in accesses):
            united += first + run - max(first, min(end, first + run))
            end = first + run
        lines = max(1.0, united / _LINE) + (_FIRST if runs > 1 else 0.0)
        total[buffer] += runs * lines * _LINE
    # No more lines than the tensor has, each the first of a run at worst.
    return sum(min(found, (1 + _FIRST) * sizes[buffer]) for buffer, found in total.items())


def _bytes_and_runs(access: Access, along: frozenset[str]) -> tuple[float, float]:
    """The bytes of a run that loops touch without a gap, and how many such runs lie apart."""
    run, runs = float(access.item), 1.0
    for name, step in sorted(access.steps, key=lambda pair: abs(pair[1])):
        if name in along and step:
            # Steps up to a line touch all lines between: a gap that is shorter is fetched too.
            if abs(step) <= max(run, _LINE):
                run += abs(step) * (access.trips[name] - 1)
            else:
                runs *= access.trips[name]
    return run, runs
