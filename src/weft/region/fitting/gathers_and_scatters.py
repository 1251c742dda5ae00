"""Kernels with data-dependent addresses: gathers, reductions over gathered rows, and scatters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import F32, SI32, SI64
from weft.foundation.index_expr import axes_of, axis, params_of, substitute
from weft.foundation.radix_sort import UpdatesMoved, UpperDigits
from weft.foundation.records import replace
from weft.foundation.whole_ops import Scatter
from weft.region.fitting.whole_ops import Parts, adds_up_wide, is_worth_sorting
from weft.region.ir import (
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
)

_MOST: Final = 64
"""Elements that are picked together: so many lines of the result are written side by side."""
_WORTH: Final = 1 << 12
"""Elements of a copy from which its order matters: fewer stay in the nearest cache."""
_MOST_UPDATES: Final = 1 << 17
"""Of one scatter: its kernels take less time than their starts."""
_MOST_SCATTERS: Final = 32
"""Each is an operand and a result of one kernel."""


def with_near_gathers(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """The kernel, the axes last that pick from the last dimensions of what it reads, such as
    filters that are turned round: all that lies together is read together.

        for k, for i, for o:  t[i, k, o] = w[o, i, p[k]]    -->    for i, for o, for k: ...

    In the order in which elements are written, each pass over the picked elements reads one of
    those that lie side by side, with the whole tensor between two of them. What is picked from is
    small: the axes that decide it go last, and as many lines of the result are written side by
    side.
    """
    last = _axes_that_pick(kernel, tensors)
    names = list(kernel.sizes)
    if not last or names[-len(last) :] == last:
        return kernel
    order = [*(name for name in names if name not in last), *last]
    axes = tuple(sorted(kernel.axes, key=lambda each: order.index(each.name)))
    body = tuple(
        replace(let, axes=tuple(name for name in order if name in let.axes)) for let in kernel.body
    )
    return replace(kernel, axes=axes, body=body)


def _axes_that_pick(kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The axes that pick, in the order of the dimensions; none where the order does not matter."""
    if kernel.pattern is not Pattern.MAP or kernel.opaque is not None or kernel.stages:
        return []
    if math.prod(kernel.sizes.values()) < _WORTH:
        return []
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read) and let.expr.places]
    if len(reads) != 1 or len({let.name for let in kernel.body}) < len(kernel.body):
        return []
    read, shape = reads[0], tensors[reads[0].tensor].shape
    values = {place.param: place.value for place in read.places}
    picks = [dim for dim, expr in enumerate(read.index) if params_of(expr) & values.keys()]
    if not picks or picks != list(range(picks[0], len(shape))):
        return []
    found: list[str] = []
    for dim in picks:
        for param in params_of(read.index[dim]) & values.keys():
            found += [name for name in kernel.let(values[param]).axes if name not in found]
    before = {name for expr in read.index[: picks[0]] for name in axes_of(expr)}
    few = math.prod(kernel.sizes[name] for name in found) <= _MOST
    return found if few and not before & {*found} and math.prod(shape[picks[0] :]) <= _MOST else []


def with_sums_in_place(kernels: Sequence[Kernel], between: Mapping[str, Tensor]) -> list[Kernel]:
    """The kernels in the place of one other, with sums where they are picked from. Nobody else
    reads what is `between` them.

        t[m, c] = sum over part of s[part, m, c];  y[b, m, c] = f(t[8*b + m, 8*b + c])
            -->  y[b, m, c] = f(sum over part of s[part, 8*b + m, 8*b + c])

    The products of joined groups, and those that are put in order afterwards, are such sums: a
    launch less, and what is not picked is not added up.
    """
    made: list[Kernel] = []
    for number, kernel in enumerate(kernels):
        picked = None
        if made and not any(_is_read(made[-1], later) for later in kernels[number + 1 :]):
            picked = _pick_parts(made[-1], kernel, between)
        if picked is not None:
            made[-1] = picked
        else:
            made.append(kernel)
    return made


def _is_read(total: Kernel, later: Kernel) -> bool:
    return any(output.tensor in later.inputs for output in total.outputs)


