"""QR as LAPACK keeps it: reflections in one matrix with r, and a factor for each of them.

    reflection j = 1 - tau[j] v v^T        v is 0 before row j, 1 in it, and column j below it
    q            = reflection 0 · reflection 1 · ...

Each is a loop over columns, a step for one column of all matrices.
"""

from __future__ import annotations

from weft.foundation.dtypes import SI32
from weft.interop.stablehlo.reading.site import Results, Site
from weft.ptir.builder import Value
from weft.ptir.builder.body import BodyBuilder


def geqrf(at: Site) -> Results:
    """The reflections that make a matrix upper triangular, below r, and their factors."""
    (x,) = at.x
    count = min(at.static(x)[-2:])

    def step(b: BodyBuilder, matrix: Value, number: Value) -> list[Value]:
        column = _select_column(b, matrix, number)
        row = b.iota(SI32, column.shape, column.rank - 1)
        here = b.compare(row, b.broadcast_to(number, row.shape), "equal")
        below = b.compare(row, b.broadcast_to(number, row.shape), "greater")
        zero = b.full(column.shape, 0, x.dtype)
        first = _total(b, b.emit("select", here, column, zero))
        tail = b.emit("select", below, column, zero)
        length = _vector_length(b, b.emit("select", here, column, tail))
        none = b.full(first.shape, 0, x.dtype)
        flat = b.compare(_vector_length(b, tail), none, "equal")
        negative = b.compare(first, none, "less")
        beta = b.emit("select", negative, length, b.emit("neg", length))
        beta = b.emit("select", flat, first, beta)
        # A column that is 0 below its row needs no reflection.
        one = b.full(first.shape, 1, x.dtype)
        tau = b.emit("select", flat, none, (beta - first) / b.emit("select", flat, one, beta))
        tail = tail / _repeat_over_columns(b, b.emit("select", flat, one, first - beta), tail)
        v = b.emit("select", here, b.full(column.shape, 1, x.dtype), tail)
        kept = b.emit(
            "select", here, _repeat_over_columns(b, beta, v), b.emit("select", below, tail, column)
        )
        return [_with_column(b, _reflect_matrix(b, matrix, v, tau), matrix, kept, number), tau]

    packed, taus = at.b.scan(step, [x], [at.b.iota(SI32, [count], 0)])
    return [packed, taus.transpose([*range(1, x.rank - 1), 0])]


def orgqr(at: Site) -> Results:
    """The first columns of q, as many as the matrix of reflections has."""
    packed, taus = at.x
    row, column = (at.b.iota(SI32, packed.shape, packed.rank - 2 + i) for i in range(2))
    unit = at.b.cast(at.b.compare(row, column, "equal"), packed.dtype)
    count = at.static(taus)[-1]

    def step(b: BodyBuilder, q: Value, packed: Value, taus: Value, turn: Value) -> list[Value]:
        number = b.full([], count - 1, SI32) - turn
        found = _select_column(b, packed, number)
        place = b.iota(SI32, found.shape, found.rank - 1)
        here, below = (
            b.compare(place, b.broadcast_to(number, place.shape), how)
            for how in ("equal", "greater")
        )
        zero, one = (b.full(found.shape, digit, found.dtype) for digit in (0, 1))
        v = b.emit("select", here, one, b.emit("select", below, found, zero))
        index = b.iota(SI32, taus.shape, taus.rank - 1)
        mine = b.compare(index, b.broadcast_to(number, index.shape), "equal")
        tau = _total(b, b.emit("select", mine, taus, b.full(taus.shape, 0, taus.dtype)))
        return [_reflect_matrix(b, q, v, tau), packed, taus]

    q, *_ = at.b.scan(step, [unit, packed, taus], [at.b.iota(SI32, [count], 0)])
    return [q]


def _select_column(b: BodyBuilder, matrix: Value, number: Value) -> Value:
    place = b.iota(SI32, matrix.shape, matrix.rank - 1)
    mine = b.compare(place, b.broadcast_to(number, place.shape), "equal")
    return _total(b, b.emit("select", mine, matrix, b.full(matrix.shape, 0, matrix.dtype)))


def _total(b: BodyBuilder, x: Value) -> Value:
    return b.emit("reduce_sum", x, axes=[x.rank - 1])


def _repeat_over_columns(b: BodyBuilder, x: Value, like: Value) -> Value:
    """A number for each vector, repeated along it."""
    return b.broadcast_to(b.reshape(x, (*x.shape, 1)), like.shape)


def _vector_length(b: BodyBuilder, x: Value) -> Value:
    """The length of each vector, by way of its largest element: its square may not be a number."""
    largest = b.emit("reduce_max", b.emit("abs", x), axes=[x.rank - 1])
    none = b.compare(largest, b.full(largest.shape, 0, x.dtype), "equal")
    scale = b.emit("select", none, b.full(largest.shape, 1, x.dtype), largest)
    part = x / _repeat_over_columns(b, scale, x)
    return scale * b.emit("sqrt", _total(b, part * part))


def _reflect_matrix(b: BodyBuilder, matrix: Value, v: Value, tau: Value) -> Value:
    """`matrix - tau v (v^T matrix)`."""
    rank = matrix.rank
    spread = _repeat_over_columns(b, v, matrix)
    product = b.emit("reduce_sum", spread * matrix, axes=[rank - 2])
    scaled = product * _repeat_over_columns(b, tau, product)
    wide = b.reshape(scaled, (*scaled.shape[:-1], 1, scaled.shape[-1]))
    return matrix - spread * b.broadcast_to(wide, matrix.shape)


def _with_column(
    b: BodyBuilder, after: Value, before: Value, column: Value, number: Value
) -> Value:
    """The matrix as it is behind a column, as it was before it, and the column itself."""
    place = b.iota(SI32, after.shape, after.rank - 1)
    own = b.broadcast_to(number, place.shape)
    later = b.compare(place, own, "greater")
    mine = b.compare(place, own, "equal")
    return b.emit(
        "select",
        mine,
        _repeat_over_columns(b, column, after),
        b.emit("select", later, after, before),
    )
