"""What both matrix templates ask of a plan: fields that say what they do anyway, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.errors import Finding
from weft.plan.epilogue import epilogue_refusals
from weft.plan.ir import STREAMING, MmaPlan
from weft.region.ir import Kernel

_ALGORITHMS: Final = {"matmul": "implicit_gemm", "attention": STREAMING}
_HINTS: Final[Mapping[str, bool | str]] = {"A_swizzle": True, "B_swizzle": True, "C_stride": "row"}


def field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    """Fields of a plan that neither template carries out."""
    for why in (*epilogue_refusals(kernel, plan), *_refusals(plan)):
        yield Finding("PlanField", "", why)


def _refusals(plan: MmaPlan) -> Iterator[str]:
    for key, value in plan.algo_choice.items():
        if _ALGORITHMS.get(key) != value:
            yield f"algo_choice.{key}={value} is not built"
    for hint, wanted in plan.layout_hints.items():
        if _HINTS.get(hint) != wanted:
            yield f"layout_hints.{hint}={wanted} is not built"
    for cached in plan.cache:
        if cached.tensor not in ("A", "B"):
            yield f"{cached.tensor} is no operand: A and B are cached"
        elif cached.where != "smem" or not cached.pingpong:
            yield f"{cached.tensor} must be cached in smem, double-buffered"
        elif cached.at != "k.i":
            yield f"{cached.tensor} is cached at k.i, not at {cached.at}"
