"""Operations that are not supported, each with the reason that the error and the docs page give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EFFECTS: Final = "it has a side effect, or orders side effects, and PTIR has none"
_ASYNC: Final = "it starts or waits for asynchronous work, which PTIR cannot express"
_INSIDE: Final = "it is internal to XLA's compiler"

REFUSED: Final[Mapping[str, str]] = {
    "cross-replica-sum": "it is obsolete; use `all_reduce`",
    **dict.fromkeys(
        (
            "after_all", "create_token", "infeed", "outfeed", "recv", "send", "add_dependency",
            "trace", "xla.rng_get_and_update_state",
        ),
        _EFFECTS,
    ),
    **dict.fromkeys(("async_start", "async_update", "async_done"), _ASYNC),
    **dict.fromkeys(("bitcast", "domain", "fusion", "_asin_acos_kernel"), _INSIDE),
    "minimum_broadcast_shapes": "its results are shapes, and shapes are not values in PTIR",
    "ragged_dot": "the sizes of its groups are known only at run time",
    "scan": "its specification is not final yet; use `while`",
    "stochastic_convert": "casts of PTIR round to nearest",
}  # fmt: skip
"""By name without the dialect."""
