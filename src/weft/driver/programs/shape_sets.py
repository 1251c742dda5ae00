"""Shape sets: buckets of sizes, so that a program with dynamic dims needs few compiled programs.

A `ShapeSet` says for each dim up to which size inputs are filled. All sizes that are filled up to
the same ones form a *cluster* and share one compiled program; where filling up would change a
result (`weft.ptir.padding` knows), the dim is compiled for exactly, and `explain` says why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.driver.loading.plugins import described
from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.forks import new_lock
from weft.ptir.ir import Program
from weft.ptir.padding.program import PaddedProgram, pad_dims
from weft.ptir.specialise import bind_shapes, settled_sizes, specialise
from weft.ptir.types import TensorType, leaves, symbols_of

Array = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
T = TypeVar("T")
LEAST: Final = 32
"""Where sizes that double begin."""
EXACT: Final = "exact"
DOUBLING: Final = "doubling"
_MOST_FITS: Final = 4_096
"""Shapes whose answers are remembered."""


class ShapeSet:
    """Which sizes of dynamic dims share one compiled program.

    `ShapeSet({"B": 20})` fills sizes of B up to 20; `{"B": (8, 32)}` up to 8 or 32; larger ones are
    compiled for exactly. `{"B": "doubling"}`, which holds for dims that are not named, fills up to
    32, 64, 128 and so on; `{"B": "exact"}` never fills up. At most `most` programs are kept, those
    used last.
    """

    @told
    def __init__(
        self, dims: Mapping[str, int | str | Sequence[int]] | None = None, *, most: int = 64
    ) -> None:
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise UserError(f"most is {described(most)}; a shape set keeps at least one program")
        if dims is not None and not isinstance(dims, Mapping):
            raise UserError(
                f"a shape set is made of a dict such as {{'B': (8, 32)}}, not of {described(dims)}"
            )
        self.dims = {
            _dim_name(name): _check_sizes(name, given) for name, given in (dims or {}).items()
        }
        self.most = most

    def capacity(self, name: str, size: int) -> int:
        """The size up to which a dim of this size is filled."""
        buckets = self.dims.get(name.removeprefix("?"), DOUBLING)
        if size == 0 or buckets == EXACT:
            return size
        if isinstance(buckets, str):
            return max(LEAST, 1 << (size - 1).bit_length())
        return next((bucket for bucket in buckets if bucket >= size), size)

    def check_names(self, known: set[str]) -> None:
        """Every dim that is named is one of the program."""
        unknown = sorted(self.dims.keys() - known)
        if unknown:
            listed = ", ".join(sorted(known)) or "none"
            raise UserError(
                f"the shape set names the dim {unknown[0]!r}, but the dynamic dims are {listed}"
            )

    def __repr__(self) -> str:
        return f"ShapeSet({self.dims!r}, most={self.most})"


def exact_shapes(most: int = 64) -> ShapeSet:
    """A shape set in which every size is compiled for."""
    return _Exact(most=most)


class _Exact(ShapeSet):
    def capacity(self, name: str, size: int) -> int:
        return size


def _dim_name(name: Any) -> str:
    if not isinstance(name, str):
        raise UserError(f"a shape set names dims by strings such as 'B', not by {described(name)}")
    return name.removeprefix("?")


def _check_sizes(name: str, given: Any) -> str | tuple[int, ...]:
    """What is said about one dim, checked."""
    if isinstance(given, str) and given in (EXACT, DOUBLING):
        return given
    several = [given] if isinstance(given, int) else given
    good = isinstance(several, Sequence) and not isinstance(several, str) and several
    if not good or not all(type(size) is int and size > 0 for size in several):
        raise UserError(
            f"the sizes of {name} are {described(given)}; give 'exact', 'doubling', a whole number "
            "over 0, or a list of them"
        )
    return tuple(sorted(set(several)))


@dataclass
class Cluster(Generic[T]):
    """Sizes that share one compiled program."""

    sizes: dict[str, int]
    """What the program is compiled for."""
    padded: frozenset[str]
    """The dims of which the program is told the real sizes."""
    label: str
    """Which sizes it serves."""
    compiled: T
    seconds: float
    reason: str
    calls: int = 0

    def describe(self) -> str:
        """A line for `explain`."""
        return f"for {self.label} in {self.seconds:.3f} s ({self.calls} calls): {self.reason}"


@dataclass(frozen=True)
class Fit(Generic[T]):
    """How inputs of one set of sizes go into the program of their cluster."""

    cluster: Cluster[T]
    inputs: tuple[Shape, ...]
    """The shapes that the program takes."""
    sizes: tuple[Array, ...]
    """The real sizes that it is told after its inputs."""
    results: tuple[TensorType, ...]
    """The real types of what it answers."""

    def filled(self, arrays: Sequence[Array]) -> list[Array]:
        """The inputs, filled up where they must be."""
        return [_fill_up(a, shape) for a, shape in zip(arrays, self.inputs, strict=True)]

    def cut(self, arrays: Sequence[Array]) -> list[Array]:
        """The real part of what the program answered."""
        return [
            _cut_back(a, kind.static_shape) for a, kind in zip(arrays, self.results, strict=True)
        ]


def _fill_up(array: Array, shape: Shape) -> Array:
    if array.shape == shape:
        return array
    made = np.zeros(shape, array.dtype)
    made[tuple(map(slice, array.shape))] = array
    return made


def _cut_back(array: Array, shape: Shape) -> Array:
    return array if array.shape == shape else np.array(array[tuple(map(slice, shape))], order="C")


Sizes: TypeAlias = tuple[tuple[str, int], ...]


@dataclass
class Clusters(Generic[T]):
    """A program with dynamic dims and the clusters it has met. Threads may use it at once."""

    program: Program
    compile: Callable[[Program], T]
    shapes: ShapeSet
    clusters: OrderedDict[Sizes, Cluster[T]] = field(default_factory=OrderedDict)
    evicted: int = 0

    def __post_init__(self) -> None:
        self._fits: OrderedDict[tuple[Shape, ...], Fit[T]] = OrderedDict()
        self._lock = new_lock()

    @cached_property
    def padded(self) -> PaddedProgram:
        """The program for sizes that may be too large."""
        kinds = self.program.main.parameters
        names = {symbol.name for kind in kinds for symbol in symbols_of(kind)}
        wanted = {name for name in names if self.shapes.capacity(name, 1) != 1}
        return pad_dims(self.program, wanted)

    def fit(self, shapes: Sequence[Shape]) -> Fit[T]:
        """The cluster for inputs of these shapes, compiled where it is new."""
        key = tuple(shapes)
        with self._lock:
            found = self._fits.get(key)
            if found is None:
                found = self._fits[key] = self._fit(key)
                if len(self._fits) > _MOST_FITS:
                    self._fits.popitem(last=False)
            self._touch(found.cluster)
            return found

    def exact(self, shapes: Sequence[Shape]) -> T:
        """A program for exactly these shapes, which is not kept. What a padded one rejects is told
        by this one, in terms of the real sizes."""
        sizes = bind_shapes(self.program.main.parameters, shapes)
        return self.compile(specialise(self.program, sizes))

    def _touch(self, cluster: Cluster[T]) -> None:
        cluster.calls += 1
        key = tuple(sorted(cluster.sizes.items()))
        if self.clusters.get(key) is cluster:
            self.clusters.move_to_end(key)

    def _fit(self, shapes: tuple[Shape, ...]) -> Fit[T]:
        sizes = bind_shapes(self.program.main.parameters, shapes)
        capacities, reason = self._capacities(sizes)
        if capacities is None:
            exact = specialise(self.program, sizes)
            cluster = self._cluster(sizes, frozenset(), exact, reason)
            return Fit(cluster, shapes, (), _result_types(exact))
        source = self.padded.program
        real = specialise(source, sizes)
        try:
            wide = specialise(source, capacities)
        except SpecViolation as found:
            why = f"{found.why} where the sizes are filled up"
            exact = specialise(self.program, sizes)
            cluster = self._cluster(sizes, frozenset(), exact, why)
            return Fit(cluster, shapes, (), _result_types(exact))
        cluster = self._cluster(capacities, self.padded.padded, wide, reason)
        known = settled_sizes(source, real)
        count = len(shapes)
        inputs = [leaf.static_shape for kind in wide.main.parameters for leaf in leaves(kind)]
        told = tuple(np.asarray(known[name], np.int64) for name in self.padded.sizes)
        return Fit(cluster, tuple(inputs[:count]), told, _result_types(real))

    def _capacities(self, sizes: dict[str, int]) -> tuple[dict[str, int] | None, str]:
        """The sizes to fill up to, None for none; and the reason to give for a new cluster."""
        padded = self.padded
        named = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
        reasons = [f"{name} is exact: {why}" for name, why in sorted(padded.refused.items())]
        reason = "; ".join([f"first call with {named}", *reasons])
        if not padded.padded or any(sizes[name] == 0 for name in padded.padded):
            return None, reason
        capacities = {
            name: self.shapes.capacity(name, size) if name in padded.padded else size
            for name, size in sizes.items()
        }
        return capacities, reason

    def _cluster(
        self, sizes: dict[str, int], padded: frozenset[str], program: Program, reason: str
    ) -> Cluster[T]:
        key = tuple(sorted(sizes.items()))
        found = self.clusters.get(key)
        if found is not None and found.padded == padded:
            return found
        started = perf_counter()
        compiled = self.compile(program)
        seconds = perf_counter() - started
        label = self._label(sizes, padded)
        made = self.clusters[key] = Cluster(sizes, padded, label, compiled, seconds, reason)
        while len(self.clusters) > self.shapes.most:
            gone = self.clusters.popitem(last=False)[1]
            self.evicted += 1
            self._fits = OrderedDict(
                (key, fit) for key, fit in self._fits.items() if fit.cluster is not gone
            )
        return made

    def _label(self, sizes: dict[str, int], padded: frozenset[str]) -> str:
        fills = {n for n in padded if self.shapes.capacity(n, sizes[n] - 1) == sizes[n]}
        return ", ".join(
            f"{name} up to {size}" if name in fills else f"{name} = {size}"
            for name, size in sorted(sizes.items())
        )

    def explain(self) -> list[str]:
        """A line for every compiled program that is kept."""
        lines = [cluster.describe() for cluster in self.clusters.values()]
        if self.evicted:
            lines.append(f"for {self.evicted} more that are not kept (most={self.shapes.most})")
        return lines


def _result_types(program: Program) -> tuple[TensorType, ...]:
    return tuple(leaf for kind in program.main.results for leaf in leaves(kind))
