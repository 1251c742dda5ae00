"""Reductions and folds in one form: accumulators with an initial value, a step, and a merge.

    Reduction = axes, carries [start], step, combine, results: Let -> carry

Sums, maxima and the like over the same axes that do not need one another's results run in one sweep
and become one reduction of several carries. Folds that differ only in their result are one too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.foundation import functions
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError
from weft.foundation.records import dataclass
from weft.region.ir import Fold, Kernel, Let, Read, Reduce, operands

FUNCTIONS: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


class Maker(Protocol):
    """What reductions need of whoever makes statements."""

    def fresh(self, stem: str = "v") -> str: ...

    def value(self, name: str, scope: Any) -> str: ...

    def compute(self, let: Let, scope: Any, resolve: Any) -> str: ...

    def load(self, name: str, let: Let, read: Read, scope: Any) -> Any: ...


@dataclass(frozen=True)
class Carry:
    """A running number: its dtype and what it is before the first step."""

    dtype: DType
    start: Number


@dataclass(frozen=True)
class Reduction:
    """One sweep over `axes`."""

    axes: tuple[str, ...]
    carries: tuple[Carry, ...]
    results: Mapping[str, int]
    parts: tuple[tuple[Let, DType], ...] = ()
    """For sums and the like: each Let, and the dtype of what it reduces."""
    fold: Fold | None = None

    @property
    def commutes(self) -> bool:
        """Whether merging gives the same bits in either order."""
        return self.fold is None

    def step(self, maker: Maker, scope: Any, current: Sequence[str]) -> list[str]:
        """The carries after one point."""
        if self.fold is None:
            return [
                _accumulate(maker, scope, let, dtype, name)
                for (let, dtype), name in zip(self.parts, current, strict=True)
            ]
        names = [carry.name for carry in self.fold.carries]
        known = dict(zip(names, current, strict=True))
        _append_lets(maker, scope, self.fold.step, known)
        return [_known_or_made(maker, scope, known, carry.next) for carry in self.fold.carries]

    def combine(
        self, maker: Maker, scope: Any, left: Sequence[str], right: Sequence[str]
    ) -> list[str]:
        """Two partial results in one."""
        if self.fold is None:
            return [
                _apply(maker, scope, let, [a, b])
                for (let, _), a, b in zip(self.parts, left, right, strict=True)
            ]
        known: dict[str, str] = {}
        for carry, a, b in zip(self.fold.carries, left, right, strict=True):
            known |= {f"{carry.name}.a": a, f"{carry.name}.b": b}
        _append_lets(maker, scope, self.fold.combine, known)
        return [_known_or_made(maker, scope, known, carry.merged) for carry in self.fold.carries]


def _accumulate(maker: Maker, scope: Any, let: Let, source: DType, current: str) -> str:
    assert isinstance(let.expr, Reduce)
    value = maker.value(let.expr.value, scope)
    if source is not let.dtype:
        wide = maker.fresh()
        scope.body.append(values.Compute(ElementOp(wide, let.dtype, "cast", (value,))))
        value = wide
    return _apply(maker, scope, let, [current, value])


def _apply(maker: Maker, scope: Any, let: Let, args: Sequence[str]) -> str:
    assert isinstance(let.expr, Reduce)
    name = maker.fresh()
    op = ElementOp(name, let.dtype, FUNCTIONS[let.expr.fn], tuple(args))
    scope.body.append(values.Compute(op))
    return name


def _append_lets(maker: Maker, scope: Any, body: Sequence[Let], known: dict[str, str]) -> None:
    """Lets that depend on carries: made where they stand, known to one another by name."""
    for let in body:
        if isinstance(let.expr, Read):
            known[let.name] = maker.fresh()
            scope.body.append(maker.load(known[let.name], let, let.expr, scope))
        elif isinstance(let.expr, Reduce | Fold):
            raise InternalError(f"{let.name}: a fold inside a fold")
        else:
            known[let.name] = maker.compute(
                let, scope, lambda name: _known_or_made(maker, scope, known, name)
            )


def _known_or_made(maker: Maker, scope: Any, known: Mapping[str, str], name: str) -> str:
    return known[name] if name in known else maker.value(name, scope)


def reductions_of(kernel: Kernel) -> dict[str, Reduction]:
    """The reduction that makes each reduced Let."""
    lets = {let.name: let for let in kernel.body}
    found: dict[str, Reduction] = {}
    for group in _sweep_groups(kernel):
        made = _of_folds(group, lets) if _is_fold(lets[group[0]]) else _of_sums(group, lets)
        found.update((name, made) for name in group)
    return found


def _is_fold(let: Let) -> bool:
    return isinstance(let.expr, Fold)


def _of_sums(group: Sequence[str], lets: Mapping[str, Let]) -> Reduction:
    parts, carries = [], []
    axes: tuple[str, ...] = ()
    for name in group:
        let = lets[name]
        assert isinstance(let.expr, Reduce)
        axes, source = let.expr.axes, lets[let.expr.value].dtype
        start = functions.identity(let.expr.fn, source)
        number = float(start) if source.is_float else int(start)
        parts.append((let, source))
        carries.append(Carry(let.dtype, number))
    results = {name: number for number, name in enumerate(group)}
    return Reduction(axes, tuple(carries), results, tuple(parts))


def _of_folds(group: Sequence[str], lets: Mapping[str, Let]) -> Reduction:
    fold = lets[group[0]].expr
    assert isinstance(fold, Fold)
    order = [carry.name for carry in fold.carries]
    carries = tuple(Carry(carry.dtype, carry.init) for carry in fold.carries)
    results = {}
    for name in group:
        expr = lets[name].expr
        assert isinstance(expr, Fold)
        results[name] = order.index(expr.result)
    return Reduction(fold.axes, carries, results, fold=fold)


def _sweep_groups(kernel: Kernel) -> list[tuple[str, ...]]:
    """Reduced Lets that can share a sweep: same axes, same home, and none needs another."""
    depth: dict[str, int] = {}
    keys: dict[tuple[object, ...], list[str]] = {}
    for let in kernel.body:
        below = max((depth[name] for name in operands(let)), default=0)
        depth[let.name] = below
        if isinstance(let.expr, Reduce | Fold):
            depth[let.name] = below + 1
            what = (let.expr.carries, let.expr.step) if isinstance(let.expr, Fold) else ()
            key = (let.axes, let.expr.axes, depth[let.name], what)
            keys.setdefault(key, []).append(let.name)
    return [tuple(names) for names in keys.values()]
