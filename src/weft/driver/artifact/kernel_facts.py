"""What code generators and lists of steps both go by: which kernels become the same code, and which
move nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from weft.memory.ir import MemRef
from weft.plan.ir import Plan
from weft.region.ir import Kernel, Let, Output, Read, Tensor
from weft.region.structure import structure_key


def kernel_key(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    refs: Mapping[str, MemRef],
    plan: Plan | None,
    *more: str,
) -> str:
    """A digest that is equal for kernels which become the same code."""
    layout = [(ref.strides, ref.noalias) for ref in refs.values()]
    # The header names the kernel the plan was made for; two equal kernels may have two headers.
    plan_text = re.sub(r"header=Header\([^)]*\)", "", repr(plan))
    text = "\0".join([structure_key(kernel, tensors), repr(layout), plan_text, *more])
    return hashlib.sha256(text.encode()).hexdigest()


def moves_nothing(kernel: Kernel, refs: Mapping[str, MemRef]) -> bool:
    """Whether all that a kernel does is to put elements where they are: a donated input that is
    returned as it was, such as a parameter that is not learnt."""
    lets = {let.name: let.expr for let in kernel.body if isinstance(let, Let)}

    def stays(output: Output) -> bool:
        read = lets.get(output.value)
        if not isinstance(read, Read) or read.guards or read.places or output.base is not None:
            return False
        source, target = refs.get(read.tensor), refs.get(output.tensor)
        if source is None or target is None or read.index != output.index:
            return False
        return (source.buffer, source.shape, source.strides, source.element_bytes) == (
            target.buffer, target.shape, target.strides, target.element_bytes,
        )  # fmt: skip

    plain = kernel.opaque is None and not kernel.stages and bool(kernel.outputs)
    return plain and all(map(stays, kernel.outputs))
