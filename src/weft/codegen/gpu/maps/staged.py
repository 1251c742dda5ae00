"""The common part of elementwise kernels that pass operands through shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Generic, Protocol, TypeVar

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.scopes import Scope
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.maps.map import Elementwise
from weft.plan.ir import MapPlan
from weft.region.ir import Kernel, Let
from weft.target.target import Target


class Layout(Protocol):
    """How the part of an operand that a block needs lies in shared memory."""

    bytes: int


L = TypeVar("L", bound=Layout)


class Staged(Elementwise, Generic[L]):
    """Blocks of threads that lay their parts of some operands, the staged ones, or of what is made
    of them, into tiles of shared memory first."""

    def __init__(
        self,
        kernel: Kernel,
        refs: Refs,
        plan: MapPlan,
        staged: Sequence[tuple[Let, L]],
        sizes: Mapping[str, int],
        target: Target,
    ) -> None:
        super().__init__(kernel, refs, target)
        self.plan, self.sizes = plan, sizes
        self.staged = {let.name: let for let, _ in staged}
        self.layouts = {let.name: layout for let, layout in staged}
        self.tile_of = {name: f"block{number}" for number, name in enumerate(self.staged)}
        self.loading = True
        """Whether staged operands still come from memory."""
        start = 0
        for name, layout in self.layouts.items():
            self.tiles.append(ir.SharedTile(self.tile_of[name], start, layout.bytes))
            start += layout.bytes

    @property
    def grid(self) -> int:
        return prod(self.sizes.values())

    @property
    def threads(self) -> int:
        return self.plan.threads

    def value(self, name: str, scope: Scope) -> str:
        """What was staged comes from shared memory."""
        if self.loading or name not in self.staged:
            return super().value(name, scope)
        let = self.staged[name]
        home = self.home(let.axes, scope)
        if name not in home.made:
            home.made[name] = self.fresh()
            home.body.append(self.taken(home.made[name], let, home))
        return home.made[name]

    def taken(self, name: str, let: Let, home: Scope) -> ir.Stmt:
        """The element of what is staged at a point, out of its tile."""
        raise NotImplementedError
