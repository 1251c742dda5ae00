"""The part of a tensor that one rank has, and the exchanges that turn it into another part.

A tensor is split along some of its axes, each over one or more axes of the mesh; ranks that differ
along no such axis have the same part. Where `pending` names axes of the mesh, the tensor is the sum
of what the ranks along them have. Taking a part of what a rank has costs nothing; everything else
is an exchange, with the user's line that it is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.foundation.dtypes import SI64
from weft.foundation.lines import Place
from weft.foundation.mesh import Mesh, Split
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.tape import Tape
from weft.ptir.term import Term

Axes: TypeAlias = tuple[str, ...]
"""Axes of a mesh, the first counting slowest."""
Layout: TypeAlias = tuple[Axes, ...]
"""For each axis of a tensor the axes of the mesh that it is split over."""

DEEPEST = 32
"""How far back a part is computed from parts of operands, and not cut out of the whole."""


@dataclass(frozen=True)
class Part:
    """What one rank has of a tensor."""

    term: Term
    layout: Layout
    pending: Axes = ()
    """The tensor is the sum over the ranks along these axes."""
    line: str = ""
    """The user's line that made a sum which is pending."""

    @property
    def is_whole(self) -> bool:
        return not any(self.layout) and not self.pending


def whole(term: Term) -> Part:
    """A tensor that all ranks have."""
    return Part(term, ((),) * term.rank)


def layout_of(mesh: Mesh, split: Split, rank: int) -> Layout:
    """How each axis of a tensor is split; axes of the mesh with one rank split nothing."""
    found = [mesh.names(split[d]) if d in split else () for d in range(rank)]
    return tuple(tuple(n for n in names if mesh.shape[n] > 1) for names in found)


def layout_text(layout: Layout) -> str:
    """`{0: 'data'}`, as users write it."""
    axes = ((d, names[0] if len(names) == 1 else names) for d, names in enumerate(layout) if names)
    return "{" + ", ".join(f"{d}: {names!r}" for d, names in axes) + "}"


