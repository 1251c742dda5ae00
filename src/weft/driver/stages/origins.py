"""The origin of a step of a compiled program in the user's code: ops, lines, layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.driver.stages.compilation import Compilation
from weft.foundation.lines import Place
from weft.foundation.records import dataclass
from weft.ptir.ir import Program
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.movement import BroadcastTo
from weft.runtime.artifact import Enter, Step


@dataclass(frozen=True)
class Origin:
    """What a kernel, a copy or a call of the host comes from."""

    ops: tuple[str, ...] = ()
    """The ops it computes, in order."""
    places: tuple[str, ...] = ()
    """The lines that wrote them, the one that matters most first; nothing where none is known."""

    @property
    def line(self) -> str:
        """`gpt.py:31`, or nothing."""
        return str(self.places[0]) if self.places else ""

    @property
    def layer(self) -> str:
        """The layer of that line, as the model calls it: `blocks[3].attn`."""
        first = self.places[0] if self.places else ""
        return first.layer if isinstance(first, Place) else ""

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers of all these lines, in the order of the lines. A layer around another one of
        these is left out: what is inside says more."""
        found = dict.fromkeys(place.layer for place in self.places if isinstance(place, Place))
        inner = [each for each in found if each and not _surrounds_one(each, found)]
        return tuple(inner)

    @property
    def shared_layers(self) -> str:
        """The layer, and how many others there are: `blocks[0].mlp and 11 more`."""
        found = self.layers
        own = self.layer if self.layer in found or not found else found[0]
        return f"{own} and {len(found) - 1} more" if len(found) > 1 else own

    @property
    def op(self) -> str:
        """The ops in one line."""
        return " + ".join(self.ops[:4]) + (" + ..." if len(self.ops) > 4 else "")


def _surrounds_one(layer: str, layers: Iterable[str]) -> bool:
    return any(other.startswith((f"{layer}.", f"{layer}[")) for other in layers)


def kernel_origins(compilation: Compilation) -> dict[str, Origin]:
    """The origin of every kernel of one body, by name."""
    program = compilation.simple()
    ids = compilation["region"].origin
    return {kernel: origin_of(program, found) for kernel, found in ids.items()}


def origin_of(program: Program, ids: Sequence[int]) -> Origin:
    """The origin of some instructions of the main body of a program."""
    wanted, main = set(ids), program.main
    inside = [found for found in main.body if found.id in wanted]
    # What computes matters more than what copies a number along an axis, and products most of all.
    inside.sort(key=lambda i: (isinstance(i.op, BroadcastTo), not isinstance(i.op, DotGeneral)))
    lines = [program.locations.get((main.label, found.id), "") for found in inside]
    lines += [other for line in lines if isinstance(line, Place) for other in line.beside]
    telling = [found for found in inside if not isinstance(found.op, BroadcastTo)] or inside
    named = dict.fromkeys(found.op.mnemonic for found in telling)
    return Origin(tuple(named), tuple(dict.fromkeys(filter(None, lines))))


def step_origins(steps: Sequence[Step], compilation: Compilation) -> list[Origin]:
    """The origin of every step. Kernels of bodies may have the names of others: a step belongs to
    the body that was entered last, where that has a kernel of its name."""
    own = kernel_origins(compilation)
    bodies = [kernel_origins(body) for body in _bodies(compilation).values()]
    entered: Mapping[str, Origin] = own
    found = []
    for step in steps:
        if isinstance(step, Enter):
            entered = bodies[step.body - 1] if 0 < step.body <= len(bodies) else own
        name = step.label.partition(" ")[0]
        found.append(entered.get(name) or own.get(name) or Origin())
    return found


def _bodies(compilation: Compilation) -> dict[str, Compilation]:
    """One compilation of each region, in the order in which regions are numbered."""
    found: dict[str, Compilation] = {}
    for label, body in compilation.bodies.items():
        found.setdefault(label.removesuffix("_carried"), body)
    return found
