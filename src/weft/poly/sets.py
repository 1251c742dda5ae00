"""Questions about integer sets, answered by isl.

A `Domain` is a plain record: named axes and run-time params, each in an inclusive range, and guards
that hold. Functions here take such records and index expressions and answer with numbers, points
and truth values; isl's own objects never leave this file, are never compared with `==` and never
keys. Objects are built, not parsed. Every answer is remembered under the records it was asked
about, so that equal blocks are analysed once.

A param is treated as one more axis: a statement about a domain is one for every value of its
params. A query that takes more than `BUDGET` isl operations raises `IslBudget` (W2102).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar, cast

import islpy as isl

from weft.foundation.errors import Finding, InternalError, ResourceExceeded
from weft.foundation.forks import new_lock, no_fork
from weft.foundation.index_expr import Axis, Expr, FloorDiv, Guard, Index, Param
from weft.foundation.tally import asked, done
from weft.foundation.whole_numbers import in_64_bits

BUDGET: Final = 20_000
"""isl operations that one query may take; most take a few hundred."""
BUDGETS: Final = {"difference": 400_000}
"""Proofs about emitted loops have flattened tile numbers to take apart, once per kernel."""
CODE: Final = "W2102 IslBudget"
QUERIES: Final = "isl queries"

Range: TypeAlias = tuple[str, int, int]
"""A name with the first and the last number it takes."""
Point: TypeAlias = dict[str, int]
P = ParamSpec("P")
R = TypeVar("R")


class IslBudget(ResourceExceeded):
    """A question was too hard to answer within the budget; the answer is unknown."""

    @property
    def finding(self) -> Finding:
        return Finding(CODE, "", str(self), "the proof is skipped; the result may be less tight")


@dataclass(frozen=True)
class Domain:
    """The integer points of named ranges at which every guard holds."""

    axes: tuple[Range, ...]
    params: tuple[Range, ...] = ()
    guards: tuple[Guard, ...] = ()

    @classmethod
    def box(cls, sizes: Mapping[str, int], params: Sequence[Range] = ()) -> Domain:
        """The box `0 <= axis < size`."""
        return cls(tuple((name, 0, size - 1) for name, size in sizes.items()), tuple(params))

    def where(self, *guards: Guard) -> Domain:
        """The part of the domain at which further guards hold."""
        return Domain(self.axes, self.params, (*self.guards, *guards))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in (*self.axes, *self.params))


@dataclass(frozen=True)
class Piece:
    """A loop nest: the points it runs over, and which point of another domain each of them is."""

    domain: Domain
    index: Index


@dataclass(frozen=True)
class Difference:
    """Why loops do not execute a domain: a point that is `missing`, `extra` or run `twice`."""

    kind: str
    point: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{name} = {value}" for name, value in self.point)
        return f"the point ({shown}) is {self.kind}"


# -- the budget and the memory -------------------------------------------------------------------

_MEMORIES: Final[list[Callable[[], None]]] = []
_CONTEXT: Final = isl.Context()
_LOCK: Final = new_lock()
"""An isl context belongs to one thread at a time."""


@contextmanager
def _budget(what: str, most: int) -> Iterator[None]:
    with no_fork, _LOCK:
        _CONTEXT.set_max_operations(most)
        _CONTEXT.reset_operations()
        try:
            yield
        except isl.Error as error:
            if "maximal number of operations" not in str(error):
                raise InternalError(f"isl could not answer {what}: {error}") from None
            raise IslBudget(f"the query {what} takes more than {most:,} isl operations") from None
        finally:
            _CONTEXT.set_max_operations(0)
            _CONTEXT.reset_operations()


def _query(function: Callable[P, R]) -> Callable[P, R]:
    """A question that is asked within the budget and remembered by its arguments."""

    def work_out(*args: P.args, **kwargs: P.kwargs) -> R:
        done(QUERIES)
        with _budget(function.__name__, BUDGETS.get(function.__name__, BUDGET)):
            return function(*args, **kwargs)

    memory = lru_cache(maxsize=1 << 14)(work_out)
    remember = cast(Callable[P, R], memory)
    _MEMORIES.append(memory.cache_clear)

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        asked(QUERIES)
        return remember(*args, **kwargs)

    return ask


def forget() -> None:
    """Drop every remembered answer."""
    for clear in _MEMORIES:
        clear()


# -- from records to isl -------------------------------------------------------------------------


class _Space:
    """A set space with one named dimension per axis and param."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        space = isl.Space.set_alloc(_CONTEXT, 0, len(names))
        self.local = isl.LocalSpace.from_space(space)
        self.space = space
        self.places = {name: k for k, name in enumerate(names)}

    def variable(self, name: str) -> Any:
        if name not in self.places:
            raise InternalError(f"{name} is not an axis of the domain ({', '.join(self.names)})")
        return isl.Aff.var_on_domain(self.local, isl.dim_type.set, self.places[name])

    def aff(self, expr: Expr) -> Any:
        """An expression as an isl affine function."""
        total = isl.Aff.val_on_domain(self.local, _val(expr.constant))
        for term, factor in expr.terms:
            match term:
                case Axis(name=name) | Param(name=name):
                    part = self.variable(name)
                case FloorDiv(value=inner, divisor=divisor):
                    part = self.aff(inner).scale_down_val(_val(divisor)).floor()
            total = total.add(part.scale_val(_val(factor)))
        return total

    def within(self, aff: Any, low: int, high: int) -> Any:
        """The points at which an affine function lies in an inclusive range."""
        first = isl.Aff.val_on_domain(self.local, _val(low))
        last = isl.Aff.val_on_domain(self.local, _val(high))
        return aff.ge_set(first).intersect(aff.le_set(last))

    def set(self, domain: Domain) -> Any:
        """A domain as an isl set of this space."""
        result = isl.Set.universe(self.space)
        for name, low, high in (*domain.axes, *domain.params):
            result = result.intersect(self.within(self.variable(name), low, high))
        for guard in domain.guards:
            result = result.intersect(self.within(self.aff(guard.expr), 0, guard.size - 1))
        return result

    def map(self, index: Sequence[Expr]) -> Any:
        """An index as an isl map from this space."""
        target = self.space.map_from_domain_and_range(isl.Space.set_alloc(_CONTEXT, 0, len(index)))
        result = isl.MultiAff.zero(target)
        for k, expr in enumerate(index):
            result = result.set_aff(k, self.aff(expr))
        return isl.Map.from_multi_aff(result)

    def point(self, found: Any) -> Point:
        """The first point, in the order of the names, of a set that is not empty."""
        sample = found.lexmin().sample_point()
        values = (sample.get_coordinate_val(isl.dim_type.set, k) for k in range(len(self.names)))
        return {n: int(v.to_python()) for n, v in zip(self.names, values, strict=True)}


