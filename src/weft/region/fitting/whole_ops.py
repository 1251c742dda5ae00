"""Sorting, scatter and cumulative reductions on a GPU: a kernel of their own for each step.

    order of long rows       -->  passes over the digits of the keys, from the lowest one up
    running, of long columns -->  each part combined, then along each, what came before it first
    product of groups        -->  which rows each tile has, then the tiles
    scatter of many          -->  passes over the digits of the places, where each place begins,
                                  then all updates of a place, or many of them by a team
    sums of many elements    -->  passes over the upper digits of the places, then a block for all
                                  updates whose places have these in common

Updates of several scatters that are alike are sorted by the same kernels (`sorted_together`).
What comes out is the same at every run: sorting is stable, and updates are combined in an order
that depends on them alone. Of running sums in parts, and of sums of many updates, the last digits
differ from those of one long sum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import F32, SI32, UI32, DType
from weft.foundation.grouped_rows import GroupedRows, OuterRows
from weft.foundation.radix_sort import Digits, Moved, Starts, UpdatesMoved, UpperDigits
from weft.foundation.records import dataclass, replace
from weft.foundation.whole_ops import (
    Binned,
    Collected,
    Continued,
    Gathered,
    Order,
    Running,
    Scatter,
    Totals,
    WholeOp,
)
from weft.region.fitting.grouped_rows import in_tiles, with_spans
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Parts = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]
# Rows of 16,384 elements, 16 to a thread, took 79 µs in a network and 50 to 58 by digits (H200).
LONGEST_SORTED: Final = 8192
"""Elements of a row that one block sorts."""
_DIGIT: Final = 8
"""Bits of a digit, at most."""
_TILE: Final = 4096
"""Elements that a block counts or moves in a pass, at most."""
_SMALLER_TILES: Final = ((1 << 17, 1024), (1 << 22, 2048))
"""The same where there are at most so many elements: a block for every unit, and enough warps on
each to wait for one another's counters."""
_TILE_STEP: Final = 256
"""Elements that its threads take at a time."""
_MOST_PAIRS: Final = (1 << 30) - (1 << 19)
"""Elements whose pairs are counted in 32 bits, with room to count past the last of them."""
_MOST_PLACES: Final = 2 * _MOST_PAIRS
"""Places of updates: 32 bits hold each, and count where the updates of each begin."""
_LONG_RUN: Final = 64
"""Updates of one place that a block takes together, at least."""
_MOST_LONG, _COLUMNS = 8, 32
_MANY_UPDATES: Final = 1024
"""Updates from which on sorting them is worth while."""
_MANY_INDICES: Final = 2048
"""Columns with indices of their own up to which it is."""
_MANY_ROWS: Final = 1024
"""Single elements that are places of updates from which on bins are worth while: fewer have long
runs, which are taken by teams."""
_MOST_KEPT: Final = 1 << 25
"""Sums that blocks may have to keep of pieces: there is memory for them whether they do or not."""
_LEAST_KEPT: Final = 1024
"""Of one piece."""
_BIN_BITS: Final = 12
"""Lower bits of places that bins leave out, at most: a block has a sum for each."""
_LEAST_BIN_BITS: Final = 2
_BINS: Final = 1 << _DIGIT
_MANY_IN_BIN: Final = 2048
"""Updates."""
_LARGEST_PIECE: Final = 4352
"""Updates of a bin that a block takes at once: 4096, and what chance adds to them."""
_CHANCE: Final = 4
"""Standard deviations by which a bin may have more updates than others, and still be one piece: so
it is for all but one bin in 30,000."""
_SMALL_FLOAT: Final = 16
"""Bits of floats that lose digits where they are added up in their own dtype."""
_LONG_COLUMN: Final = 1 << 14
"""Elements of a column that one block takes at a time."""
_FEW_COLUMNS: Final = 256
"""Columns that are too few to keep all units at work with a block each."""
_CHUNK: Final = 4096
"""Elements of a part, at least."""
_MOST_PARTS: Final = 1024
"""Of all columns together."""


