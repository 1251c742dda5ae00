"""Products on matrix units whose results meet random numbers, which their epilogues do not draw.

    y[m, n] = select(drawn[m, n], sum_k a b, 0)    -->    t[m, n] = drawn[m, n];  then t is read

A map makes four words of a call where neighbours in an accumulator would share two, so that a
truth value for each element costs less than to draw behind the product.
"""

from __future__ import annotations

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.fitting.joining import live
from weft.region.forms.multiplied import usual_atom
from weft.region.ir import Kernel, Let, Module, Output, Pattern, Read, Tensor, Words, operands
from weft.target.target import Target


def with_drawn_apart(module: Module, target: Target) -> Module:
    """The module with random numbers beside sums of matrix units made by maps before them."""
    if not any(_draws(kernel, target) for kernel in module.kernels):
        return module
    kernels: list[Kernel] = []
    tensors, origin = dict(module.tensors), dict(module.origin)
    for found in module.kernels:
        kernel = found
        if _draws(kernel, target):
            body = list(kernel.body)
            for let in _drawn_values(kernel):
                name = f"{kernel.name}_{let.name}"
                place = tuple(axis(a) for a in let.axes)
                made = Kernel(
                    f"map_{name}", Pattern.MAP, kernel.axes, kernel.body,
                    (Output(name, let.name, place),), labels=kernel.labels,
                )  # fmt: skip
                kernels.append(live(made))
                tensors[name] = Tensor(name, let.dtype, tuple(kernel.sizes[a] for a in let.axes))
                origin[kernels[-1].name] = module.origin.get(kernel.name, ())
                body[body.index(let)] = replace(let, expr=Read(name, place))
            kernel = live(replace(kernel, body=tuple(body)))
        kernels.append(kernel)
    return replace(module, kernels=tuple(kernels), tensors=tensors, origin=origin)


def _draws(kernel: Kernel, target: Target) -> bool:
    """Whether matrix units could carry out a contraction, and it draws only beside it."""
    roles = kernel.roles
    words = [let for let in kernel.body if isinstance(let.expr, Words)]
    if roles is None or not words or kernel.params:
        return False
    if not any(usual_atom(kernel, arch) is not None for arch in ("sm80", "sm90")):
        return False
    return target.has("mma.sync") and not any({*let.axes} & {*roles.k} for let in words)


def _drawn_values(kernel: Kernel) -> list[Let]:
    """The values made of random numbers, and not of sums, that anything else is made of."""
    assert kernel.roles is not None
    sums, drawn = {kernel.roles.contraction}, set[str]()
    for let in kernel.body:
        used = {*operands(let)}
        if used & sums:
            sums.add(let.name)
        elif isinstance(let.expr, Words) or used & drawn:
            drawn.add(let.name)
    ends = {output.value for output in kernel.outputs}
    ends |= {name for let in kernel.body if let.name not in drawn for name in operands(let)}
    return [let for let in kernel.body if let.name in drawn & ends]
