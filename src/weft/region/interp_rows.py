"""An interpreter of fused stages under a plan: strip by strip, tile by tile and row by row, in ring
buffers.

What a ring does not hold any more, or does not hold yet, is NaN or another odd number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from itertools import product

import numpy as np

from weft.foundation import functions
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import evaluate
from weft.foundation.records import dataclass
from weft.region.form import Staged
from weft.region.forms.rings import Held, Tiles
from weft.region.interp import Array, Playback
from weft.region.ir import Kernel, Output, Read, Tensor, form_of


def run_rows(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    strip: int,
    depths: Sequence[int],
    early: Collection[int] = (),
    tiles: Tiles | None = None,
) -> dict[str, Array]:
    """The tensors that a kernel with stages writes, computed in strips of so many rows, with rings
    of these depths; the `early` stages have all rows of a strip computed before the others. With
    `tiles` each strip is cut into these, and rings have no more columns than one of them needs."""
    form = form_of(kernel)
    if not isinstance(form, Staged):
        raise InternalError(f"kernel {kernel.name} has no stages")
    known = kernel.with_locals(tensors)
    held = {
        stage.name: Held(stage, ring, depth, None if tiles is None else tiles.parts[number])
        for number, (stage, ring, depth) in enumerate(
            zip(kernel.stages, form.rings, depths, strict=True)
        )
    }
    rows = _Rows(kernel, form, known, dict(arrays), held, frozenset(early), tiles)
    for output in kernel.outputs:
        rows.arrays[output.tensor] = odd(tensors[output.tensor].dtype, tensors[output.tensor].shape)
    total = kernel.sizes[form.slide]
    with np.errstate(**functions.QUIET):
        for batch in np.ndindex(*(kernel.sizes[name] for name in form.batch)):
            for first, tile in product(range(0, total, strip), range(tiles.count if tiles else 1)):
                rows.piece(batch, first, min(first + strip, total), tile)
    return {output.tensor: rows.arrays[output.tensor] for output in kernel.outputs}


def odd(dtype: DType, shape: Sequence[int]) -> Array:
    """An array of numbers that nobody computed."""
    number = float("nan") if dtype.is_float else 77 if dtype.is_integer else True
    return np.full(tuple(shape), number).astype(dtype.numpy)


@dataclass
class _Rows:
    kernel: Kernel
    form: Staged
    tensors: Mapping[str, Tensor]
    arrays: dict[str, Array]
    held: Mapping[str, Held]
    early: frozenset[int]
    tiles: Tiles | None
    tile: int = 0
    """The number of the tile whose columns are computed."""

    def piece(self, batch: tuple[int, ...], first: int, end: int, tile: int) -> None:
        """The rows from `first` to `end` of the results, of one batch, or a tile of them."""
        kernel, form = self.kernel, self.form
        self.tile = tile
        for name, held in self.held.items():
            sizes = {**held.inside, held.ring.axis: held.depth}
            shape = [sizes.get(found.name, 1) for found in held.stage.outer]
            self.arrays[name] = odd(held.stage.local.dtype, shape)
        late = [number for number in range(len(kernel.stages)) if number not in self.early]
        for together in (*([number] for number in sorted(self.early)), [*late, len(form.rings)]):
            for step in range(first - form.warm_up, end):
                for number in together:
                    self._step(number, step, first, batch)

    def _step(self, number: int, step: int, first: int, batch: tuple[int, ...]) -> None:
        """What one step does for a part: a row of it, if the piece needs one."""
        kernel, form = self.kernel, self.form
        if number == len(form.rings):
            if step >= first:
                self._part(number, {form.slide: step, **_zip_names(form.batch, batch)})
            return
        stage, ring = kernel.stages[number], form.rings[number]
        row = step + ring.high
        inside = 0 <= row < stage.kernel.sizes[ring.axis]
        if inside and row >= first + ring.low:
            self._part(number, {ring.axis: row, **_zip_names(ring.batch, batch)})

    def _part(self, number: int, at: dict[str, int]) -> None:
        part = self.kernel.parts[number]
        places = {name: range(value, value + 1) for name, value in at.items()}
        if self.tiles is not None:
            cut = self.tiles.parts[number]
            start = cut.starts[self.tile]
            places[cut.axis] = range(start, min(start + cut.width, part.sizes[cut.axis]))
        played = _Row(part, self.tensors, self.arrays, 1, at=places, held=self.held, tile=self.tile)
        played.run(part.body)
        for output in part.outputs:
            played.put(output, self.arrays[output.tensor])


@dataclass
class _Row(Playback):
    """One row of one part, or the columns of a tile in it."""

    at: Mapping[str, range] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    tile: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, found in enumerate(self.kernel.axes):
            if found.name in self.at:
                shape = [1] * len(self.kernel.axes)
                shape[number] = len(self.at[found.name])
                self.grid[found.name] = np.array(self.at[found.name], np.int64).reshape(shape)

    def _lies_at(self, read: Read, index: Sequence[Array]) -> tuple[Array, ...]:
        held = self.held.get(read.tensor)
        return tuple(index) if held is None else self._place(held, index)

    def _place(self, held: Held, index: Sequence[Array]) -> tuple[Array, ...]:
        """Where points of a local lie in its ring."""
        places = {a.name: at for a, at in zip(held.stage.outer, index, strict=True)}
        places[held.ring.axis] = places[held.ring.axis] % held.depth
        places |= {name: places[name] * 0 for name in held.ring.batch}
        if held.tile is not None:
            at = places[held.tile.axis]
            inside = at - held.tile.starts[self.tile]
            # What a guard leaves out is said to be at 0, which a tile may not have.
            padding = np.clip(inside, 0, held.tile.width - 1)
            places[held.tile.axis] = np.where(at == 0, padding, inside)
        return tuple(places.values())

    def put(self, output: Output, array: Array) -> None:
        """Store a row of a result, or of a local in its ring."""
        index = [np.asarray(evaluate(expr, self.grid)) for expr in output.index]
        held = self.held.get(output.tensor)
        place = tuple(index) if held is None else self._place(held, index)
        array[place] = self.values[output.value]


def _zip_names(names: Sequence[str], values: Sequence[int]) -> dict[str, int]:
    return dict(zip(names, values, strict=True))
