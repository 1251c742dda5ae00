"""Kernels without a template on the target, which the host interprets.

A call is the text of the kernel alone, with the tensors it touches and the reason why it is the
host's; an op that no kernel expresses is a call of `opaque`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from weft.foundation.errors import Unimplemented
from weft.region.cost import steps_of
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, Module, Tensor
from weft.region.text import from_json, to_json
from weft.runtime.artifact import HostCall, HostFunction, TensorSpec

Array = NDArray[Any]
MOST_POINTS: Final = 1 << 33
"""Elements of a value that the host plays back: it holds all of them, of several values at once."""


def kernel_call(kernel: Kernel, module: Module, slot: Callable[[str], int], why: str) -> HostCall:
    """A kernel with a body as a step of the host's."""
    points = steps_of(kernel)
    if points > MOST_POINTS:
        raise Unimplemented(
            kernel.name,
            f"{why}, and the host has no memory for {points:,} elements at a time; "
            "compute it in parts",
        )
    read = _read_by(kernel)
    written = [output.tensor for output in kernel.outputs]
    tensors = {name: module.tensors[name] for name in (*read, *written)}
    alone = Module(tensors, (kernel,), tuple(read), tuple(written))
    text = json.dumps({"why": why, **to_json(alone)})
    inputs = tuple((slot(name), spec_of(tensors[name])) for name in read)
    outputs = tuple((slot(name), spec_of(tensors[name])) for name in written)
    return HostCall(text, inputs, outputs, kernel.name)


def spec_of(tensor: Tensor) -> TensorSpec:
    """A tensor as the runtime sees it."""
    return TensorSpec(tensor.name, tensor.dtype.name, tensor.shape)


def _read_by(kernel: Kernel) -> list[str]:
    """Everything a kernel reads, and the tensors whose elements stay where it writes none."""
    bases = [output.base for output in kernel.outputs if output.base is not None]
    return list(dict.fromkeys([*kernel.inputs, *bases]))


def host_function(call: str) -> HostFunction:
    """What the host does to carry a kernel out."""
    module = from_json({"module": json.loads(call)["module"]})
    (kernel,) = module.kernels

    def function(arrays: Sequence[Array], seed: int) -> list[Array]:
        found = run_kernel(kernel, module.tensors, dict(zip(module.inputs, arrays, strict=True)))
        return [found[name] for name in module.outputs]

    return function
