"""Fusion of a convolution in channels-first layout with the pooling behind it
(`region.forms.planes`).

    y = convolution(x, w);  z[i, o, p, q] = max over u, v of y[i, o, 2p + u, 2q + v]
                            ->    z = convolution(x, w with its channels last)

What a program is given lies with its channels first, and so does what it hands out. Apart, there
is a copy of the image with its channels last, and the pool reads what the convolution stores, and
turns it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.index_expr import Expr, Guard, axes_of, axis
from weft.foundation.records import dataclass, replace
from weft.region.cost import kernel_seconds, kernel_work
from weft.region.fitting.cutting import placed, renamed
from weft.region.fitting.image_copies import Copy, copied
from weft.region.fitting.join_row_folds import users_of
from weft.region.fitting.joining import live, replaced
from weft.region.forms.planes import LINE, find_planes, used_share
from weft.region.ir import (
    AxisIndex,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Module,
    Pattern,
    Read,
    Reduce,
    Roles,
)
from weft.target.target import Target

_WORTH: Final = 1 << 22
"""Products of a convolution from which on matrix units pay."""


def join_pools(module: Module, target: Target) -> Module:
    """The module with pools in the convolutions of planes that they alone read the results of,
    where that takes less time."""
    if not target.has("wgmma"):
        return module
    for conv in module.kernels:
        pool = _only_reader(module, conv)
        kernel = None if pool is None else _at_windows(conv, pool)
        if pool is None or kernel is None:
            continue
        for copy in _filter_copies(module, kernel, conv.name):
            body = (copy.read if let.name == copy.read.name else let for let in kernel.body)
            whole = replace(kernel, body=tuple(body))
            if _pays(module, conv, pool, whole, copy, target):
                module = _with_both(module, conv, pool, whole, copy)
                break
    return module


def _only_reader(module: Module, conv: Kernel) -> Kernel | None:
    """The pool that alone reads what a convolution stores."""
    if conv.roles is None or conv.pattern is not Pattern.CONV or conv.params or conv.stages:
        return None
    if len(conv.outputs) != 1 or math.prod(conv.sizes.values()) < _WORTH:
        return None
    made = conv.outputs[0].tensor
    users = [kernel for kernel in users_of(module)[made] if kernel is not conv]
    if module.tensors[made].role != "internal" or len(users) != 1:
        return None
    (pool,) = users
    plain = pool.pattern is Pattern.ROW and not pool.params and not pool.stages
    return pool if plain and len(pool.outputs) == 1 else None


def _filter_copies(module: Module, kernel: Kernel, stem: str) -> list[Copy]:
    """Copies with the channels last of operands that could be filters."""
    roles, name = kernel.roles, f"{stem}_filters"
    assert roles is not None
    found = []
    for let in (kernel.let(roles.lhs), kernel.let(roles.rhs)):
        read = let.expr
        if not isinstance(read, Read) or read.guards or read.places or name in module.tensors:
            continue
        names = [e.single_axis.name for e in read.index if e.single_axis is not None]
        summed = [a for a in names if a in roles.k]
        if len(names) < len(read.index) or not summed:
            continue
        # Channels come before the taps in what programs are given.
        order = [*(a for a in names if a not in roles.k), *summed[1:], summed[0]]
        sizes = {a: kernel.sizes[a] for a in order}
        whole = sizes[summed[0]]
        sizes[summed[0]] = -(-whole // LINE) * LINE
        if sizes[summed[0]] > whole:
            read = replace(read, guards=(Guard(axis(summed[0]), whole),), fill=0.0)
        found.append(copied(name, let, read, sizes, tuple(map(axis, order))))
    return found


def _pays(
    module: Module, conv: Kernel, pool: Kernel, whole: Kernel, copy: Copy, target: Target
) -> bool:
    """Whether a kernel is a convolution of planes, and takes less time than the two and the copy of
    an image."""
    tensors = {**module.tensors, copy.tensor.name: copy.tensor}
    found = find_planes(whole, tensors)
    if found is None:
        return False
    image = whole.let(found.image).expr
    assert isinstance(image, Read)
    idle = 1 / used_share(whole, tensors, found) - 1
    multiplied = kernel_work(whole, tensors, target).matrix_seconds
    together = kernel_seconds(whole, tensors, target) + idle * multiplied
    apart = sum(kernel_seconds(kernel, module.tensors, target) for kernel in (conv, pool))
    turned = 2 * tensors[image.tensor].bytes / target.rates.bandwidth
    return together < apart + turned + target.rates.launch_seconds


def _with_both(module: Module, conv: Kernel, pool: Kernel, whole: Kernel, copy: Copy) -> Module:
    """The module with the joined kernel behind its filters in the place of the pool."""
    place = [k.name for k in module.kernels if k.name != conv.name].index(pool.name)
    joined = replaced(module, [conv, pool], whole, frozenset({conv.outputs[0].tensor}))
    kernels = (*joined.kernels[:place], copy.kernel, *joined.kernels[place:])
    origin = joined.origin | {copy.kernel.name: module.origin.get(conv.name, ())}
    tensors = {**joined.tensors, copy.tensor.name: copy.tensor}
    return replace(joined, kernels=kernels, tensors=tensors, origin=origin)


# -- one kernel ----------------------------------------------------------------------------------


def _at_windows(conv: Kernel, pool: Kernel) -> Kernel | None:
    """Both kernels as one: the convolution at every place that the pool reads."""
    (output,) = conv.outputs
    reads = [(let.name, let.expr) for let in pool.body if isinstance(let.expr, Read)]
    own = [(name, read) for name, read in reads if read.tensor == output.tensor]
    if len(own) != 1 or own[0][1].guards or own[0][1].places:
        return None
    ((name, read),) = own
    if any(isinstance(let.expr, AxisIndex) for let in (*conv.body, *pool.body)):
        return None
    places: dict[str, Expr] = {}
    for there, here in zip(output.index, read.index, strict=True):
        if there.single_axis is not None:
            places[there.single_axis.name] = here
    if {found.name for found in conv.axes if not found.reduce} != {*places}:
        return None
    return _Joining(conv, pool, name, places).kernel()


@dataclass(frozen=True)
class _Joining:
    """A convolution, and a pool that reads its results by one Let; `places` are where each of their
    axes is then."""

    conv: Kernel
    pool: Kernel
    read: str
    places: Mapping[str, Expr]

    def kernel(self) -> Kernel:
        body, axes = [*self.sums(), *self.windows()], (*self.pool.axes, *self.own_axes)
        outputs = tuple(
            replace(output, value=self.named(output.value), materialize=Materialize.DEFERRED)
            for output in self.pool.outputs
        )
        labels = {f"p0_{name}": label for name, label in self.conv.labels.items()}
        made = live(Kernel("", Pattern.CONV, axes, tuple(body), outputs, labels=labels))
        return replace(made, roles=self.roles([found.name for found in made.axes]))

    @property
    def own_axes(self) -> list[KernelAxis]:
        """Those that the convolution sums over, by names that the pool has not."""
        left = (found for found in self.conv.axes if found.name not in self.places)
        return [replace(found, name=f"{found.name}_of_sums") for found in left]

    def at(self, name: str) -> Expr:
        return self.places.get(name) or axis(f"{name}_of_sums")

    def along(self, names: tuple[str, ...], order: list[str]) -> tuple[str, ...]:
        """The axes of the whole for axes of the convolution."""
        used = {found for name in names for found in axes_of(self.at(name))}
        return tuple(name for name in order if name in used)

    def sums(self) -> list[Let]:
        order = [found.name for found in (*self.pool.axes, *self.own_axes)]
        names = {let.name: f"p0_{let.name}" for let in self.conv.body}
        moved = {found.name: self.at(found.name) for found in self.conv.axes}
        body = []
        for let in self.conv.body:
            expr = renamed(placed(let.expr, moved), names)
            if isinstance(expr, Reduce):
                own = tuple(f"{name}_of_sums" for name in expr.axes)
                expr = replace(expr, value=names[expr.value], axes=own)
            body.append(Let(names[let.name], let.dtype, self.along(let.axes, order), expr))
        return body

    def named(self, name: str) -> str:
        """A value of the pool."""
        return f"p0_{self.conv.outputs[0].value}" if name == self.read else f"p1_{name}"

    def windows(self) -> list[Let]:
        names = {let.name: self.named(let.name) for let in self.pool.body}
        body = []
        for let in self.pool.body:
            if let.name != self.read:
                expr = renamed(let.expr, names)
                if isinstance(expr, Reduce):
                    expr = replace(expr, value=names[expr.value])
                body.append(Let(names[let.name], let.dtype, let.axes, expr))
        return body

    def roles(self, order: list[str]) -> Roles:
        old = self.conv.roles
        assert old is not None
        batch, m, n, k = (self.along(names, order) for names in (old.batch, old.m, old.n, old.k))
        lets = (f"p0_{name}" for name in (old.contraction, old.lhs, old.rhs))
        return Roles(batch, m, n, k, *lets)
