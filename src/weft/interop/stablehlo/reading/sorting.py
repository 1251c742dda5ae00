"""Orders: sorts by keys where the comparator is an order by keys, by exchanges where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.bits import total_order
from weft.interop.stablehlo.reading.comparators import Key, canonical_source, keys_of, part_of
from weft.interop.stablehlo.reading.reductions import run_on_tensors
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.ptir.builder import Value


def _sort(at: Site) -> Results:
    values = at.aligned(at.x)
    axis = int(at.attr("dimension", -1)) % max(values[0].rank, 1)
    keys = keys_of(at.op.blocks[0])
    if keys is None:
        return _by_exchanges(at, values, axis)
    lightest, *heavier = reversed(keys)
    order = _argsort(at, _tensor_of(at, lightest, values), axis, lightest.descending)
    for key in heavier:
        met = at.b.emit("gather", _tensor_of(at, key, values), order, axis=axis)
        again = _argsort(at, met, axis, key.descending)
        order = at.b.emit("gather", order, again, axis=axis)
    return [at.b.emit("gather", x, order, axis=axis) for x in values]


def _argsort(at: Site, key: Value, axis: int, descending: bool) -> Value:
    return at.b.emit("argsort", key, axis=axis, descending=descending, output_dtype=SI64)


def _tensor_of(at: Site, key: Key, values: Sequence[Value]) -> Value:
    """A key for all elements at once."""
    block = at.op.blocks[0]
    source = canonical_source(block, key.value)
    if source is not None:
        return values[block.arguments.index(source) // 2]
    both = [value for value in values for _ in range(2)]
    (found,) = run_on_tensors(at, part_of(block, key.value), both)
    return total_order(at, found) if key.total and found.dtype.is_float else found


# -- any comparator ------------------------------------------------------------------------------


def _by_exchanges(at: Site, values: Sequence[Value], axis: int) -> list[Value]:
    """Batcher's bitonic network: in every step each element meets one other, and the two are
    exchanged where the comparator says so. Each carries its place, which decides among equals."""
    size = at.static(values[0])[axis]
    last = [*(a for a in range(values[0].rank) if a != axis), axis]
    back = np.argsort(last).tolist()
    width = 1 << max(size - 1, 0).bit_length()
    front = [_filled(at, at.transposed(value, last), width) for value in values]
    places = at.b.iota(SI64, front[0].shape, front[0].rank - 1)
    met = [*front, places]
    for run in (1 << n for n in range(1, width.bit_length())):
        for distance in (run >> n for n in range(1, run.bit_length())):
            met = _exchanged(at, met, run, distance, size)
    sizes = [*at.static(front[0])[:-1], size]
    cut = (at.sliced(value, [0] * len(sizes), sizes) for value in met[:-1])
    return [at.transposed(value, back) for value in cut]


def _filled(at: Site, x: Value, width: int) -> Value:
    high = [0] * (x.rank - 1) + [width - at.static(x)[-1]]
    none = [0] * x.rank
    return at.b.emit("pad", x, low=none, high=high, interior=none, pad_value=0) if high[-1] else x


def _exchanged(
    at: Site, values: Sequence[Value], run: int, distance: int, size: int
) -> list[Value]:
    """One step: elements at this distance meet; every other run is sorted backwards."""
    *outer, width = at.static(values[0])
    cut = [*outer, width // (2 * distance), 2, distance]
    pairs = [_halves(at, at.reshaped(value, cut)) for value in values]
    first, second = ([pair[side] for pair in pairs] for side in (0, 1))
    starts = np.arange(0, width, 2 * distance)
    backwards = at.b.constant((starts & run != 0).reshape(*(1 for _ in outer), -1, 1, 1))
    wrong = _precedes(at, second, first, size) ^ at.spread(backwards, first[0].shape)
    made = []
    for low, high in pairs:
        halves = at.b.emit("select", wrong, high, low), at.b.emit("select", wrong, low, high)
        made.append(at.reshaped(at.b.concat(halves, len(cut) - 2), [*outer, width]))
    return made


def _halves(at: Site, x: Value) -> tuple[Value, Value]:
    sizes = list(at.static(x))
    sizes[-2] = 1
    zeros = [0] * x.rank
    after = [*zeros[:-2], 1, 0]
    return at.sliced(x, zeros, sizes), at.sliced(x, after, sizes)


def _precedes(at: Site, left: Sequence[Value], right: Sequence[Value], size: int) -> Value:
    """Whether elements come before others. What fills up comes last, in the order of places."""
    block = at.op.blocks[0]
    *these, place = left
    *those, other = right
    (before,) = run_on_tensors(at, block, _by_turns(these, those))
    (after,) = run_on_tensors(at, block, _by_turns(those, these))
    earlier = place < other
    real = (place < size) & (other < size)
    return at.b.emit("select", real, before | (~after & earlier), earlier)


def _by_turns(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
    return [value for pair in zip(left, right, strict=True) for value in pair]


# -- the largest ---------------------------------------------------------------------------------


def _top_k(at: Site) -> Results:
    (x,) = at.x
    found = at.b.emit(
        "top_k", x, k=int(at.attr("k")), axis=-1, largest=bool(at.attr("largest", True)),
        indices_dtype=at.result(1).dtype,
    )  # fmt: skip
    return list(found)


SORTING: Final[Mapping[str, Lowering]] = {"sort": _sort, "top_k": _top_k, "topk": _top_k}
