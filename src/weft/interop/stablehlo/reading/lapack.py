"""LAPACK's routines, which JAX calls on the CPU, as PTIR's factorisations.

A target is `lapack_`, a letter for the dtype, the routine and `_ffi`; letters in the call's
configuration say which triangle is meant, as LAPACK has them. `info`, LAPACK's word on success, is
0: a factor that does not exist is NaN, or an error when the program runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.foundation.dtypes import SI32
from weft.interop.stablehlo.reading.householder import geqrf, orgqr
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.ptir.builder import Value
from weft.ptir.builder.body import BodyBuilder

CONFIGURATION: Final = "mhlo.backend_config"
_TARGET: Final = re.compile(r"lapack_[sdcz](\w+)_ffi")
_FOREIGN: Final = ("lapack_", "blas_", "cusolver_", "cublas_", "hipsolver_")


def lapack_routine(at: Site, target: str) -> tuple[int, int, Lowering] | None:
    """How many operands and results a call of LAPACK has, and its lowering; nothing for a call of
    something else. Routines that PTIR has no op for are refused by name."""
    found = _TARGET.fullmatch(target)
    real = at.x and not at.x[0].dtype.is_complex
    if found is not None and found[1] in _ROUTINES and (real or found[1] not in _REAL):
        return _ROUTINES[found[1]]
    if target.startswith(_FOREIGN):
        at.refuse(
            f"{target[:60]!r} is a routine for linear algebra that is not read; those of LAPACK "
            f"that are read are {', '.join(sorted(_ROUTINES))}"
        )
    return None


def _letter(at: Site, name: str, *known: str) -> str:
    """A letter of the configuration, which has it as its code."""
    given = at.attr(CONFIGURATION, {})
    code: Any = given.get(name) if isinstance(given, Mapping) else None
    letter = chr(code) if isinstance(code, int) and 0 < code < 128 else ""
    if letter not in known:
        raise at.violation(f"{name} of a routine of LAPACK is the code of {' or '.join(known)}")
    return letter


def _zero_info(at: Site, x: Value) -> Value:
    return at.b.full(x.shape[:-2], 0, SI32)


def _adjoint(at: Site, x: Value) -> Value:
    turned = x.transpose([*range(x.rank - 2), x.rank - 1, x.rank - 2])
    return at.b.emit("conj", turned) if x.dtype.is_complex else turned


def _potrf(at: Site) -> Results:
    (x,) = at.x
    upper = _letter(at, "uplo", "L", "U") == "U"
    return [at.b.emit("cholesky", x, upper=upper), _zero_info(at, x)]


def _syevd(at: Site) -> Results:
    """Vectors come first; without them (`mode` N) the place holds nothing of meaning."""
    (x,) = at.x
    _letter(at, "mode", "V", "N")
    lower = _letter(at, "uplo", "L", "U") == "L"
    values, vectors = at.b.emit("eigh", x if lower else _adjoint(at, x))
    return [vectors, values, _zero_info(at, x)]


def _gesdd(at: Site) -> Results:
    """The matrix (which LAPACK overwrites), values, left and right vectors. Without vectors (`mode`
    N) those are declared all the same, and hold nothing of meaning."""
    (x,) = at.x
    mode = _letter(at, "mode", "A", "S", "N")
    whole = mode == "A" or (mode == "N" and at.shape(2) == (*x.shape[:-1], x.shape[-2]))
    u, s, vh = at.b.emit("svd", x, full_matrices=whole)
    return [x, s, u, vh, _zero_info(at, x)]


def _trsm(at: Site) -> Results:
    a, b = at.x
    left = _letter(at, "side", "L", "R") == "L"
    lower = _letter(at, "uplo", "L", "U") == "L"
    turn = _letter(at, "trans_x", "N", "T", "C")
    unit = _letter(at, "diag", "N", "U") == "U"
    if turn == "C" and a.dtype.is_complex:
        a = at.b.emit("conj", a)
    swap = [*range(b.rank - 2), b.rank - 1, b.rank - 2]
    found = at.b.emit(
        "triangular_solve", a, b if left else b.transpose(swap), lower=lower,
        transpose=(turn != "N") is left, unit_diagonal=unit,
    )  # fmt: skip
    return [found if left else found.transpose(swap)]


def _getrf(at: Site) -> Results:
    """Both factors in one matrix, and for every column the row, counted from 1, that was exchanged
    with the column's own."""
    (x,) = at.x
    m, n = at.static(x)[-2:]
    order, lower, upper = at.b.emit("lu", x)
    row, column = (at.b.iota("si64", x.shape, x.rank - 2 + i) for i in range(2))
    below = at.b.compare(row, column, "greater")
    lower, upper = (_widen_with_zeros(at, part, at.static(x)) for part in (lower, upper))
    both = at.b.emit("select", below, lower, upper)
    return [both, _exchanges(at, order, m, min(m, n)), _zero_info(at, x)]


def _widen_with_zeros(at: Site, x: Value, shape: Sequence[int]) -> Value:
    """With zeros behind the last rows and columns."""
    more = [a - b for a, b in zip(shape, at.static(x), strict=True)]
    if not any(more):
        return x
    return at.b.emit("pad", x, high=more, pad_value=0)


def _exchanges(at: Site, order: Value, m: int, k: int) -> Value:
    """Which rows were exchanged, step by step, to bring them into this order."""
    b, rank = at.b, order.rank
    front = order.transpose([rank - 1, *range(rank - 1)])
    wanted = at.sliced(front, [0] * rank, [k, *at.static(front)[1:]])
    start = b.iota(SI32, order.shape, rank - 1)

    def step(body: BodyBuilder, rows: Value, row: Value, own: Value) -> list[Value]:
        place = body.iota(SI32, rows.shape, rank - 1)
        sought = body.broadcast_to(body.reshape(row, (*row.shape, 1)), rows.shape)
        here = body.compare(place, body.broadcast_to(own, rows.shape), "equal")
        there = body.compare(rows, sought, "equal")
        nothing = body.full(rows.shape, 0, SI32)
        found = [
            body.emit("reduce_sum", body.emit("select", mask, value, nothing), axes=[rank - 1])
            for mask, value in ((there, place), (here, rows))
        ]
        moved = body.broadcast_to(body.reshape(found[1], (*row.shape, 1)), rows.shape)
        after = body.emit("select", here, sought, body.emit("select", there, moved, rows))
        return [after, found[0] + body.full(row.shape, 1, SI32)]

    _, taken = b.scan(step, [start], [wanted, b.iota(SI32, [k], 0)])
    return taken.transpose([*range(1, rank), 0])


_ROUTINES: Final[Mapping[str, tuple[int, int, Lowering]]] = {
    "potrf": (1, 2, _potrf),
    "getrf": (1, 3, _getrf),
    "trsm": (2, 1, _trsm),
    "syevd": (1, 3, _syevd),
    "heevd": (1, 3, _syevd),
    "gesdd": (1, 5, _gesdd),
    "geqrf": (1, 2, geqrf),
    "orgqr": (2, 1, orgqr),
}
_REAL: Final = ("geqrf", "orgqr")
"""Those that are read for real matrices only."""
