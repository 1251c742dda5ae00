"""Questions about integer sets, answered by isl.

A `Domain` is a plain record: named axes and run-time params, each in an inclusive range, and guards
that hold. Functions here take such records and index expressions and answer with numbers, points
and truth values; isl's own objects never leave this file, are never compared with `==` and never
keys. Objects are read from matrices of constraints. Every answer is remembered under the records it
was asked about, so that equal blocks are analysed once.

A param is treated as one more axis: a statement about a domain is one for every value of its
params. A query that takes more than `BUDGET` isl operations raises `IslBudget` (W2102).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

import islpy as isl

from weft.foundation.errors import Finding, InternalError, ResourceExceeded
from weft.foundation.forks import new_lock, no_fork
from weft.foundation.index_expr import Axis, Expr, FloorDiv, Guard, Index, Param, add, scale
from weft.foundation.memo import memo
from weft.foundation.records import dataclass
from weft.foundation.tally import asked, done
from weft.poly.boxes import fill_box, without_stretches

# isl may take exponential time. Operations, and not seconds, are counted: every machine proves the
# same.
BUDGET: Final = 20_000
"""isl operations that one query may take; most take a few hundred."""
BUDGETS: Final = {"difference": 400_000, "uncovered": 400_000}
"""Proofs about emitted loops have flattened tile numbers to take apart, once per kernel."""
CODE: Final = "W2102 IslBudget"
QUERIES: Final = "isl queries"
_VALUE: Final = "value of the expression"
"""Names a place beside those of a domain, which are identifiers."""

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

    @memo(1 << 14)
    def work_out(*args: P.args, **kwargs: P.kwargs) -> R:
        done(QUERIES)
        with _budget(function.__name__, BUDGETS.get(function.__name__, BUDGET)):
            return function(*args, **kwargs)

    @wraps(function)
    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        asked(QUERIES)
        return work_out(*args, **kwargs)

    return ask


# -- from records to isl -------------------------------------------------------------------------


class _Matrix:
    """Affine constraints on some places, in the form that isl reads from text (PolyLib's).

    Every row is `terms >= 0` or `terms = 0`. A quotient is one more column with its two rows. What
    is built by calls instead takes ten times as long, and islpy keeps 32 bytes for each argument
    that isl takes over.
    """

    def __init__(self, names: Sequence[str], results: int | None = None) -> None:
        self.names = tuple(names)
        self.results = results
        """How many places stand before the names, what a map leads to; None for a set."""
        self._places = {name: (results or 0) + k for k, name in enumerate(names)}
        self._quotients: dict[FloorDiv, int] = {}
        self._rows: list[tuple[bool, dict[int, int], int]] = []

    def at_least(self, low: int, terms: Mapping[int, int], constant: int = 0) -> None:
        """`terms + constant >= low`."""
        self._rows.append((False, dict(terms), constant - low))

    def at_most(self, high: int, terms: Mapping[int, int], constant: int = 0) -> None:
        """`terms + constant <= high`."""
        self._rows.append((False, {at: -factor for at, factor in terms.items()}, high - constant))

    def result(self, at: int, expr: Expr) -> None:
        """The place that a map leads to, or the value of an expression."""
        terms, constant = self.columns(expr)
        terms[at] = terms.get(at, 0) - 1
        self._rows.append((True, terms, constant))

    def columns(self, expr: Expr) -> tuple[dict[int, int], int]:
        """An expression as a factor for every column, and a constant."""
        terms: dict[int, int] = {}
        for term, factor in expr.terms:
            match term:
                case Axis(name=name) | Param(name=name):
                    at = self._place(name)
                case FloorDiv():
                    at = self._quotient(term)
            terms[at] = terms.get(at, 0) + factor
        return terms, expr.constant

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise InternalError(f"{name} is not an axis of the domain ({', '.join(self.names)})")
        return self._places[name]

    def _quotient(self, term: FloorDiv) -> int:
        """The column of a quotient, negative until all are known: `0 <= value - divisor * it <
        divisor`."""
        if term not in self._quotients:
            terms, constant = self.columns(term.value)
            at = self._quotients[term] = -1 - len(self._quotients)
            terms[at] = -term.divisor
            self.at_least(0, terms, constant)
            self.at_most(term.divisor - 1, terms, constant)
        return self._quotients[term]

    def within(self, expr: Expr, low: int, high: int) -> None:
        """The expression lies in an inclusive range."""
        terms, constant = self.columns(expr)
        self.at_least(low, terms, constant)
        self.at_most(high, terms, constant)

    def domain(self, domain: Domain) -> _Matrix:
        """Every point is one of the domain."""
        for name, low, high in (*domain.axes, *domain.params):
            place = {self._place(name): 1}
            self.at_least(low, place)
            self.at_most(high, place)
        for guard in domain.guards:
            self.within(guard.expr, 0, guard.size - 1)
        return self

    def __str__(self) -> str:
        places, quotients = len(self._places), len(self._quotients)
        outputs, inputs = (places, 0) if self.results is None else (self.results, places)
        width = outputs + inputs + quotients
        lines = [f"{len(self._rows)} {width + 2} {outputs} {inputs} {quotients} 0"]
        for equal, terms, constant in self._rows:
            row = [0] * width
            for at, factor in terms.items():
                # Quotients get their columns last, when it is known how many there are: column -1 -
                # n is the nth of them.
                row[at if at >= 0 else width - quotients - 1 - at] = factor
            lines.append(" ".join(map(str, [int(not equal), *row, constant])))
        return "\n".join(lines) + "\n"

    @property
    def set(self) -> Any:
        return self._read_as(isl.Set)

    @property
    def map(self) -> Any:
        return self._read_as(isl.Map)

    def _read_as(self, kind: Any) -> Any:
        """The budget is for answers: a reader that it stops would call the text wrong."""
        most = _CONTEXT.get_max_operations()
        _CONTEXT.set_max_operations(0)
        try:
            return kind.read_from_str(_CONTEXT, str(self))
        finally:
            _CONTEXT.set_max_operations(most)

    @property
    def is_empty(self) -> bool:
        return bool(self.set.is_empty())


def _isl_set(domain: Domain, names: Sequence[str] | None = None) -> Any:
    """A domain as an isl set, its places in the order of the names."""
    return _Matrix(domain.names if names is None else names).domain(domain).set


def _beyond(domain: Domain, expr: Expr, low: int, high: int) -> list[_Matrix]:
    """The points of a domain at which an expression is below a range, and those at which it is
    above."""
    below, above = (_Matrix(domain.names).domain(domain) for _ in range(2))
    below.at_most(low - 1, *below.columns(expr))
    above.at_least(high + 1, *above.columns(expr))
    return [below, above]


def _point(names: Sequence[str], found: Any) -> Point:
    """The first point, in the order of the names, of a set that is not empty."""
    sample = found.lexmin().sample_point()
    values = (sample.get_coordinate_val(isl.dim_type.set, k) for k in range(len(names)))
    return {n: int(v.to_python()) for n, v in zip(names, values, strict=True)}


@cache
def _last_place(count: int) -> Any:
    """The last coordinate of points with so many, as an isl function."""
    local = isl.LocalSpace.from_space(isl.Space.set_alloc(_CONTEXT, 0, count))
    return isl.Aff.var_on_domain(local, isl.dim_type.set, count - 1)


# -- questions -----------------------------------------------------------------------------------


@_query
def is_empty(domain: Domain) -> bool:
    """Whether a domain has no point."""
    return bool(_isl_set(domain).is_empty())


@_query
def sample(domain: Domain) -> Point | None:
    """The first point of a domain, in the order of its names; None where there is none."""
    found = _isl_set(domain)
    return None if found.is_empty() else _point(domain.names, found)


@_query
def range_of(domain: Domain, expr: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of an expression, exactly; None for an empty domain."""
    matrix = _Matrix((*domain.names, _VALUE)).domain(domain)
    matrix.result(len(domain.names), expr)
    points, value = matrix.set, _last_place(len(matrix.names))
    if points.is_empty():
        return None
    low, high = points.min_val(value), points.max_val(value)
    return int(low.to_python()), int(high.to_python())


@_query
def holds(domain: Domain, guard: Guard) -> bool:
    """Whether a guard holds at every point of a domain."""
    return all(part.is_empty for part in _beyond(domain, guard.expr, 0, guard.size - 1))


@_query
def counterexample(domain: Domain, guard: Guard) -> Point | None:
    """The first point of a domain at which a guard fails; None where it always holds."""
    outside = [part.set for part in _beyond(domain, guard.expr, 0, guard.size - 1)]
    found = [_point(domain.names, points) for points in outside if not points.is_empty()]
    return min(found, key=lambda point: tuple(point.values()), default=None)


@_query
def is_subset(part: Domain, whole: Domain) -> bool:
    """Whether every point of one domain is a point of another one with the same names."""
    return bool(_isl_set(part).is_subset(_isl_set(whole, part.names)))


@_query
def is_equal(one: Domain, other: Domain) -> bool:
    """Whether two domains with the same names have the same points."""
    return bool(_isl_set(one).is_equal(_isl_set(other, one.names)))


@_query
def always_equal(domain: Domain, one: Expr, other: Expr) -> bool:
    """Whether two expressions agree at every point of a domain."""
    return all(part.is_empty for part in _beyond(domain, add(one, scale(other, -1)), 0, 0))


@_query
def is_injective(domain: Domain, index: Index) -> bool:
    """Whether no two points of a domain name the same element, for each value of its params."""
    return bool(_relation(domain, index, domain.params).is_injective())


def _relation(domain: Domain, index: Index, params: Sequence[Range]) -> Any:
    """An index on a domain as an isl map; params are themselves on both sides."""
    keyed = (*index, *(Expr(0, ((Param(name), 1),)) for name, _, _ in params))
    matrix = _Matrix(domain.names, len(keyed)).domain(domain)
    for at, expr in enumerate(keyed):
        matrix.result(at, expr)
    return matrix.map


@_query
def difference(pieces: tuple[Piece, ...], wanted: Domain) -> Difference | None:
    """Where loop nests together do not execute exactly the points of a domain, each once.

    A piece's index has one expression per axis of `wanted`; params are the same on both sides.
    """
    if _is_filled(pieces, wanted):
        return None
    done = None
    for piece in pieces:
        relation = _relation(piece.domain, piece.index, wanted.params)
        image = relation.range()
        repeated = None if done is None else image.intersect(done)
        # A point is run twice where two nests have it, or two points of one nest lead to it.
        if (repeated is None or repeated.is_empty()) and not relation.is_injective():
            repeated = _reached_twice(relation)
        if repeated is not None and not repeated.is_empty():
            return _difference("run twice", wanted, repeated)
        done = image if done is None else done.union(image).coalesce()
    goal = _isl_set(wanted)
    if done is None:
        return None if goal.is_empty() else _difference("missing", wanted, goal)
    if not goal.is_subset(done):
        return _difference("missing", wanted, goal.subtract(done))
    return None if done.is_subset(goal) else _difference("extra", wanted, done.subtract(goal))


def _is_filled(pieces: Sequence[Piece], wanted: Domain) -> bool:
    """Whether arithmetic sees that loop nests are boxes which fill a box."""
    if wanted.guards or any(domain.params for domain in (wanted, *(p.domain for p in pieces))):
        return False
    ranges = [without_stretches(p.domain.axes, p.domain.guards, p.index) for p in pieces]
    nests = [
        (axes, piece.index) for axes, piece in zip(ranges, pieces, strict=True) if axes is not None
    ]
    whole = tuple((first, last) for _, first, last in wanted.axes)
    return len(nests) == len(pieces) and fill_box(nests, whole)


@_query
def uncovered(part: Piece, whole: tuple[Piece, ...]) -> Point | None:
    """A point of a loop nest that leads to an element none of other nests leads to; None where
    there is none."""
    relation = _relation(part.domain, part.index, ())
    missing = relation.range()
    for piece in whole:
        missing = missing.subtract(_relation(piece.domain, piece.index, ()).range())
    found = relation.intersect_range(missing).domain()
    return None if found.is_empty() else _point(part.domain.names, found)


def _reached_twice(relation: Any) -> Any:
    """The elements that two different points lead to."""
    pairs = relation.apply_range(relation.reverse())
    others = pairs.subtract(isl.Map.identity(pairs.get_space()))
    return relation.intersect_domain(others.domain()).range()


def _difference(kind: str, wanted: Domain, points: Any) -> Difference:
    return Difference(kind, tuple(_point(wanted.names, points).items()))