def _pick_parts(total: Kernel, kernel: Kernel, between: Mapping[str, Tensor]) -> Kernel | None:
    """A map that reads sums by their parts; None where these are no sums, or it reads some of them
    again and again."""
    if len(total.body) != 2 or len(total.outputs) != 1 or total.params or kernel.stages:
        return None
    (first, last), (output,) = total.body, total.outputs
    read, summed = first.expr, last.expr
    if not isinstance(read, Read) or read.guards or read.places or not isinstance(summed, Reduce):
        return None
    plain = [expr.single_axis for expr in output.index]
    if output.value != last.name or output.base or None in plain or summed.fn != "sum":
        return None
    reads = [let for let in kernel.body if _reads_tensor(let, output.tensor)]
    if kernel.pattern is not Pattern.MAP or kernel.params or len(reads) != 1:
        return None
    if output.tensor not in between:
        return None
    (let,) = reads
    assert isinstance(let.expr, Read)
    points = math.prod(kernel.sizes.values())
    # Read more than once each, the sums would be made more than once each.
    if let.expr.guards or let.expr.places or points > math.prod(between[output.tensor].shape):
        return None
    if {*summed.axes} & {*kernel.sizes}:
        return None
    names = [found.name for found in plain if found is not None]
    if len({*names}) < len(names) or {*names} != {*last.axes}:
        return None
    moved = dict(zip(names, let.expr.index, strict=True))
    place = tuple(substitute(expr, moved) for expr in read.index)
    part = f"{let.name}_part"
    if any(found.name == part for found in kernel.body):
        return None
    parts = (
        Let(part, first.dtype, (*let.axes, *summed.axes), Read(read.tensor, place)),
        replace(let, expr=Reduce("sum", summed.axes, part)),
    )
    body = tuple(new for found in kernel.body for new in (parts if found is let else (found,)))
    gone = (KernelAxis(name, total.sizes[name], reduce=True) for name in summed.axes)
    return replace(kernel, pattern=Pattern.ROW, axes=(*kernel.axes, *gone), body=body)


def _reads_tensor(let: Let, tensor: str) -> bool:
    return isinstance(let.expr, Read) and let.expr.tensor == tensor


def sorted_together(module: Module) -> tuple[Module, dict[str, tuple[Kernel, ...]]]:
    """The module with places made early enough, and the scatters whose updates are sorted with
    those of each scatter: of several, all with the first and none with the others. The gradients of
    a recommender's tables are such scatters.

        a = scatter(x, i); ...; b = scatter(y, j)
            -->  sort(i, j); a = gather(x); ...; b = gather(y)

    Sorting a few thousand places is a dozen kernels that hardly take longer than their start, and
    of which each waits for the one before. Kernels that make places, and whatever they are made of,
    move in front of the first scatter.
    """
    order = _Order(module)
    groups: dict[object, list[list[int]]] = {}
    for number, kernel in enumerate(module.kernels):
        key = _likeness(kernel, module.tensors)
        if key is None:
            continue
        several = groups.setdefault(key, [])
        if not several or not order.may_join(number, several[-1]):
            several.append([])
        several[-1].append(number)
    found = [group for several in groups.values() for group in several if len(group) > 1]
    made: dict[str, tuple[Kernel, ...]] = {}
    for group in found:
        kernels = [module.kernels[number] for number in group]
        made |= {kernel.name: () for kernel in kernels} | {kernels[0].name: tuple(kernels)}
    return replace(module, kernels=order.with_places_first(found)), made