class Exchanges:
    """Writes on a tape how parts become others."""

    def __init__(self, tape: Tape, mesh: Mesh) -> None:
        self.tape, self.mesh = tape, mesh
        self._made: dict[int, Instruction] = {}
        self._seen = 0

    def local(self, dims: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
        """The shape of a part of a tensor of this shape."""
        return tuple(n // self.count(axes) for n, axes in zip(dims, layout, strict=True))

    def count(self, axes: Axes) -> int:
        return self.mesh.size(axes) if axes else 1

    # -- what costs nothing ----------------------------------------------------------------------

    def cut(self, term: Term, wanted: Mapping[int, Axes], depth: int = 0) -> Term:
        """A rank's own part of what it has, along some axes. What is computed element by element is
        computed for the part alone."""
        if not wanted:
            return term
        made = self._maker(term)
        if made is None or depth > DEEPEST:
            return self._cut_out(term, wanted)
        operands = [self._term(operand) for operand in made.operands]
        if isinstance(made.op, BroadcastTo):
            return self._broadcast(term, operands[0], wanted, depth)
        if isinstance(made.op, Iota) and made.op.axis not in wanted:
            return term.counting(self._shape(term, wanted), made.op.axis, made.op.dtype)
        if made.op.elementwise and all(x.shape == term.shape for x in operands):
            parts = [self.cut(x, wanted, depth + 1) for x in operands]
            return self.tape.append(made.op, parts)
        return self._cut_out(term, wanted)

    def _maker(self, term: Term) -> Instruction | None:
        """The instruction that made a term."""
        # Only what was written since the last question: a look at the whole tape each time would
        # take a time that grows with its square.
        new = self.tape.body[self._seen :]
        self._made.update((i.id, i) for i in new)
        self._seen += len(new)
        operand = self.tape.operand(term)
        return self._made.get(operand.id) if isinstance(operand, Ref) else None

    def _term(self, operand: Operand) -> Term:
        if isinstance(operand, TensorLiteral):
            return self.tape.constant(operand)
        found = self.tape.value(operand.id)
        return found if isinstance(operand, Ref) else found[operand.index]

    def _shape(self, term: Term, wanted: Mapping[int, Axes]) -> tuple[int, ...]:
        dims = term.tensor.static_shape
        return self.local(dims, tuple(wanted.get(d, ()) for d in range(len(dims))))

    def _broadcast(self, term: Term, source: Term, wanted: Mapping[int, Axes], depth: int) -> Term:
        added = term.rank - source.rank
        inside = {d - added: a for d, a in wanted.items() if d >= added}
        # An axis that grows from 1 is cut by making it grow to less.
        kept = {d: a for d, a in inside.items() if source.shape[d] == term.shape[d + added]}
        return self.cut(source, kept, depth + 1).broadcast_to(self._shape(term, wanted))

    def _cut_out(self, term: Term, wanted: Mapping[int, Axes]) -> Term:
        sizes = self._shape(term, wanted)
        zero = self.tape.literal([0], SI64)
        starts = [zero] * term.rank
        for d, axes in wanted.items():
            place = self.tape.emit("mesh_rank", numbers=self.mesh.places(axes))
            starts[d] = (place * sizes[d]).reshape((1,))
        start = starts[0] if len(starts) == 1 else self.tape.emit("concat", *starts, axis=0)
        return term.dynamic_slice(start, sizes=sizes)

    # -- what ranks exchange ---------------------------------------------------------------------

    def settled(self, part: Part) -> Part:
        """The part with its sum made."""
        if not part.pending:
            return part
        return Part(self.reduced(part.term, part.pending, "sum", part.line), part.layout)

    def reduced(self, term: Term, axes: Axes, fn: str, line: str) -> Term:
        """A reduction over the ranks along some axes."""
        found: Term = term.all_reduce(**self.mesh.groups(axes), fn=fn, line=_show_line(line))
        return found

    def resharded(self, part: Part, wanted: Layout) -> Part:
        """The tensor split in another way."""
        part = self._reduce_scatter(part, wanted)
        part = self._exchange_axes(part, wanted)
        line = _show_line(self.tape.line)
        for d, (have, want) in enumerate(zip(part.layout, wanted, strict=True)):
            if have and have != want:
                groups = self.mesh.groups(have)
                term = part.term.all_gather(**groups, axis=d, line=line)
                part = replace(part, term=term, layout=_with(part.layout, d, ()))
        missing = {d: want for d, want in enumerate(wanted) if want and not part.layout[d]}
        return Part(self.cut(part.term, missing), wanted)

    def _reduce_scatter(self, part: Part, wanted: Layout) -> Part:
        """Without a pending sum; a rank that wants a part of it gets that part alone."""
        for d, want in enumerate(wanted):
            # All-reduce and a cut send each rank the whole; reduce-scatter sends it the part that
            # it keeps.
            if part.pending and part.pending == want and not part.layout[d]:
                groups = self.mesh.groups(want)
                term = part.term.reduce_scatter(
                    **groups, axis=d, fn="sum", line=_show_line(part.line)
                )
                return Part(term, _with(part.layout, d, want))
        return self.settled(part)

    def _exchange_axes(self, part: Part, wanted: Layout) -> Part:
        """Split along one axis of the tensor and not along another: parts of parts are sent."""
        pairs = list(enumerate(zip(part.layout, wanted, strict=True)))
        for d, (have, want) in pairs:
            for other, (had, wants) in pairs:
                # All-to-all sends each rank 1/n of what a gather would, and none has the whole on
                # the way.
                if have and not want and wants == have and not had:
                    term = part.term.all_to_all(
                        **self.mesh.groups(have),
                        split=other,
                        concat=d,
                        line=_show_line(self.tape.line),
                    )
                    turned = _with(_with(part.layout, d, ()), other, have)
                    return Part(term, turned)
        return part


def _show_line(line: str) -> str:
    """A user's line, with the layer that was called where it is known."""
    layer = line.layer if isinstance(line, Place) else ""
    return f"{line} ({layer})" if layer else str(line)


def _with(layout: Layout, d: int, axes: Axes) -> Layout:
    return (*layout[:d], axes, *layout[d + 1 :])
