"""The refusals that map and row templates share: ops and dtypes that they cannot compute with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.codegen.gpu.body.reductions import FUNCTIONS
from weft.codegen.gpu.ir.element_ops import supports
from weft.codegen.gpu.ir.formats import HELD
from weft.foundation.dtypes import I1, DType
from weft.foundation.errors import Finding
from weft.region.ir import (
    Binary,
    Check,
    Fold,
    Kernel,
    Let,
    Pattern,
    Reduce,
    Tensor,
    Unary,
    operands,
    walk,
)
from weft.region.row_reads import is_gather

MAX_POINTS: Final = (1 << 31) - (1 << 20)
"""Points that a thread counts in 32 bits, with room to count past the last of them."""
_MAX_BLOCKS: Final = 1 << 31
_MAX_PARAM: Final = 1 << 30
"""Blocks that a launch can have, and sizes whose sums stay within 32 bits."""


def refuse(code: str, why: str, hint: str = "") -> Finding:
    return Finding(code, "", why, hint)


def too_many(*counts: int, blocks: int = 0) -> Iterator[Finding]:
    """Numbers that are counted in 32 bits, and blocks of a grid."""
    if max(counts, default=0) >= MAX_POINTS or blocks >= _MAX_BLOCKS:
        yield refuse("Points", "the kernel has more points than 32 bits count")


def kernel_refusals(kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[Finding]:
    """Dtypes and functions that there is no code for."""
    return list(dict.fromkeys(_body_refusals(kernel, tensors)))


def _body_refusals(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Iterator[Finding]:
    if kernel.pattern is Pattern.OPAQUE:
        yield refuse("OpaqueKernel", "an op that no kernel language expresses has no GPU code")
        return
    dtypes = _dtypes(kernel)
    inside = set(map(id, walk(kernel.body))) - set(map(id, kernel.body))
    for let in walk(kernel.body):
        if id(let) in inside and (isinstance(let.expr, Check) or is_gather(let)):
            yield refuse("FoldBody", "GPU kernels neither check nor gather inside a fold")
        if let.dtype not in HELD:
            yield refuse("DTypeNotSupported", f"GPU kernels have no arithmetic in {let.dtype}")
        else:
            yield from _function_refusals(let, dtypes)
    for output in kernel.outputs:
        dtype = tensors[output.tensor].dtype
        if dtype not in HELD:
            yield refuse("DTypeNotSupported", f"GPU kernels cannot store {dtype}")
    for param in kernel.params:
        if not -_MAX_PARAM < param.low <= param.high < _MAX_PARAM:
            yield refuse("ParamRange", f"the range {param.low}..{param.high} needs 64 bits")


def _dtypes(kernel: Kernel) -> dict[str, DType]:
    found = {let.name: let.dtype for let in walk(kernel.body)}
    for let in kernel.body:
        if isinstance(let.expr, Fold):
            for carry in let.expr.carries:
                found |= {carry.name + side: carry.dtype for side in ("", ".a", ".b")}
    return found


def _function_refusals(let: Let, dtypes: Mapping[str, DType]) -> Iterator[Finding]:
    match let.expr:
        case Unary(fn=fn) | Binary(fn=fn):
            source = dtypes[operands(let)[0]]
            if source in HELD and not supports(fn, source):
                yield refuse("FunctionNotSupported", f"there is no GPU code for {fn} of {source}")
        case Reduce(fn=fn):
            if let.dtype is I1 and fn in ("sum", "prod"):
                yield refuse("FunctionNotSupported", f"there is no GPU code for a {fn} of i1")
            elif fn not in FUNCTIONS:
                yield refuse("FunctionNotSupported", f"there is no GPU code for a {fn}")