def _val(number: int) -> Any:
    if in_64_bits(number):
        return isl.Val.int_from_si(_CONTEXT, number)
    return isl.Val.read_from_str(_CONTEXT, str(number))


# -- questions -----------------------------------------------------------------------------------


@_query
def is_empty(domain: Domain) -> bool:
    """Whether a domain has no point."""
    return bool(_Space(domain.names).set(domain).is_empty())


@_query
def sample(domain: Domain) -> Point | None:
    """The first point of a domain, in the order of its names; None where there is none."""
    space = _Space(domain.names)
    found = space.set(domain)
    return None if found.is_empty() else space.point(found)


@_query
def range_of(domain: Domain, expr: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an expression, exactly; None for an empty domain."""
    space = _Space(domain.names)
    points = space.set(domain)
    if points.is_empty():
        return None
    aff = space.aff(expr)
    low, high = points.min_val(aff), points.max_val(aff)
    return int(low.to_python()), int(high.to_python())


@_query
def holds(domain: Domain, guard: Guard) -> bool:
    """Whether a guard holds at every point of a domain."""
    space = _Space(domain.names)
    allowed = space.within(space.aff(guard.expr), 0, guard.size - 1)
    return bool(space.set(domain).is_subset(allowed))


@_query
def counterexample(domain: Domain, guard: Guard) -> Point | None:
    """A point of a domain at which a guard fails; None where it always holds."""
    space = _Space(domain.names)
    allowed = space.within(space.aff(guard.expr), 0, guard.size - 1)
    outside = space.set(domain).subtract(allowed)
    return None if outside.is_empty() else space.point(outside)


@_query
def is_subset(part: Domain, whole: Domain) -> bool:
    """Whether every point of one domain is a point of another one with the same names."""
    space = _Space(part.names)
    return bool(space.set(part).is_subset(space.set(whole)))


@_query
def is_equal(one: Domain, other: Domain) -> bool:
    """Whether two domains with the same names have the same points."""
    space = _Space(one.names)
    return bool(space.set(one).is_equal(space.set(other)))


@_query
def always_equal(domain: Domain, one: Expr, other: Expr) -> bool:
    """Whether two expressions agree at every point of a domain."""
    space = _Space(domain.names)
    differ = space.aff(one).ne_set(space.aff(other))
    return bool(space.set(domain).intersect(differ).is_empty())


@_query
def is_injective(domain: Domain, index: Index) -> bool:
    """Whether no two points of a domain name the same element, for each value of its params."""
    space = _Space(domain.names)
    keyed = (*index, *(Expr(0, ((Param(name), 1),)) for name, _, _ in domain.params))
    return bool(space.map(keyed).intersect_domain(space.set(domain)).is_injective())


@_query
def difference(pieces: tuple[Piece, ...], wanted: Domain) -> Difference | None:
    """Where loop nests together do not execute exactly the points of a domain, each once.

    A piece's index has one expression per axis of `wanted`; params are the same on both sides.
    """
    target = _Space(wanted.names)
    goal = target.set(wanted)
    done = isl.Set.empty(target.space)
    for piece in pieces:
        space = _Space(piece.domain.names)
        keyed = (*piece.index, *(Expr(0, ((Param(name), 1),)) for name, _, _ in wanted.params))
        relation = space.map(keyed).intersect_domain(space.set(piece.domain))
        image = relation.range()
        repeated = image.intersect(done)
        if repeated.is_empty() and not relation.is_injective():
            repeated = _reached_twice(relation)
        if not repeated.is_empty():
            return _difference("run twice", target, repeated)
        done = done.union(image).coalesce()
    for kind, points in (("missing", goal.subtract(done)), ("extra", done.subtract(goal))):
        if not points.is_empty():
            return _difference(kind, target, points)
    return None


@_query
def uncovered(part: Piece, whole: tuple[Piece, ...]) -> Point | None:
    """A point of a loop nest that leads to an element none of other nests leads to; None where
    there is none."""
    space = _Space(part.domain.names)
    relation = space.map(part.index).intersect_domain(space.set(part.domain))
    missing = relation.range()
    for piece in whole:
        other = _Space(piece.domain.names)
        image = other.map(piece.index).intersect_domain(other.set(piece.domain)).range()
        missing = missing.subtract(image)
    found = relation.intersect_range(missing).domain()
    return None if found.is_empty() else space.point(found)


def _reached_twice(relation: Any) -> Any:
    """The elements that two different points lead to."""
    pairs = relation.apply_range(relation.reverse())
    others = pairs.subtract(isl.Map.identity(pairs.get_space()))
    return relation.intersect_domain(others.domain()).range()


def _difference(kind: str, space: _Space, points: Any) -> Difference:
    return Difference(kind, tuple(space.point(points).items()))
