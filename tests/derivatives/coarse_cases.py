"""Coarse ops, those with rules of their own and those whose gradient is that of their formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.derivatives.case import Function, between, case, distinct, emitted, normal

case("byteir.softmax", emitted("byteir.softmax", axis=1), normal(3, 4))
case("byteir.log_softmax", emitted("byteir.log_softmax", axis=0), normal(3, 4))
case("byteir.erf", emitted("byteir.erf"), normal(5))
case("byteir.addn", emitted("byteir.addn"), normal(5), normal(5, seed=1))
for form in ("none", "tanh"):
    case("byteir.gelu", emitted("byteir.gelu", approximate=form), normal(6), label=form)

# -- norms ---------------------------------------------------------------------------------------

NORMS: dict[str, dict[str, Any]] = {
    "": {},
    "statistics": {"results": 3},
    "outside": {"eps_outside_sqrt": True},
}
for label, attrs in NORMS.items():
    case(
        "byteir.layer_norm",
        emitted("byteir.layer_norm", epsilon=0.01, axis=[2, 1], **attrs),
        normal(2, 3, 2), normal(2, 3, seed=1), normal(2, 3, seed=2), label=label,
    )  # fmt: skip
for outside in (False, True):
    function = emitted("byteir.l2_norm", epsilon=1e-3, axis=[1], eps_outside_sqrt=outside)
    case("byteir.l2_norm", function, normal(3, 4), label="outside" if outside else "")

# -- positions -----------------------------------------------------------------------------------

for row in ("byteir.arg_max", "byteir.arg_min"):
    case(row, emitted(row, axis=1, results=2, select_last_index=True), distinct(3, 4))
case("byteir.top_k", emitted("byteir.top_k", axis=[0], k=2), distinct(4, 3))
case(
    "byteir.repeat", lambda b, x: b.emit("byteir.repeat", x, b.literal([2, 0, 1]), length=3),
    normal(3, 2),
)  # fmt: skip
case(
    "byteir.dequantize", emitted("byteir.dequantize", axis=1, dtype="f64"),
    np.array([[1, -2, 3]], np.int8), between(0.5, 2.0, 3), np.array([1, 2, 3], np.int8), wrt=[1],
    label="per-axis",
)  # fmt: skip


def sampled(row: str) -> Function:
    return lambda b, *ends: b.emit(row, *ends, b.literal(5), b.literal(7), dims=[2, 3])


for row, second in (("byteir.rng_uniform", 3.0), ("byteir.rng_normal", 2.0)):
    case(row, sampled(row), np.array(-1.0), np.array(second))

# -- images --------------------------------------------------------------------------------------


def resized(mode: str, coordinates: str) -> Function:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "shape": [1, 7, 6]}
    return lambda b, x: b.emit(
        "byteir.resize", x, b.literal([1, 7, 6]), target_mode="size", **attrs
    )


case("byteir.resize", resized("linear", "half_pixel"), normal(1, 4, 3), label="linear")
case("byteir.resize", resized("nearest", "asymmetric"), normal(1, 4, 3), label="nearest")
case(
    "weft.conv",
    emitted("weft.conv", layout="NCHW", groups=2, pad=[1, 0, 0, 2], stride=[2, 1], dilation=[1, 2]),
    normal(1, 2, 5, 5), normal(4, 1, 3, 2, seed=1), normal(4, seed=2), label="groups",
)  # fmt: skip
case(
    "weft.conv", emitted("weft.conv", layout="NWC", stride=[3], pad=[3, 0]),
    normal(1, 7, 2), normal(2, 2, 3, seed=1), label="line",
)  # fmt: skip
case(
    "weft.conv", emitted("weft.conv", layout="NDHWC", stride=[1, 2, 1]),
    normal(1, 3, 4, 3, 1), normal(2, 2, 2, 1, 2, seed=1), label="volume",
)  # fmt: skip

# -- attention -----------------------------------------------------------------------------------


def dropped(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return b.emit("weft.attention", q, k, v, b.literal([5, 3]), mask, dropout=0.5)


def backward(b: Any, *operands: Any) -> Any:
    attrs = {"dropout_p": 0.3, "softmax_scale": 0.6, "causal": False}
    return b.emit("byteir.flash_attn_bwd", *operands, b.literal([5, 3]), **attrs)


def cached(b: Any, *operands: Any) -> Any:
    attrs = {"softmax_scale": 0.6, "causal": True, "results": 4}
    return b.emit("byteir.flash_attn_kvcache", *operands, b.literal([1, 3]), **attrs)


case(
    "weft.attention", emitted("weft.attention", causal=True),
    normal(1, 4, 3, 2), normal(1, 2, 4, 2, seed=1), normal(1, 2, 4, 3, seed=2), label="heads",
)  # fmt: skip
case(
    "weft.attention", dropped, normal(1, 2, 3, 2), normal(1, 2, 4, 2, seed=1),
    normal(1, 2, 4, 2, seed=2), normal(3, 4, seed=3), label="dropout",
)  # fmt: skip
for label, dropout in (("", 0.0), ("dropout", 0.3)):
    case(
        "byteir.flash_attn_fwd",
        emitted(
            "byteir.flash_attn_fwd", dropout_p=dropout, softmax_scale=0.6, causal=not dropout,
            return_softmax=bool(dropout),
        ),
        normal(1, 3, 4, 2), normal(1, 4, 2, 2, seed=1), normal(1, 4, 2, 2, seed=2), label=label,
    )  # fmt: skip
case(
    "byteir.flash_attn_bwd", backward, normal(1, 2, 2, 2), normal(1, 2, 2, 2, seed=1),
    normal(1, 3, 1, 2, seed=2), normal(1, 3, 1, 2, seed=3), normal(1, 2, 2, 2, seed=4),
    normal(1, 2, 2, seed=5), order=1,
)  # fmt: skip
case(
    "byteir.flash_attn_kvcache", cached, normal(2, 2, 2, 2), normal(2, 5, 1, 2, seed=1),
    normal(2, 5, 1, 2, seed=2), normal(2, 2, 1, 2, seed=3), normal(2, 2, 1, 2, seed=4), order=1,
)  # fmt: skip
