"""Coarse ops, those with rules of their own and those whose gradient is that of their formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.derivatives.case import between, case, distinct, emitted, normal

STATE = np.array([5, 3])

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
    "byteir.repeat", emitted("byteir.repeat", length=3), normal(3, 2), np.array([2, 0, 1]), wrt=[0]
)
case(
    "byteir.dequantize", emitted("byteir.dequantize", axis=1, dtype="f64"),
    np.array([[1, -2, 3]], np.int8), between(0.5, 2.0, 3), np.array([1, 2, 3], np.int8), wrt=[1],
)  # fmt: skip
for first, second in (("byteir.rng_uniform", 3.0), ("byteir.rng_normal", 2.0)):
    case(
        first, emitted(first, dims=[2, 3]),
        np.array(-1.0), np.array(second), np.array(5), np.array(7), wrt=[0, 1],
    )  # fmt: skip

# -- images --------------------------------------------------------------------------------------

for mode, coordinates in (("linear", "half_pixel"), ("nearest", "asymmetric")):
    case(
        "byteir.resize",
        emitted(
            "byteir.resize", target_mode="size", mode=mode, shape=[1, 7, 6],
            coordinate_transformation_mode=coordinates,
        ),
        normal(1, 4, 3), np.array([1, 7, 6]), wrt=[0], label=mode,
    )  # fmt: skip
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

case(
    "weft.attention", emitted("weft.attention", causal=True),
    normal(1, 4, 3, 2), normal(1, 2, 4, 2, seed=1), normal(1, 2, 4, 3, seed=2), label="heads",
)  # fmt: skip
case(
    "weft.attention", emitted("weft.attention", dropout=0.5),
    normal(1, 2, 3, 2), normal(1, 2, 4, 2, seed=1), normal(1, 2, 4, 2, seed=2), STATE,
    normal(3, 4, seed=3), wrt=[0, 1, 2, 4], label="dropout and mask",
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
    "byteir.flash_attn_bwd",
    emitted("byteir.flash_attn_bwd", dropout_p=0.3, softmax_scale=0.6, causal=False),
    normal(1, 2, 2, 2), normal(1, 2, 2, 2, seed=1), normal(1, 3, 1, 2, seed=2),
    normal(1, 3, 1, 2, seed=3), normal(1, 2, 2, 2, seed=4), normal(1, 2, 2, seed=5), STATE,
    wrt=[0, 1, 2, 3, 4, 5], order=1,
)  # fmt: skip
case(
    "byteir.flash_attn_kvcache",
    emitted("byteir.flash_attn_kvcache", softmax_scale=0.6, causal=True, results=4),
    normal(2, 2, 2, 2), normal(2, 5, 1, 2, seed=1), normal(2, 5, 1, 2, seed=2),
    normal(2, 2, 1, 2, seed=3), normal(2, 2, 1, 2, seed=4), np.array([1, 3]),
    wrt=[0, 1, 2, 3, 4], order=1,
)  # fmt: skip