def _likeness(kernel: Kernel, tensors: Mapping[str, Tensor]) -> object:
    """What scatters must have in common; None for other kernels, and where sorting takes long."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, Scatter):
        return None
    op, (x, index, _) = call.op, (tensors[name] for name in call.inputs)
    if op.outer > 1 or (op.each and op.width > 1) or op.count > _MOST_UPDATES:
        return None
    return (op.rows, op.count, index.dtype) if is_worth_sorting(op, x) else None


class _Order:
    """Which kernels have to run before which."""

    def __init__(self, module: Module) -> None:
        self.kernels = module.kernels
        makers: dict[str, int] = {}
        self.before: list[frozenset[int]] = []
        for number, kernel in enumerate(module.kernels):
            bases = [output.base for output in kernel.outputs if output.base is not None]
            self.before.append(
                frozenset(makers[n] for n in (*kernel.inputs, *bases) if n in makers)
            )
            makers |= {output.tensor: number for output in kernel.outputs}
        self.makers = makers

    def places_of(self, number: int) -> set[int]:
        """The kernels that the places of a scatter are made by, and those before these."""
        call = self.kernels[number].opaque
        maker = self.makers.get(call.inputs[1]) if call is not None else None
        left = [] if maker is None else [maker]
        found = set(left)
        while left:
            fresh = self.before[left.pop()] - found
            found |= fresh
            left += fresh
        return found

    def may_join(self, number: int, group: list[int]) -> bool:
        """Whether the places of a scatter can be made before the first one of a group runs."""
        # What makes the places moves in front of the first scatter of the group: only what comes
        # behind that has to.
        late = {found for found in self.places_of(number) if found >= group[0]}
        maps = all(self.kernels[found].pattern is Pattern.MAP for found in late)
        return maps and len(group) < _MOST_SCATTERS

    def with_places_first(self, groups: list[list[int]]) -> tuple[Kernel, ...]:
        """The kernels with the places of every group made before its first scatter."""
        early: dict[int, set[int]] = {
            group[0]: set[int]().union(*map(self.places_of, group)) for group in groups
        }
        made: dict[int, None] = {}
        for number in range(len(self.kernels)):
            wanted = sorted(early.get(number, ()))
            made.update(dict.fromkeys((*wanted, number)))
        return tuple(self.kernels[number] for number in made)


def with_short_places(
    kernels: Sequence[Kernel], tensors: Mapping[str, Tensor]
) -> tuple[list[Kernel], dict[str, Tensor]]:
    """The kernels, and the tensors that change: places that maps make, and that only passes into
    bins read, have 32 bits.

        p[i] = check(x[i]);  sort(p)    -->    p[i] = si32(check(x[i]));  sort(p)

    Places are below a number of rows that has fewer bits: whoever makes them checks that. They are
    written once and read twice, and in 64 bits were more bytes than the updates and the result.
    """
    passes = {kernel.name: kernel.opaque for kernel in kernels if _sorts_into_bins(kernel)}
    read = {call.inputs[0] for call in passes.values() if call is not None}
    if not read:
        return list(kernels), {}
    read -= {name for kernel in kernels if kernel.name not in passes for name in kernel.inputs}
    maps = [kernel for kernel in kernels if kernel.pattern is Pattern.MAP and not kernel.stages]
    made = (tensors[output.tensor] for kernel in maps for output in kernel.outputs)
    short = {
        place.name: replace(place, dtype=SI32)
        for place in made
        if place.name in read and place.role == "internal" and place.dtype is SI64
    }
    return [_cast_outputs(kernel, short) for kernel in kernels], short


def _sorts_into_bins(kernel: Kernel) -> bool:
    return kernel.opaque is not None and isinstance(kernel.opaque.op, UpperDigits | UpdatesMoved)


def _cast_outputs(kernel: Kernel, short: Mapping[str, Tensor]) -> Kernel:
    """The kernel with its results that are `short` in their dtype."""
    found = {
        output.value: short[output.tensor] for output in kernel.outputs if output.tensor in short
    }
    if not found:
        return kernel
    casts = tuple(
        Let(f"{value}_short", place.dtype, kernel.let(value).axes, Cast(value))
        for value, place in found.items()
    )
    outputs = tuple(
        replace(output, value=f"{output.value}_short") if output.tensor in short else output
        for output in kernel.outputs
    )
    return replace(kernel, body=(*kernel.body, *casts), outputs=outputs)


def with_wide_sums(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Parts:
    """The kernels that take a kernel's place, and the tensors between them: a scatter that adds up
    narrow floats does so in f32, and its result is rounded once, as the op says. It is for machines
    whose scatters have one dtype throughout."""
    call = kernel.opaque
    if call is None or not isinstance(call.op, Scatter):
        return (kernel,), ()
    x, index, update = call.inputs
    if not adds_up_wide(call.op, tensors[x].dtype):
        return (kernel,), ()
    (output,) = kernel.outputs
    names = [f"{kernel.name}_{part}" for part in ("x", "updates", "sums")]
    shapes = [tensors[name].shape for name in (x, update, x)]
    made = [Tensor(name, F32, shape) for name, shape in zip(names, shapes, strict=True)]
    wide_x, wide_update, sums = made
    whole = replace(
        kernel,
        opaque=replace(call, inputs=(wide_x.name, index, wide_update.name)),
        outputs=(replace(output, tensor=sums.name, base=wide_x.name),),
    )
    rounded = _cast(
        f"{kernel.name}_rounded", sums, replace(tensors[output.tensor], shape=sums.shape)
    )
    widened = (
        _cast(f"{wide.name}_wide", tensors[name], wide)
        for name, wide in ((x, wide_x), (update, wide_update))
    )
    return (*widened, whole, rounded), tuple(made)


def _cast(name: str, source: Tensor, target: Tensor) -> Kernel:
    """A kernel that makes a tensor of another dtype of a tensor."""
    names = tuple(f"i{n}" for n in range(len(source.shape)))
    index = tuple(axis(found) for found in names)
    body = (
        Let("v0", source.dtype, names, Read(source.name, index)),
        Let("v1", target.dtype, names, Cast("v0")),
    )
    axes = tuple(KernelAxis(found, size) for found, size in zip(names, source.shape, strict=True))
    return Kernel(name, Pattern.MAP, axes, body, (Output(target.name, "v1", index),))
