"""Playback of a kernel with stages as a plan has it: strip by strip and row by row, in rings.

What a ring does not hold any more, or does not hold yet, is NaN or another odd number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.foundation import functions
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import evaluate
from weft.foundation.records import dataclass
from weft.region.form import Ring, Staged
from weft.region.interp import Array, Playback
from weft.region.ir import Kernel, Output, Read, Tensor, form_of


def run_rows(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    arrays: Mapping[str, Array],
    strip: int,
    depths: Sequence[int],
    early: Collection[int] = (),
) -> dict[str, Array]:
    """The tensors that a kernel with stages writes, computed in strips of so many rows, with rings
    of these depths; the `early` stages have all rows of a strip computed before the others."""
    form = form_of(kernel)
    if not isinstance(form, Staged):
        raise InternalError(f"kernel {kernel.name} has no stages")
    known = kernel.with_locals(tensors)
    rows = _Rows(kernel, form, known, dict(arrays), tuple(depths), frozenset(early))
    for output in kernel.outputs:
        rows.arrays[output.tensor] = odd(tensors[output.tensor].dtype, tensors[output.tensor].shape)
    total = kernel.sizes[form.slide]
    with np.errstate(**functions.QUIET):
        for batch in np.ndindex(*(kernel.sizes[name] for name in form.batch)):
            for first in range(0, total, strip):
                rows.piece(batch, first, min(first + strip, total))
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
    depths: tuple[int, ...]
    early: frozenset[int]

    def piece(self, batch: tuple[int, ...], first: int, end: int) -> None:
        """The rows from `first` to `end` of the results, of one batch."""
        kernel, form = self.kernel, self.form
        for stage, ring, depth in zip(kernel.stages, form.rings, self.depths, strict=True):
            sizes = {found.name: found.size for found in stage.outer} | {ring.axis: depth}
            shape = [1 if name in ring.batch else size for name, size in sizes.items()]
            self.arrays[stage.name] = odd(stage.local.dtype, shape)
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
                self._part(kernel.parts[-1], {form.slide: step, **_zip_names(form.batch, batch)})
            return
        stage, ring = kernel.stages[number], form.rings[number]
        row = step + ring.high
        inside = 0 <= row < stage.kernel.sizes[ring.axis]
        if inside and row >= first + ring.low:
            self._part(stage.kernel, {ring.axis: row, **_zip_names(ring.batch, batch)})

    def _part(self, part: Kernel, at: dict[str, int]) -> None:
        rings = dict(zip((ring.local for ring in self.form.rings), self._rings(), strict=True))
        played = _Row(part, self.tensors, self.arrays, 1, at=at, rings=rings)
        played.run(part.body)
        for output in part.outputs:
            played.put(output, self.arrays[output.tensor])

    def _rings(self) -> list[_Held]:
        stages = zip(self.kernel.stages, self.form.rings, self.depths, strict=True)
        return [_Held(tuple(a.name for a in s.outer), ring, depth) for s, ring, depth in stages]


@dataclass(frozen=True)
class _Held:
    """A local in its ring: where its points lie."""

    axes: tuple[str, ...]
    ring: Ring
    depth: int

    def place(self, index: Sequence[Array]) -> tuple[Array, ...]:
        found = []
        for name, at in zip(self.axes, index, strict=True):
            here = at % self.depth if name == self.ring.axis else at
            found.append(here * 0 if name in self.ring.batch else here)
        return tuple(found)


@dataclass
class _Row(Playback):
    """One row of one part."""

    at: Mapping[str, int] = field(default_factory=dict)
    rings: Mapping[str, _Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.at.items():
            shape = [1] * len(self.kernel.axes)
            self.grid[name] = np.array([value], np.int64).reshape(shape)

    def _lies_at(self, read: Read, index: Sequence[Array]) -> tuple[Array, ...]:
        held = self.rings.get(read.tensor)
        return tuple(index) if held is None else held.place(index)

    def put(self, output: Output, array: Array) -> None:
        """Store a row of a result, or of a local in its ring."""
        index = [np.asarray(evaluate(expr, self.grid)) for expr in output.index]
        held = self.rings.get(output.tensor)
        array[tuple(index) if held is None else held.place(index)] = self.values[output.value]


def _zip_names(names: Sequence[str], values: Sequence[int]) -> dict[str, int]:
    return dict(zip(names, values, strict=True))
