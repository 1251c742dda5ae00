"""Default words of the plan language: what the text of a product's plan need not say.

A field that follows from others may be left out: how warps work together and how many there are
from the template and its tiles (`following`), how operands lie and which axes have a rest from the
kernel (`plan.completion`). A field may also name several values, `sm80|sm90`: each of them will do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from weft.plan.ir import MmaPlan
from weft.plan.sum_parts import SPLITTING

ORDINARY: Final = "implicit_gemm"
"""What products and convolutions are computed by, unless a plan names another algorithm."""
_MATRIX: Final = ("sm80", "sm90")
_ALGORITHMS: Final = {
    "matmul": re.compile(rf"implicit_gemm|{SPLITTING.pattern}"),
    "conv": re.compile(r"implicit_gemm|winograd_3x3|fft_conv"),
    "attention": re.compile(r"streaming_softmax_2pass|online_softmax"),
}
_ANY_PARTS: Final = "splitk_*"


def is_algorithm(kind: str, name: str) -> bool:
    """Whether products, convolutions or attentions have an algorithm of that name."""
    return kind in _ALGORITHMS and _ALGORITHMS[kind].fullmatch(name) is not None


def following(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a product's plan with those that it leaves out and that follow from them."""
    found = dict(values)
    arch = found.get("arch", MmaPlan.arch)
    found.setdefault("roles", "cooperative" if arch == "sm90" else "single")
    if arch in _MATRIX:
        found.setdefault("operand_layouts", ())
    if arch == "cpu":
        # Without packing, a tile is what registers hold.
        found.setdefault("warp_tile", tuple(found["tile"][:2]))
    if arch == "sm90":
        found.setdefault("consumers", _consumers(found))
        found.setdefault("registers", MmaPlan.registers if found["consumers"] == 2 else (0, 0))
    return found


def _consumers(values: Mapping[str, Any]) -> int:
    """Warpgroups that share a tile, or two that have one each."""
    rows, columns, _ = values["tile"]
    own_rows, own_columns = values.get("warp_tile", MmaPlan.warp_tile)
    if values["roles"] == "pingpong" or min(own_rows, own_columns) < 1:
        return MmaPlan.consumers
    return max(1, int(rows // own_rows) * int(columns // own_columns))


def template_of(target: str) -> str:
    """The template of products that is called by its target."""
    return target if target in ("cpu", *_MATRIX) else MmaPlan.arch


def one_of(text: str, wanted: str) -> str:
    """The value that a field of one or several has: the one that is wanted, or the first."""
    values = text.split("|")
    return wanted if wanted in values else values[0]


def algorithms(choice: Mapping[str, str]) -> dict[str, str]:
    """The algorithms that a plan insists on. Several with the ordinary one among them, and several
    for an attention, leave the matter to the template."""
    found = {}
    for kind, text in choice.items():
        values = text.split("|")
        known = all(is_algorithm(kind, name) for name in values if name != _ANY_PARTS)
        if len(values) == 1 or not known:
            found[kind] = text
        elif ORDINARY not in values and kind != "attention":
            found[kind] = values[0]
    return found
