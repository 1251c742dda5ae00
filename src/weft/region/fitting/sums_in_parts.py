"""Partial column sums: a row kernel that also sums its columns over blocks of rows, and the kernel
that adds these sums up.

    s[c] = sum over r of f[r, c]

      -->  t[p, c] = sum over the rows of part p;  s[c] = sum over p of t[p, c]

Where sums are over part of each row too, as those of the weights of a group norm are over all
places of a channel, the parts are pieces of rows: lanes of a warp have such a piece between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.foundation.index_expr import axis
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import computed_from, free_name, needed
from weft.region.fitting.joining import live
from weft.region.ir import Kernel, KernelAxis, Let, Output, Read, Reduce, Tensor
from weft.region.row_reads import PIECE, piece_sums
from weft.region.writing.axes import split_axis

Parts = tuple[Kernel, Kernel, tuple[Tensor, ...]]
"""The kernel with sums of parts, the one that adds them up, and what is between them."""


@dataclass(frozen=True)
class Cutting:
    """A kernel with an axis cut, the axes that number parts, and those that each is summed over."""

    kernel: Kernel
    parts: tuple[KernelAxis, ...]
    within: tuple[str, ...]
    inside: bool
    """Whether sums of a column lie side by side, part by part; otherwise those of a part do."""

    def place(self, axes: Sequence[str]) -> tuple[str, ...]:
        """The axes of sums that live over some."""
        names = tuple(found.name for found in self.parts)
        return (*axes, *names) if self.inside else (*names, *axes)


def parts_of_sums(
    known: Collection[str], whole: Kernel, sums: Sequence[Let], cutting: Cutting
) -> Parts:
    """The sums of a kernel in parts."""
    cut, names, taken = cutting.kernel, {let.name for let in sums}, set(known)
    sizes = {**whole.sizes, **{found.name: found.size for found in cutting.parts}}
    tensors: dict[str, Tensor] = {}
    for let in sums:
        name = free_name(f"{let.name}_parts", taken)
        taken.add(name)
        shape = tuple(sizes[found] for found in cutting.place(let.axes))
        tensors[let.name] = Tensor(name, let.dtype, shape)

    def partial(let: Let) -> Let:
        if let.name not in names or not isinstance(let.expr, Reduce):
            return let
        axes = tuple(name for name in cut.sizes if name in cutting.place(let.axes))
        return replace(let, axes=axes, expr=replace(let.expr, axes=cutting.within))

    behind = computed_from(whole, names)
    outputs = [output for output in cut.outputs if output.value not in behind]
    outputs += [
        Output(tensors[let.name].name, let.name, tuple(map(axis, cutting.place(let.axes))))
        for let in sums
    ]
    body = tuple(partial(let) for let in cut.body if let.name in names or let.name not in behind)
    first = live(replace(cut, body=body, outputs=tuple(outputs)))
    second = _sum_of_parts(whole, sums, tensors, cutting)
    return first, second, tuple(tensors.values())


def _sum_of_parts(
    whole: Kernel, sums: Sequence[Let], tensors: Mapping[str, Tensor], cutting: Cutting
) -> Kernel:
    """The kernel that adds up parts, and does what follows the sums."""
    names = {let.name for let in sums}
    behind = computed_from(whole, names)
    outputs = tuple(output for output in whole.outputs if output.value in behind)
    body: list[Let] = []
    along = tuple(found.name for found in cutting.parts)
    for let in sums:
        read = Let(
            free_name(f"{let.name}_part", whole.lets),
            let.dtype,
            (*let.axes, *along),
            Read(tensors[let.name].name, tuple(map(axis, cutting.place(let.axes)))),
        )
        body += [read, replace(let, expr=Reduce("sum", along, read.name))]
    wanted = needed((output.value for output in outputs), whole, names) - names
    body += [let for let in whole.body if let.name in wanted]
    own = [found for found in whole.axes if found.name not in along]
    return live(
        replace(whole, axes=(*own, *cutting.parts), body=tuple(body), outputs=outputs, labels={})
    )


def sums_of_pieces(whole: Kernel, tensors: Mapping[str, Tensor], row: set[str]) -> Parts | None:
    """The same where sums are over the last axes of rows and over some that rows lie along; None
    where they are not, or such axes are not made of pieces."""
    sums = [
        let for let in whole.body if isinstance(let.expr, Reduce) and not row >= {*let.expr.axes}
    ]
    over = {let.expr.axes for let in sums if isinstance(let.expr, Reduce)}
    if len(over) != 1:
        return None
    (every,) = over
    inner = [name for name in every if name in row]
    ordered = [name for name in whole.sizes if name in row]
    if not inner or len(inner) == len(ordered) or ordered[-len(inner) :] != inner:
        return None
    cutting = _cut_to_pieces(whole, [name for name in every if name not in row], inner)
    if cutting is None:
        return None
    made = parts_of_sums(tensors, whole, sums, cutting)
    return made if piece_sums(made[0]) == {let.name for let in sums} else None


def _cut_to_pieces(kernel: Kernel, beside: Sequence[str], inner: Sequence[str]) -> Cutting | None:
    """Sums over some axes `beside` those of rows and the `inner` ones of these, in pieces of rows;
    None where sizes do not allow it."""
    within, left = list[str](), PIECE
    for number in range(len(inner) - 1, -1, -1):
        name, size = inner[number], kernel.sizes[inner[number]]
        if size % left == 0 and size > left:
            names = (*beside, *inner[:number])
            outer = tuple(KernelAxis(found, kernel.sizes[found]) for found in names)
            parts = (*outer, KernelAxis(f"{name}_0", size // left))
            cut = split_axis(kernel, name, (size // left, left))
            return Cutting(cut, parts, (f"{name}_1", *within), inside=True)
        if left % size:
            return None
        within.insert(0, name)
        left //= size
    return None
