"""From the Lets of a kernel back to the Poly-View values that they compute.

Kernels that are alike share their code, so their Lets are counted from 0 in each. Which value a
Let is follows from where a kernel's results go: walking from a result to its operands, in the
kernel and in Poly-View at once, they are the same as long as they do the same. Where somebody
rewrote a kernel, or a fold took several steps together, the walk ends, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.poly_view.ir import BlockKind, PolyBlock, Scop
from weft.region.ir import Binary, Cast, Check, Kernel, Let, Module, Read, Reduce, Select, Unary

Pair = tuple[str, str]
"""A Let and a block, or an input, that may be the same."""


def values_inside(module: Module, scop: Scop) -> dict[str, dict[str, str]]:
    """For every kernel, its Lets with the blocks and inputs that they are, as far as is known."""
    owners = {name: name for name in (*scop.by_name, *scop.inputs)}
    owners.update((name, access.tensor) for name, access, _ in scop.outputs)
    return {kernel.name: _Walk(scop.by_name, owners).of(kernel) for kernel in module.kernels}


@dataclass
class _Walk:
    """One kernel and the view side by side."""

    blocks: Mapping[str, PolyBlock]
    owners: Mapping[str, str]
    """What every tensor holds."""
    found: dict[str, str] = field(default_factory=dict)

    def of(self, kernel: Kernel) -> dict[str, str]:
        for part in kernel.parts:
            lets = {let.name: let for let in part.body}
            for let in part.body:
                if isinstance(let.expr, Read) and let.expr.tensor in self.owners:
                    self.found[let.name] = self._source(self.owners[let.expr.tensor])
            known = [output for output in part.outputs if output.tensor in self.owners]
            self._from([(o.value, self.owners[o.tensor]) for o in known], lets)
        return self.found

    def _from(self, pairs: list[Pair], lets: Mapping[str, Let]) -> None:
        while pairs:
            name, source = pairs.pop()
            let, block = lets.get(name), self.blocks.get(self._source(source))
            if let is None or block is None or name in self.found:
                continue
            below = list(_matching_operands(let, block))
            if below or not block.accesses:
                self.found[name] = block.name
                pairs += below

    def _source(self, name: str) -> str:
        """What a movement moves, for that is what has a value."""
        while name in self.blocks and self.blocks[name].kind is BlockKind.MOVEMENT:
            name = self.blocks[name].accesses[0].tensor
        return name


def _matching_operands(let: Let, block: PolyBlock) -> Iterator[Pair]:
    """The operands of a Let and of a block that do the same, in pairs; none where they do not."""
    sources = [access.tensor for access in block.accesses]
    match let.expr:
        case Cast(x=x) if block.fn != "cast":
            yield x, block.name
        case Select(x=x) if block.fn != "where":
            yield x, block.name
        case Reduce(value=value) if block.kind is BlockKind.CONTRACTION:
            yield value, block.name
        case Binary(fn="mul", lhs=lhs, rhs=rhs) if block.kind is BlockKind.CONTRACTION:
            yield from zip((lhs, rhs), sources, strict=True)
        case Reduce(fn=fn, value=value) if block.kind is BlockKind.REDUCE and fn == block.fn:
            yield value, sources[0]
        case Unary(fn=fn, x=x) if fn == block.fn:
            yield x, sources[0]
        case Cast(x=x) | Check(x=x) if block.fn in ("cast", "check"):
            yield x, sources[0]
        case Binary(fn=fn, lhs=lhs, rhs=rhs) if fn == block.fn and len(sources) == 2:
            yield from zip((lhs, rhs), sources, strict=True)
        case Select(pred=pred, x=x, y=y) if len(sources) == 3:
            yield from zip((pred, x, y), sources, strict=True)