def whole_in_parts(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    zeros: Collection[str] = (),
    together: Sequence[Kernel] | None = None,
) -> Parts:
    """The kernels that take the place of one that carries an op whole, and what is between them.
    `zeros` are tensors of which that is known; `together` are the scatters whose updates are sorted
    here, if it is not this one alone."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, WholeOp):
        return (kernel,), ()
    match call.op:
        case GroupedRows():
            return in_tiles(kernel, call, call.op)
        case OuterRows():
            return with_spans(kernel, call, call.op)
        case Order() if goes_by_digits(call.op):
            return _split_order(kernel, call, call.op, tensors[call.inputs[0]].dtype)
        case Running() if _goes_in_parts(call.op):
            return _split_running(kernel, call, call.op, tensors[call.inputs[0]].dtype)
        case Scatter() if is_worth_sorting(call.op, tensors[call.inputs[0]]):
            here = (kernel,) if together is None else tuple(together)
            dtype = tensors[call.inputs[0]].dtype
            zero = call.inputs[0] in zeros
            return _scatter(kernel, call, call.op, dtype, here, is_onto_zeros=zero)
    return (kernel,), ()


def is_worth_sorting(op: Scatter, x: Tensor) -> bool:
    """Whether updates are many, or several that are combined in a wider dtype than the result's. A
    thread that looks at all updates takes 0.15 us for each. Updates with an index of their own for
    each column are sorted one by one, which takes 12 us a pass for a million of them. Those that
    have no order are combined as they come."""
    if op.has_any_order(x.dtype):
        return False
    sorted_ones = op.outer * op.count * (op.width if op.each else 1)
    elements = math.prod(x.shape)
    if not 0 < sorted_ones <= _MOST_PAIRS or not 0 < elements < _MOST_PLACES - op.outer:
        return False
    many = op.count >= _MANY_UPDATES and not (op.each and op.width > _MANY_INDICES)
    return many or (adds_up_wide(op, x.dtype) and op.count > 1)


def goes_by_digits(op: Order) -> bool:
    """Whether rows are sorted by digits, and not each by a block.

    A block's network has l (l + 1) / 2 steps for 2^l elements, and a thread takes part in each with
    all that it holds: 1024 rows of 1024 take 21 us. Rows of 16384 would have 9,000 instructions and
    half of all registers of a unit: 64 of them take 79 us, and 50 us by digits, which is three
    kernels and 13 us for each digit of a million elements.
    """
    return op.length > LONGEST_SORTED and 0 < op.outer * op.length <= _MOST_PAIRS


@dataclass(frozen=True)
class _Sort:
    """Rows, or places of updates, to be sorted by the lowest `key_bits` bits of their keys; of each
    row the first `count` positions are wanted, or with 0 all pairs."""

    outer: int
    length: int
    key_bits: int
    descending: bool = False
    count: int = 0
    columns: int = 1
    """Columns of a place, where each has an index of its own."""
    low: int = 0
    """Lower bits that are left as they are."""
    updates: str = ""
    """What pairs take along, in the place of positions."""

    @property
    def tile(self) -> int:
        count = self.outer * self.length
        most = next((tile for few, tile in _SMALLER_TILES if count <= few), _TILE)
        return min(most, -(-self.length // _TILE_STEP) * _TILE_STEP)

    def passes(self) -> list[tuple[int, int]]:
        """The digits, from the lowest up: the bit where each begins, and how many bits it has."""
        count = -(-(self.key_bits - self.low) // _DIGIT)
        bits = -(-(self.key_bits - self.low) // count)
        starts = range(self.low, self.key_bits, bits)
        return [(low, min(bits, self.key_bits - low)) for low in starts]


def _split_order(kernel: Kernel, call: OpaqueCall, op: Order, dtype: DType) -> Parts:
    # What a CPU would sort in, a GPU does not need.
    (result,) = (o for o, n in zip(kernel.outputs, call.results, strict=True) if n == 0)
    sort = _Sort(op.outer, op.length, dtype.bits, op.descending, op.count)
    return _by_digits(kernel.name, sort, call.inputs[:1], (result,))


def _by_digits(name: str, sort: _Sort, x: tuple[str, ...], results: tuple[Output, ...]) -> Parts:
    """Passes over the digits; the last one has the kernel's name and makes its result. Of several
    operands each is a row, and has a result of its own."""
    made: list[Kernel] = []
    between: list[Tensor] = []
    elements = x
    passes = sort.passes()
    for number, (low, bits) in enumerate(passes):
        is_last = number == len(passes) - 1
        takes_updates = number == 0 and bool(sort.updates)
        counting, move = (UpperDigits, UpdatesMoved) if takes_updates else (Digits, Moved)
        counted = counting(
            sort.outer, sort.length, sort.tile, sort.key_bits, low, bits, sort.descending,
            sort.columns, len(x) > 1,
        )  # fmt: skip
        elements = (*x, *elements) if counted.reads_again else elements
        sums = Tensor(f"{name}_counts{number}", SI32, (sort.outer, counted.digits, counted.tiles))
        between.append(sums)
        made.append(_carry_op(f"{name}_count{number}", counted, elements, _into(sums)))
        if counted.tiles > 1:
            counts, sums = sums, replace(sums, name=f"{name}_sums{number}")
            between.append(sums)
            adding = Running("sum", sort.outer * counted.digits, counted.tiles, 1)
            made.append(_carry_op(f"{name}_add{number}", adding, (counts.name,), _into(sums)))
        moving = move(**vars(counted), count=sort.count if is_last else 0)
        elements = (*elements, sort.updates) if takes_updates else elements
        pairs = Tensor(f"{name}_pairs{number}", UI32, (sort.outer, sort.length, 2))
        between += [] if is_last else [pairs]
        moved = _carry_op(
            name if is_last else f"{name}_move{number}", moving,
            (*elements, sums.name), *(results if is_last else (_into(pairs),)),
        )  # fmt: skip
        made.append(moved)
        elements = (pairs.name,)
    return tuple(made), tuple(between)


def _scatter(
    kernel: Kernel,
    call: OpaqueCall,
    op: Scatter,
    dtype: DType,
    together: Sequence[Kernel],
    *,
    is_onto_zeros: bool,
) -> Parts:
    x, _, update = call.inputs
    columns = 1
    if op.each and op.width > 1:
        columns = op.width
        op = replace(op, rows=op.rows * columns, width=1, count=op.count * columns)
    binned = _in_bins(op, dtype, onto_zeros=is_onto_zeros)
    if together == (kernel,) and binned is not None:
        return _sum_in_bins(kernel, call, binned, columns)
    sorting, between = _sort_places(kernel.name, op, columns, together)
    kind = Collected if is_onto_zeros else Gathered
    gathered = kind(op.fn, op.outer, op.rows, op.width, op.count, _long_run(op.width))
    inputs = (update, f"{kernel.name}_sorted", f"{kernel.name}_starts")
    whole = replace(call, op=gathered, inputs=inputs if is_onto_zeros else (x, *inputs))
    (output,) = kernel.outputs
    based = replace(output, base=None if is_onto_zeros else x)
    return (*sorting, replace(kernel, opaque=whole, outputs=(based,))), between


def _in_bins(op: Scatter, dtype: DType, *, onto_zeros: bool) -> Binned | None:
    """The bins of updates that are sums of single elements; None where bins are not worth while."""
    wide = F32 if _is_narrow(dtype) else dtype
    if op.fn != "add" or op.width > 1 or wide is not F32:
        return None
    if op.count < _MANY_UPDATES or op.rows < _MANY_ROWS:
        return None
    # As many bins as keep all units at work, and more where they would have too many updates: by
    # one pass, if a block has room for the rows.
    key_bits = (op.rows - 1).bit_length()
    wanted = max(_BINS // op.outer, op.count // _MANY_IN_BIN)
    upper = min(_DIGIT, max(1, (wanted - 1).bit_length()))
    low = min(_BIN_BITS, max(key_bits - upper, _LEAST_BIN_BITS))
    mean = op.count * (1 << low) / op.rows
    # Pieces of few updates would keep more sums than they have updates.
    likely = max(mean + _CHANCE * math.sqrt(mean), (1 << low) / 4)
    tile = min(_LARGEST_PIECE, math.ceil(likely / _TILE_STEP) * _TILE_STEP)
    made = Binned(op.outer, op.rows, op.count, low, tile, onto_zeros)
    kept = 2 * op.outer * made.stretches * max(1 << low, _LEAST_KEPT)
    return made if kept <= _MOST_KEPT else None


def _sum_in_bins(kernel: Kernel, call: OpaqueCall, op: Binned, columns: int) -> Parts:
    x, index, update = call.inputs
    pairs = Tensor(f"{kernel.name}_sorted", UI32, (op.outer, op.count, 2))
    key_bits = (op.rows - 1).bit_length()
    sort = _Sort(op.outer, op.count, key_bits, columns=columns, low=op.low, updates=update)
    sorting, between = _by_digits(f"{kernel.name}_sort", sort, (index,), (_into(pairs),))
    whole = replace(call, op=op, inputs=(update if op.zeros else x, pairs.name))
    (output,) = kernel.outputs
    summed = replace(kernel, opaque=whole, outputs=(replace(output, base=None),))
    return (*sorting, summed), (*between, pairs)


def _sort_places(name: str, op: Scatter, columns: int, scatters: Sequence[Kernel]) -> Parts:
    """The places of the updates of scatters in order, and where those of each place begin."""
    if not scatters:
        return (), ()
    shape = (op.outer, op.count, 2)
    pairs = tuple(Tensor(f"{found.name}_sorted", UI32, shape) for found in scatters)
    starts = tuple(
        replace(p, name=f"{found.name}_starts", dtype=SI32, shape=(op.outer, op.rows + 1))
        for p, found in zip(pairs, scatters, strict=True)
    )
    key_bits = max(1, (op.rows - 1).bit_length())
    outer = op.outer * len(scatters)
    sort = _Sort(outer, op.count, key_bits, columns=columns)
    index = tuple(found.opaque.inputs[1] for found in scatters if found.opaque is not None)
    sorting, between = _by_digits(f"{name}_sort", sort, index, tuple(map(_into, pairs)))
    begins = Starts(outer, op.rows, op.count, len(scatters) > 1)
    inputs = tuple(tensor.name for tensor in pairs)
    finding = _carry_op(f"{name}_find", begins, inputs, *map(_into, starts))
    return (*sorting, finding), (*between, *pairs, *starts)


def _long_run(width: int) -> int:
    """Updates of a row from which on a block takes them, and not a thread for some columns.

    A thread waits for eight updates, or vectors of them, at a time: 1.3 us, which is 10 us for
    64. A block waits as long for 2048 elements. It takes 32 columns, and for every 16 such runs
    that there might be a block looks for them; so that wide rows do not have too many blocks that
    look for nothing, only longer runs are looked for there: up to 512 updates, or 80 us.
    """
    return _LONG_RUN * min(_MOST_LONG, -(-width // _COLUMNS))


def _goes_in_parts(op: Running) -> bool:
    """Whether columns are long, and too few to have a block each at work everywhere."""
    return op.length > _LONG_COLUMN and 0 < op.outer * op.width <= _FEW_COLUMNS


def _split_running(kernel: Kernel, call: OpaqueCall, op: Running, dtype: DType) -> Parts:
    chunk, columns = _CHUNK, op.outer * op.width
    while columns * -(-op.length // chunk) > _MOST_PARTS:
        chunk *= 2
    adding = Totals(op.fn, op.outer, op.length, op.width, op.reverse, chunk)
    wide = F32 if _is_narrow(dtype) else dtype
    totals = Tensor(f"{kernel.name}_totals", wide, (op.outer, adding.parts, op.width))
    first = _carry_op(f"{kernel.name}_total", adding, call.inputs, _into(totals))
    whole = replace(call, op=Continued(**vars(adding)), inputs=(*call.inputs, totals.name))
    return (first, replace(kernel, opaque=whole)), (totals,)


def adds_up_wide(op: Scatter, dtype: DType) -> bool:
    """Whether updates are added up in a wider dtype than their own and rounded once."""
    return op.fn == "add" and _is_narrow(dtype)


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= _SMALL_FLOAT


def _into(tensor: Tensor) -> Output:
    return Output(tensor.name, "", ())


def _carry_op(name: str, op: WholeOp, inputs: tuple[str, ...], *outputs: Output) -> Kernel:
    call = OpaqueCall(op, inputs, tuple(range(len(outputs))))
    return Kernel(name, Pattern.OPAQUE, (), (), outputs, opaque=call)
