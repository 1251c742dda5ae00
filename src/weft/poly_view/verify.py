"""The verifier of Poly-View: every access is affine, in range, and of something that is there.

    E1405 NonAffine            an index that is not made of the block's axes and the view's params
    E1406 AccessOutOfRange     an element outside its tensor that no guard keeps from being read
    E1407 ViewInvalid          names that are missing, repeated or out of order; ranks; fills
    W2102 IslBudget            a proof that took too long (a warning, returned by `findings` only)

In-range is shown by interval arithmetic where that is enough, and by isl where it is not; a
violation shows a point.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from weft.foundation.errors import Finding, SpecViolation
from weft.foundation.index_expr import SELECTED, Expr, Guard, always, axes_of, params_of
from weft.foundation.index_text import NON_AFFINE
from weft.foundation.memo import memo
from weft.poly.sets import CODE as BUDGET
from weft.poly.sets import Domain, IslBudget, counterexample
from weft.poly_view.ir import Access, BlockKind, IterAxis, PolyBlock, Scop

RANGE: Final = "E1406 AccessOutOfRange"
INVALID: Final = "E1407 ViewInvalid"
Problem = tuple[str, str]


def verify(scop: Scop) -> None:
    """Raise a `SpecViolation` that carries everything that is wrong with a view."""
    found = [finding for finding in findings(scop) if not finding.code.startswith("W")]
    if found:
        raise SpecViolation.of(found)


def findings(scop: Scop) -> Iterator[Finding]:
    """Everything that is wrong with a view, and what could not be shown."""
    yield from _Verifier(scop).run()


class _Verifier:
    def __init__(self, scop: Scop) -> None:
        self.scop = scop
        self.shapes = {name: shape for name, (_, shape) in scop.inputs.items()}
        self.params = {p.name: (p.low, p.high) for p in scop.params}

    def run(self) -> Iterator[Finding]:
        for block in self.scop.blocks:
            for number, access in enumerate(block.accesses):
                where = f"block {block.name}, access {number} of {access.tensor}"
                axes = block.axes
                if block.kind is BlockKind.OPAQUE:
                    axes = self._own_axes(access)
                with self._with_selected_place(block):
                    yield from self._findings_at(where, self._access(access, axes))
            yield from self._findings_at(f"block {block.name}", self._block(block))
            self.shapes[block.name] = block.shape
        for p in self.scop.params:
            yield from self._findings_at(f"param {p.name}", self._access(p.access, ()))
        for name, access, axes in self.scop.outputs:
            yield from self._findings_at(f"output {name}", self._access(access, axes))

    @contextmanager
    def _with_selected_place(self, block: PolyBlock) -> Iterator[None]:
        """While the accesses of a gather are looked at, the place it reads is a param."""
        if block.selected:
            self.params[SELECTED] = (0, block.selected - 1)
        yield
        self.params.pop(SELECTED, None)

    def _findings_at(self, where: str, problems: Iterator[Problem]) -> Iterator[Finding]:
        return iter([Finding(code, where, why) for code, why in problems])

    def _own_axes(self, access: Access) -> tuple[IterAxis, ...]:
        """The axes of a tensor that is read whole, under the names that its access uses."""
        shape = self.shapes.get(access.tensor, ())
        names = [e.single_axis.name if e.single_axis else "?" for e in access.map]
        return tuple(IterAxis(name, size) for name, size in zip(names, shape, strict=False))

    def _block(self, block: PolyBlock) -> Iterator[Problem]:
        if block.name in self.shapes:
            yield INVALID, "another tensor has this name"
        names = [axis.name for axis in block.axes]
        if len(set(names)) != len(names):
            yield INVALID, f"the axes {', '.join(names)} are not all different"
        missing = [name for name in block.after if name not in self.shapes]
        if missing:
            yield INVALID, f"it waits for {', '.join(missing)}, which is not before it"
        if block.kind is BlockKind.UPDATE:
            yield from self._update(block)
        elif block.write is not None or block.base is not None:
            yield INVALID, f"a block of kind {block.kind.value} writes into no other tensor"
        if (block.attrs is not None) != (block.kind is BlockKind.CONTRACTION):
            yield INVALID, "only a contraction has the roles of its axes, and each one does"

    def _update(self, block: PolyBlock) -> Iterator[Problem]:
        if self.shapes.get(block.base or "") != block.shape:
            yield INVALID, f"its base {block.base} is not there, or has another shape"
        yield from self._index(Access("", block.write or ()), block.axes, block.shape)

    def _access(self, access: Access, axes: tuple[IterAxis, ...]) -> Iterator[Problem]:
        shape = self.shapes.get(access.tensor)
        if shape is None:
            yield INVALID, f"there is no tensor {access.tensor} before it"
            return
        if access.guards and access.fill is None:
            yield INVALID, "it has guards and nothing to read where they fail"
        yield from self._index(access, axes, shape)

    def _index(
        self, access: Access, axes: tuple[IterAxis, ...], shape: tuple[int, ...]
    ) -> Iterator[Problem]:
        if len(access.map) != len(shape):
            yield INVALID, f"the map has {len(access.map)} parts for a tensor of rank {len(shape)}"
            return
        if not access.guards and _is_inside(access.map, axes, shape):
            return
        for expr in (*access.map, *(guard.expr for guard in access.guards)):
            unknown = axes_of(expr).difference(a.name for a in axes) | (
                params_of(expr) - self.params.keys()
            )
            if unknown:
                names = ", ".join(sorted(unknown))
                yield NON_AFFINE, f"{expr} uses {names}, which is neither an axis nor a param"
                return
        for expr, size in zip(access.map, shape, strict=True):
            yield from self._in_range(expr, size, access, axes)

    def _in_range(
        self, expr: Expr, size: int, access: Access, axes: tuple[IterAxis, ...]
    ) -> Iterator[Problem]:
        ranges = {a.name: (0, a.size - 1) for a in axes}
        # No point, no element: nothing is read.
        if any(a.size == 0 for a in axes):
            return
        wanted = Guard(expr, size)
        # Interval arithmetic answers for most accesses; isl is asked only where the guards are what
        # keeps an index inside.
        if always(wanted, {**ranges, **self.params}):
            return
        box = tuple((name, *span) for name, span in ranges.items())
        params = tuple((name, *self.params[name]) for name in sorted(_params(access)))
        try:
            point = counterexample(Domain(box, params, access.guards), wanted)
        except IslBudget as error:
            yield BUDGET, f"{expr} inside [0, {size}) was not shown: {error}"
            return
        if point is not None:
            shown = ", ".join(f"{name} = {value}" for name, value in point.items())
            yield RANGE, f"{expr} leaves [0, {size}) at {shown}"


@memo(1 << 12)
def _is_inside(index: tuple[Expr, ...], axes: tuple[IterAxis, ...], shape: tuple[int, ...]) -> bool:
    """Whether an index has no params and is plainly inside a shape at every point of its axes: that
    of equal layers is looked at once."""
    ranges = {axis.name: (0, axis.size - 1) for axis in axes}
    if any(params_of(expr) or not axes_of(expr) <= ranges.keys() for expr in index):
        return False
    pairs = zip(index, shape, strict=True)
    return all(always(Guard(expr, size), ranges) for expr, size in pairs)


def _params(access: Access) -> frozenset[str]:
    exprs = (*access.map, *(guard.expr for guard in access.guards))
    return frozenset[str]().union(*(params_of(e) for e in exprs))
