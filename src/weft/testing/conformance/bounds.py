"""Which rule holds for which function: the tolerances as data. `docs/conformance.md` prints them.

A function of a float under 32 bits is carried out in f32 and rounded once, so an error of a few ulp
in f32 leaves no more than the rounding to be seen.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import CF32, F16, F32, DType
from weft.foundation.scalar import FUNCTIONS, ScalarFunction
from weft.ptir.ops.elementwise import SCALARS
from weft.testing.conformance.oracles.functions import (
    COMPLEX_BINARY,
    COMPLEX_UNARY,
    REAL_BINARY,
    REAL_UNARY,
)
from weft.testing.conformance.tolerance import CORRECTLY_ROUNDED, Exact, Rule, Ulps, ulp

_ROWS: Final = {
    **{str(fn): row for fn, row in FUNCTIONS.items()},
    **{str(name): FUNCTIONS[fn] for name, fn in SCALARS.items()},
}
"""What is known of a function, by the mnemonic of its op."""
_EXACT: Final = frozenset({"sign", "clamp"})
"""Ops that round nothing, and are more than one function."""

ZERO_SIGN_FREE = frozenset({"maximum", "minimum", "clamp"})
"""Functions for which the sign of a zero result is not specified."""


def function_rule(name: str, dtype: DType) -> Rule:
    """The rule for one elementwise function on one dtype."""
    if dtype.is_complex:
        ulps = _ROWS[name].complex_ulps if name in _ROWS else ScalarFunction.complex_ulps
        return Ulps(ulps, zeros=False) if ulps else Exact()
    if not dtype.is_float or name in _EXACT or (ulps := _ROWS[name].ulps) == 0:
        return Exact(zeros=name not in ZERO_SIGN_FREE)
    return CORRECTLY_ROUNDED if ulps == 0.5 or dtype.bits < 32 else Ulps(ulps)


FAMILIES: tuple[tuple[str, str], ...] = (
    (
        "`reduce_sum`, `reduce_prod`, `cumulative_*`, `segment_sum`, `reduce_window` sum, "
        "`scatter_add`, `scatter_reduce` add, `dot_general`, "
        "`weft.grouped_matmul`, `weft.grouped_outer`, `weft.fourier`",
        "per tensor, in the accumulator's dtype",
    ),
    ("`layer_norm`, softmax, attention", "per tensor, in f32 (f64 for f64)"),
    (
        "`byteir.softmax`, `byteir.log_softmax`, norms, `byteir.gelu`, linear `byteir.resize`, "
        "`weft.attention` and the flash ops",
        "per tensor, in f32 (f64 for f64)",
    ),
    ("`byteir.rng_uniform`", "exact"),
    ("`byteir.rng_normal`", "4 ulp of what is drawn, times stddev, and 1 ulp"),
    ("gelu, silu", "per tensor, in the operand's dtype"),
    ("maxima, minima, positions, sorting, searching, casts", "exact"),
    ("ops that place elements, constants, control flow", "exact, zero signs and all"),
    ("`rng_uniform`", "exact"),
    (
        "`rng_normal`",
        "4 ulp, and 2^-49 of the radius where sine or cosine is near 0",
    ),
    ("`quantize`, `requantize`", "exact"),
    ("`dequantize`", "within 0.501 ulp"),
    (
        "factorisations, `triangular_solve`",
        "by what they promise: the product, orthogonality, triangles; to 20 n eps of the operand",
    ),
)
"""The rules for everything that is not an elementwise function."""


def markdown() -> str:
    """The tolerances as two tables of Markdown, which `docs/conformance.md` holds."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in (*REAL_UNARY, *REAL_BINARY, "copysign", "nextafter", "clamp"):
        rules = tuple(_say_bound(name, dtype) for dtype in (F16, F32, CF32))
        groups.setdefault(rules, []).append(f"`{name}`")
    lines = ["| function | narrow floats | f32, f64 | complex |", "|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {' | '.join(rules)} |" for rules, names in groups.items()]
    lines += ["", "| op | rule |", "|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {rule} |" for what, rule in FAMILIES)])


def _say_bound(name: str, dtype: DType) -> str:
    defined = name in (*COMPLEX_UNARY, *COMPLEX_BINARY) if dtype.is_complex else True
    return str(function_rule(name, dtype)) if defined else "–"


def widened(rule: Rule, extra: NDArray[Any]) -> Rule:
    """An ulp rule with more room for some elements, because the arguments ask for it."""
    return Ulps(rule.count + extra, rule.zeros) if isinstance(rule, Ulps) else rule


def logaddexp_room(x: NDArray[Any], y: NDArray[Any], exact: NDArray[Any], dtype: DType) -> Any:
    """`logaddexp` errs by 4 ulp of its largest argument, or of 1: a result near 0 has fewer
    correct digits."""
    size = np.maximum(np.maximum(np.abs(x), np.abs(y)), 1)
    work = F32 if dtype.bits < 32 else dtype
    finite = np.isfinite(exact) & np.isfinite(size)
    spacing = np.where(finite, ulp(exact, dtype), 1)
    return np.where(finite, ScalarFunction.ulps * ulp(np.where(finite, size, 1), work) / spacing, 0)
