"""Operations that are not supported, each with the reason that the error and the docs page give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_EFFECTS: Final = "it has an effect besides its result, or orders such effects, and PTIR is pure"
_ASYNC: Final = "it starts or awaits work in the background, and a program has an order already"
_INSIDE: Final = "it belongs to the inside of XLA's compiler"

REFUSED: Final[Mapping[str, str]] = {
    "cross-replica-sum": "nobody writes it any more; `all_reduce` says the same",
    **dict.fromkeys(
        (
            "after_all", "create_token", "infeed", "outfeed", "recv", "send", "add_dependency",
            "trace", "xla.rng_get_and_update_state",
        ),
        _EFFECTS,
    ),
    **dict.fromkeys(("async_start", "async_update", "async_done"), _ASYNC),
    **dict.fromkeys(("bitcast", "domain", "fusion", "_asin_acos_kernel"), _INSIDE),
    "minimum_broadcast_shapes": "its results are shapes, which are no values of PTIR",
    "ragged_dot": "the sizes of its groups are known only at run time",
    "scan": "its form is not settled yet; `while` says the same",
    "stochastic_convert": "PTIR's casts round to nearest",
}  # fmt: skip
"""By name without the dialect."""
