"""A race check of edited GPU kernels, by the dialect's interpreter.

The interpreter runs every thread, so that large kernels are beyond it: it stops when its budget is
spent, and what was not looked at is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, Spent, Timing, run
from weft.codegen.gpu.ir.module import GpuModule
from weft.foundation.errors import InternalError, SpecViolation
from weft.region.ir import Module, Tensor
from weft.region.structure import buffers

Array = NDArray[Any]
BUDGET: Final = 40_000
"""Statements of warps: some seconds."""
MOST_BYTES: Final = 1 << 28
"""Of a kernel's tensors that is looked at: the interpreter holds them all."""
_NUMBERS: Final = (1, 0)
"""What all tensors hold: threads wait alike for all numbers. Where one breaks a rule of the
program, such as that of an index, the next is tried."""
_BROKEN: Final = (
    LookupError, ValueError, ArithmeticError, TypeError, AttributeError, AssertionError,
    RuntimeError, MemoryError, InternalError,
)  # fmt: skip
"""What the interpreter raises where a kernel makes no sense to it."""


def check_edited(
    read: GpuModule, made: GpuModule, module: Module, warn: Callable[[str], None]
) -> None:
    """Refuse kernels that differ from those that were made, and in which threads do not wait for
    one another; warn of those of which that is not known."""
    tensors = _tensors_by_kernel(read, module)
    for symbol, kernel in read.kernels.items():
        if kernel == made.kernels.get(symbol) or symbol not in tensors:
            continue
        unknown = _why_unknown(symbol, kernel, tensors[symbol])
        if unknown:
            warn(
                f"the GPU kernel {symbol} was given, and it is not known whether its threads wait "
                f"for one another wherever they must: {unknown}"
            )


def _tensors_by_kernel(code: GpuModule, module: Module) -> dict[str, list[dict[str, Tensor]]]:
    """For each dialect kernel that is launched the tensors that its buffers are, once: those of
    each set of them."""
    found: dict[str, list[dict[str, Tensor]]] = {}
    for kernel in module.kernels:
        launch = code.launches.get(kernel.name)
        if launch is None:
            continue
        made, sets = code.kernels[launch.symbol], found.setdefault(launch.symbol, [])
        if len(sets) < made.sets:
            names = buffers(kernel)
            places = zip(made.buffers, launch.tensors, strict=True)
            sets.append({name: module.tensors[names[at]] for name, at in places})
    return found


def _why_unknown(symbol: str, kernel: ir.Kernel, tensors: Sequence[Mapping[str, Tensor]]) -> str:
    """Why it is not known whether a kernel is sound; nothing where it is."""
    if sum(tensor.bytes for one in tensors for tensor in one.values()) > MOST_BYTES:
        return "its tensors are too large for the dialect's interpreter"
    for timing in Timing:
        unknown = _run_kernel(symbol, kernel, tensors, timing)
        if unknown:
            return unknown
    return ""


def _run_kernel(
    symbol: str, kernel: ir.Kernel, tensors: Sequence[Mapping[str, Tensor]], timing: Timing
) -> str:
    why = ""
    for number in _NUMBERS:
        flat, *others = (
            {
                name: np.full(int(np.prod(tensor.shape)), number).astype(tensor.dtype.numpy)
                for name, tensor in one.items()
            }
            for one in tensors
        )
        try:
            with np.errstate(all="ignore"):
                run(kernel, flat, timing, budget=BUDGET, others=others)
        except Hazard as found:
            raise SpecViolation(
                "KernelRace", f"in the kernel {symbol} {found.what}", "put a barrier there"
            ) from None
        except Spent as spent:
            return f"the dialect's interpreter stopped after {spent.blocks} of {kernel.grid} blocks"
        except SpecViolation as broken:
            why = f"on tensors of one number it reports {broken.why!r}"
        except _BROKEN as error:
            return f"the dialect's interpreter cannot run it: {type(error).__name__}: {error}"
        else:
            return ""
    return why
