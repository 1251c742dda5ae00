"""The kernels of a module in the dialect: first which of them are one, then each of these.

Processes that make kernels ahead of the stages load this module and no more of a compiler than it
needs: nothing here knows programs, artifacts or machine code.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from weft.codegen.gpu import ir
from weft.codegen.gpu.dependent_launch import BOTH, Neighbours, chained
from weft.codegen.gpu.ir.module import GpuModule, Launch
from weft.codegen.gpu.maps import together
from weft.codegen.gpu.products import grouped, outer
from weft.codegen.gpu.template import Job
from weft.codegen.gpu.templates import accepts, build_accepted
from weft.codegen.gpu.whole import templates as whole
from weft.driver.artifact.kernel_facts import kernel_key
from weft.driver.code import gpu_together
from weft.driver.code.plans import Built
from weft.foundation.errors import SpecViolation
from weft.foundation.grouped_rows import GroupedTiles, OuterTiles
from weft.foundation.whole_ops import WholeOp
from weft.memory.ir import BufferMap, MemRef, lie_alike
from weft.plan.ir import REFUSED, Plan, PlanSet
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.target.target import Target

Tell: TypeAlias = Callable[[ir.Kernel, bool], object]
"""Who is told of each kernel when it is made, and whether it has others before and behind it."""


class Lowering:
    """The kernels of a module: first which of them are one, then each of these."""

    def __init__(
        self,
        module: Module,
        buffer_map: BufferMap,
        target: Target,
        is_settled: Callable[[MemRef], bool] | None = None,
    ) -> None:
        self.module, self.buffer_map, self.target = module, buffer_map, target
        self.code = GpuModule()
        self._is_settled = is_settled or gpu_together.settled_test(module, buffer_map)
        self._symbols: dict[str, str] = {}
        """The dialect kernel of every kernel, in the order of the program."""
        self._makers: dict[str, tuple[Kernel, Callable[[str], ir.Kernel]]] = {}
        """How each of them is made, and the first kernel that it is for."""
        self._built: Collection[str] = ()
        """Kernels that were made when their plans were chosen."""
        self._sets: dict[str, int] = {}
        """How many kernels a launch of a dialect kernel carries out, where it is several."""
        self._taken: set[Hashable] = set()
        """Structures, and how their tensors lie, of which a template carries out the plan."""

    def by_template(self, kernel: Kernel, plans: PlanSet, is_given: bool) -> None:
        """A kernel by its plan; what no template carries out is the host's."""
        tensors, target, plan = self.module.tensors, self.target, plans.of(kernel.name)
        refs = self.buffer_map.refs_of(buffers(kernel))
        asked = plans.kernels[kernel.name], lie_alike(refs.values())
        findings = [] if asked in self._taken else accepts(kernel, tensors, refs, plan, target)
        if not findings:
            self._taken.add(asked)
            job, self._built = Job(kernel, tensors, refs, plan, target), plans.built
            self._add(kernel, plan, lambda name: self._make_kernel(job, plans.built, name))
        elif is_given:
            raise SpecViolation.of([replace(found, code=REFUSED) for found in findings])
        else:
            self.code.hosted[kernel.name] = findings[0].why

    def inside(self, kernels: Sequence[Kernel], plan: Plan, built: Built) -> Iterator[ir.Kernel]:
        """The distinct ones of some kernels by a plan that suits them, where they have others
        before and behind them."""
        for kernel in kernels:
            refs = self.buffer_map.refs_of(buffers(kernel))
            job = Job(kernel, self.module.tensors, refs, plan, self.target)
            make = partial(self._make_kernel, job, built)
            symbol = self._add(kernel, plan, make)
            if self._makers[symbol][1] is make:
                yield self._finish_kernel(symbol, BOTH)[0]

    def _make_kernel(self, job: Job[Plan], built: Built, name: str) -> ir.Kernel:
        """The kernel of a job, made here unless it was made by this plan already."""
        known = built.get(job.kernel.name)
        if known is None or known[0] != job.plan:
            known = built[job.kernel.name] = job.plan, build_accepted(job, name)
        made: ir.Kernel = known[1]
        return replace(made, name=name)

    def whole(self, kernel: Kernel, op: WholeOp) -> None:
        """The kernel of an op that stays whole; what has none is the host's."""
        tensors, target = self.module.tensors, self.target
        if isinstance(op, GroupedTiles):
            if not grouped.PRODUCT.accepts(op, kernel, tensors, target):
                make = partial(grouped.PRODUCT.build, op, kernel, tensors, target)
                self._add(kernel, None, make)
        elif isinstance(op, OuterTiles):
            if not outer.PRODUCT.accepts(op, kernel, tensors, target):
                self._add(kernel, None, partial(outer.PRODUCT.build, op, kernel, tensors, target))
        elif not whole.accepts(op, kernel, tensors):
            self._add(kernel, None, lambda name: whole.build(op, kernel, tensors, target, name))

    def _add(self, kernel: Kernel, plan: Plan | None, make: Callable[[str], ir.Kernel]) -> str:
        refs = self.buffer_map.refs_of(buffers(kernel))
        shared, settled = (
            gpu_together.shared_buffers(refs.values()),
            [self._is_settled(ref) for ref in refs.values()],
        )
        key = kernel_key(kernel, self.module.tensors, refs, plan, shared, repr(settled))
        symbol = self._symbols[kernel.name] = "k_" + key[:16]
        self._makers.setdefault(symbol, (kernel, make))
        return symbol

    def join_launches(self, plans: PlanSet) -> None:
        """Let one launch carry out kernels of one text that have one plan."""
        texts = gpu_together.alike(self.module, self.buffer_map)
        known = {k.name: plans.of(k.name) for kernels in texts for k in kernels}
        own = {name: plan for name, plan in known.items() if name in self._symbols}
        for plan, kernels in gpu_together.launches(texts, own):
            first, lengths = kernels[0], gpu_together.lengths_of(kernels)
            refs = self.buffer_map.refs_of(buffers(first))
            job = Job(first, self.module.tensors, refs, plan, self.target)
            parts = [self._symbols[kernel.name] for kernel in kernels]
            symbol = "k_" + hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
            self._symbols.update((kernel.name, symbol) for kernel in kernels)
            self._makers[symbol] = first, partial(together.build, job, lengths)
            self._sets[symbol] = len(kernels)
        used = set(self._symbols.values())
        self._makers = {symbol: how for symbol, how in self._makers.items() if symbol in used}

    def _launch_order(self) -> Iterator[str]:
        """The dialect kernels in the order in which they are launched."""
        counts = Counter[str]()
        for symbol in self._symbols.values():
            counts[symbol] += 1
            if counts[symbol] % self._sets.get(symbol, 1) == 0:
                yield symbol

    def _finish_kernel(self, symbol: str, near: Neighbours) -> tuple[ir.Kernel, tuple[int, ...]]:
        """A kernel, and which tensors it takes."""
        kernel, make = self._makers[symbol]
        built, names = make(symbol), buffers(kernel)
        refs = self.buffer_map.refs_of(names)
        places = (n for n, name in enumerate(built.buffers) if self._is_settled(refs[name]))
        done = chained(built, self.target, frozenset(places), near)
        return done, tuple(names.index(name) for name in built.buffers)

    def make(self, *, is_part: bool, tell: Tell | None) -> None:
        """The kernels, which start while those before them end. What comes first anywhere and last
        anywhere, as the only kernel of a program does, has nobody to wait for or to admit; kernels
        that are part of a program have others before and behind them."""
        symbols = list(self._launch_order())
        behind, ahead = set(symbols[1:]), set(symbols[:-1])
        made: dict[str, tuple[ir.Kernel, tuple[int, ...]]] = {}
        # Those that are to be made, the products among them, take the compiler longest: they come
        # before those that are there already.
        for symbol in sorted(self._makers, key=lambda s: self._makers[s][0].name in self._built):
            near = Neighbours(is_part or symbol in behind, is_part or symbol in ahead)
            made[symbol] = self._finish_kernel(symbol, near)
            if tell is not None:
                tell(made[symbol][0], near == BOTH)
        self.code.kernels.update((symbol, made[symbol][0]) for symbol in self._makers)
        for name, symbol in self._symbols.items():
            self.code.launches[name] = Launch(symbol, made[symbol][1])
