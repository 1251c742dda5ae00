"""A program with dynamic dims on a backend, prepared for each bucket of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.driver.backends import Backend
from weft.driver.execute import Prepared
from weft.driver.programs.shape_sets import Clusters, ShapeSet, exact_shapes
from weft.foundation.errors import SpecViolation
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.hooks import execute
from weft.ptir.ir import Program
from weft.ptir.passes import optimise
from weft.ptir.types import TensorType, leaves


class ByShape:
    """One program, traced and optimised once; sizes are filled in when it runs.

    A backend that interprets programs gains nothing from one for several sizes: without a shape set
    each size is a cluster of its own there.
    """

    def __init__(self, program: Program, backend: Backend, shapes: ShapeSet | None = None) -> None:
        self.backend = backend
        self.written, self.source = program, optimise(program)
        self.kinds = [leaf for kind in self.source.main.parameters for leaf in leaves(kind)]
        interprets = getattr(backend, "interprets", False)
        chosen = shapes or (exact_shapes() if interprets else ShapeSet())
        self.clusters: Clusters[Prepared] = Clusters(self.source, self._compile, chosen)

    def _compile(self, program: Program) -> Prepared:
        return PROGRAMS.compile(program, self.backend, "jit", source=self.written)

    def execute(
        self, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]], *, seed: int = 0
    ) -> tuple[list[Any], tuple[TensorType, ...]]:
        """The flattened results for inputs of these shapes, as the backend stores them, and their
        types."""
        fit = self.clusters.fit(shapes)
        compiled = fit.cluster.compiled
        if not fit.cluster.padded:
            return execute(compiled, inputs, seed), fit.results
        backend = self.backend
        kinds = [kind.with_shape(shape) for kind, shape in zip(self.kinds, shapes, strict=True)]
        arrays = [backend.read_storage(x, kind) for x, kind in zip(inputs, kinds, strict=True)]
        given = self._store_changed(inputs, arrays, fit.filled(arrays))
        try:
            results = execute(compiled, [*given, *map(backend.store, fit.sizes)], seed)
        except SpecViolation:
            return execute(self.clusters.exact(shapes), inputs, seed), fit.results
        whole = zip(results, compiled.results, strict=True)
        found = [backend.read_storage(x, kind) for x, kind in whole]
        return self._store_changed(results, found, fit.cut(found)), fit.results

    def _store_changed(
        self, held: Sequence[Any], arrays: Sequence[Any], new: Sequence[Any]
    ) -> list[Any]:
        """The new arrays as the backend stores them; what did not change is there already."""
        triples = zip(held, arrays, new, strict=True)
        return [x if old is made else self.backend.store(made) for x, old, made in triples]
