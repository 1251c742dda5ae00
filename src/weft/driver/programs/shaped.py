"""A compiled program with dynamic dims, with one program for each bucket of its shape set.

Every cluster of sizes has an executable of its own, compiled from a static program; inputs are
filled up for it, it is told the real sizes, and its results are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from numpy.typing import NDArray

from weft.driver.inputs import check_inputs, in_one_piece
from weft.driver.programs.shape_sets import Clusters, Fit, ShapeSet
from weft.driver.signature import Role, Signature
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.ir import Program
from weft.ptir.types import TensorType, leaves, symbols_of


class Compiled:
    """The base of what holds machine code at addresses of this process, and memory that runs write
    into: it is neither pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"{type(self).__name__}, a compiled program, can be neither pickled nor copied: it "
            "belongs to its process; send the program and compile it there, which finds the "
            "machine code in Weft's cache",
            "CannotBePickled",
        )


Array = NDArray[Any]


class Runnable(Protocol):
    """The executable of one cluster."""

    @property
    def stages(self) -> dict[str, str]: ...

    def run(
        self,
        inputs: Sequence[Any],
        *,
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]: ...

    def report(self) -> list[str]: ...


class ShapedExecutable(Compiled):
    """A program with dynamic dims, ready to run on a target."""

    def __init__(
        self,
        source: Program,
        signature: Signature,
        shapes: ShapeSet,
        compile_static: Callable[[Program], Runnable],
    ) -> None:
        if Role.STATE in signature.roles:
            raise UserError(
                "a program with a shape set cannot have state: each of its compiled programs would "
                "have a state of its own; pass the state as data, or leave shapes out"
            )
        kinds = source.main.parameters
        shapes.check_names({symbol.name for kind in kinds for symbol in symbols_of(kind)})
        self.source = source
        self.signature = signature
        self.clusters: Clusters[Runnable] = Clusters(source, compile_static, shapes)

    @property
    def inputs(self) -> list[TensorType]:
        """The types of everything a run is given."""
        return [leaf for kind in self.source.main.parameters for leaf in leaves(kind)]

    def __call__(self, *inputs: Any, seed: int = 0) -> list[Array]:
        return self.run(inputs, seed=seed)

    def run(
        self,
        inputs: Sequence[Any],
        *,
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]:
        """The flattened results. `holder` owns the parameters among the inputs, see
        `Executable.run`."""
        fit, arrays = self._fit(inputs)
        given = [*map(in_one_piece, fit.filled(arrays)), *fit.sizes]
        compiled = fit.cluster.compiled
        try:
            return fit.cut(compiled.run(given, seed=seed, threads=threads, holder=holder))
        except SpecViolation:
            exact = self.clusters.exact([array.shape for array in arrays])
            return exact.run(list(map(in_one_piece, arrays)), seed=seed, threads=threads)

    def _fit(self, inputs: Sequence[Any]) -> tuple[Fit[Runnable], list[Array]]:
        arrays = check_inputs(self.source, inputs)
        return self.clusters.fit([array.shape for array in arrays]), arrays

    @property
    def stages(self) -> dict[str, str]:
        """The dump of every stage, of the program used last."""
        return self._last().stages

    def report(self) -> list[str]:
        """Kernels, buffers and copies of the program used last, in sentences."""
        return self._last().report()

    def _last(self) -> Runnable:
        if not self.clusters.clusters:
            raise UserError("nothing is compiled yet: the program has dynamic dims, run it first")
        return list(self.clusters.clusters.values())[-1].compiled

    def explain(self) -> str:
        """What was compiled, for which sizes, and why."""
        lines = [f"compiled {line}" for line in self.clusters.explain()]
        return "\n".join(lines) or "nothing compiled yet: the program has dynamic dims"
