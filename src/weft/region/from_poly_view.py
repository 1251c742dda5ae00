"""From the blocks of Poly-View to kernels.

1. Every block and input gets the tensor it would be stored as. A program output that is a block as
   it stands *is* that block's tensor; any other output becomes a block that copies.
2. `fusion` chooses what is stored (`greedy`, or `exact`) and which stored blocks share a kernel
   (`merge`).
3. `writing` makes a kernel of each choice; opaque ops are carried whole, and results of one op
   are outputs of one kernel.
4. `fitting` joins, cuts or prepares kernels for the units of the machine; on a CPU, kernels that
   one other reads become stages of it.
5. `forms` says what each kernel is, for the stages after this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from weft.foundation.dims import static
from weft.foundation.dtypes import UI8, DType
from weft.foundation.index_expr import axis, linear
from weft.foundation.records import replace
from weft.poly_view.ir import Access, BlockKind, IterAxis, PolyBlock, Scop
from weft.region.cost import kernel_seconds
from weft.region.fitting.drawn_apart import with_drawn_apart
from weft.region.fitting.elements_behind import with_elements_behind
from weft.region.fitting.fit import fit
from weft.region.fitting.join_attention import join_attention
from weft.region.fitting.join_codes import join_codes
from weft.region.fitting.join_column_sums import join_column_sums
from weft.region.fitting.join_pools import join_pools
from weft.region.fitting.join_product_sums import join_product_sums
from weft.region.fitting.join_row_folds import join_row_folds
from weft.region.fitting.join_stages import join_stages, may_have_stages
from weft.region.fitting.join_streams import join_streams
from weft.region.forms.find import with_forms
from weft.region.fusion.greedy import Fusion
from weft.region.fusion.merge import (
    Group,
    dependencies,
    fuse_greedily,
    fuse_nothing,
    merge_groups,
)
from weft.region.fusion.stages import MOST_STAGES, Search
from weft.region.fusion.windows import windows_of
from weft.region.ir import Chain, Kernel, Module, OpaqueCall, Output, Pattern, Tensor, row_major
from weft.region.writing.emit import Root, Source, View, makes_up
from weft.region.writing.folds import in_one_pass
from weft.region.writing.layouts import Layout, contraction_layouts, with_channels_last
from weft.region.writing.reading_order import with_products_as_read
from weft.region.writing.repeated_sums import with_single_sums
from weft.region.writing.spread_factors import with_spread_factors
from weft.target.target import Kind, Target
from weft.tiny.ir import Graph

APART: Final = "if nothing is computed twice"
"""What the choice is called that stores what is read at several places, or keeps it in stages."""
_WORTH: Final = 0.1
"""Of the time of all kernels, what those take that compute something at several places."""
Fuse: TypeAlias = Callable[[Fusion], list[Group]]
"""How blocks are put into kernels: a choice, and the roots of every kernel in order."""


def lower_scop(
    scop: Scop,
    graph: Graph,
    target: Target,
    roles: Mapping[str, str] | None = None,
    fuse: Fuse = fuse_greedily,
) -> Module:
    """The kernels of a program for a target. `roles` says what each input is: input (the default),
    param or state."""
    found: dict[str, Module] = {}
    scop = with_single_sums(with_spread_factors(scop, target), target)
    scop = with_products_as_read(with_channels_last(scop, target), target)
    lowering = _Lowering(scop, graph, target, roles or {}, fuse)
    for what, module in lowering.run():
        joined = module
        if fuse is not fuse_nothing:
            pooled = join_pools(module, target)
            joined = join_column_sums(join_product_sums(pooled, target), target)
        fitted = fit(joined, target)
        if fuse is not fuse_nothing:
            fitted = with_elements_behind(join_row_folds(fitted, target), target)
        on_gpu = target.kind is Kind.GPU
        if fuse is not fuse_nothing and (what == APART or not on_gpu):
            fitted = join_stages(fitted, target)
        # A GPU computes what it does not keep in registers sooner than it fetches it.
        if what != APART or not on_gpu or any(kernel.stages for kernel in fitted.kernels):
            found[what] = fitted
    if APART in found and fuse is not fuse_greedily:
        found |= lowering.searched()
    return with_forms(_cheapest(found, target))


def _cheapest(choices: Mapping[str, Module], target: Target) -> Module:
    """The choice that takes the least time; of several, with a note on the others."""
    if len(choices) == 1:
        return next(iter(choices.values()))
    times = {
        what: 1e6 * sum(kernel_seconds(kernel, module.tensors, target) for kernel in module.kernels)
        for what, module in choices.items()
    }
    module = choices[min(times, key=times.__getitem__)]
    shown = ", ".join(f"{time:.1f} µs {what}" for what, time in times.items())
    return replace(module, notes=(f"all kernels take {shown}", *module.notes))


@dataclass
class _Lowering:
    scop: Scop
    graph: Graph
    target: Target
    roles: Mapping[str, str]
    fuse: Fuse
    blocks: dict[str, PolyBlock] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    must: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    """Names of tensors that are given away."""
    apart: Fusion | None = None
    """The choice that computes nothing twice, where it was made."""

    def __post_init__(self) -> None:
        self.blocks = dict(self.scop.by_name)
        self.view = View.of(self.scop, self.blocks, self.sources)
        self.readers: dict[str, list[BlockKind]] = {}
        for edge in self.scop.edges:
            self.readers.setdefault(edge.source, []).append(self.blocks[edge.to].kind)

    def run(self) -> Iterator[tuple[str, Module]]:
        """The choices to choose from, and what they are called."""
        self._inputs()
        fixed = set(self.sources) | self._shaped_blocks() | self._streamed_blocks()
        layouts = contraction_layouts(self.blocks, fixed)
        self._outputs(layouts)
        self._note_stored()
        for name, block in self.blocks.items():
            if name not in self.sources:
                self._source(name, block, layouts.get(name))
        # Poly-View has blocks after what they read; copies of outputs come last.
        chains = [chain for chain in self.scop.chains if chain.kind != "stream"]
        joined = frozenset(name for chain in chains for name in chain.blocks)
        fusion = Fusion(self.view, self.target, list(self.blocks), self.must, joined)
        module = self._choose_kernels(fusion, self.fuse)
        yield "as chosen", module
        if self.fuse is fuse_nothing:
            return
        if self.fuse is not fuse_greedily:
            # No dearer than greedy also once kernels fit the machine and have stages.
            fusion = fusion.afresh()
            yield "by greedy's choice", self._choose_kernels(fusion, fuse_greedily)
        if self._repeats(fusion, module):
            self.apart = fusion.afresh(one_place=True)
            yield APART, self._choose_kernels(self.apart, fuse_greedily)

    def searched(self) -> dict[str, Module]:
        """What comes of trying other answers about the blocks around stages."""
        if self.apart is None:
            return {}
        search = Search(self.apart, self._with_stages)
        found = search.run(list(windows_of(self.apart)))
        if found is None:
            return {}
        return {"with stages chosen": replace(found, notes=(*found.notes, str(search)))}

    def _with_stages(self, fusion: Fusion) -> Module:
        module = fit(self._choose_kernels(fusion, merge_groups), self.target)
        return join_stages(module, self.target, MOST_STAGES)

    def _repeats(self, fusion: Fusion, module: Module) -> bool:
        """Whether kernels compute something at several places; on a GPU, whether they, and those
        that read there what could be a stage, take so much of the time that it is worth choosing
        all kernels again."""
        if self.target.kind is not Kind.GPU:
            return any(True for _ in fusion.repeating())
        roots = {self.sources[name].tensor.name for name in fusion.repeating()}
        again = [kernel for kernel in module.kernels if may_have_stages(module, kernel)]
        if not (roots or again):
            return False
        times = {k.name: kernel_seconds(k, module.tensors, self.target) for k in module.kernels}
        own = {k.name for k in module.kernels if roots & {o.tensor for o in k.outputs}}
        return sum(times[name] for name in own | {kernel.name for kernel in again}) >= _WORTH * sum(
            times.values()
        )

    def _choose_kernels(self, fusion: Fusion, fuse: Fuse) -> Module:
        module = self._module(fusion, fuse(fusion))
        if self.target.kind is Kind.GPU and self.target.streams_attention:
            module = join_streams(module)
        if self.target.streams_attention:
            module = join_attention(module, self.target)
        if self.target.kind is not Kind.GPU:
            return module
        return with_drawn_apart(join_codes(module, self.target), self.target)

    # -- tensors ---------------------------------------------------------------------------------

    def _inputs(self) -> None:
        for name, (dtype, atoms) in self.scop.inputs.items():
            role = "constant" if name in self.graph.constants else self.roles.get(name, "input")
            shape = self.scop.shapes.get(name, atoms)
            self.sources[name] = Source(Tensor(name, dtype, shape, role), atoms)
            self.taken.add(name)

    def _source(self, name: str, block: PolyBlock, layout: Layout | None) -> None:
        whole = self.scop.shapes.get(name) or _stored_shape(block)
        shape = whole if layout is None else layout.shape(block)
        tensor = Tensor(self._free_name(name), block.dtype, shape, "internal")
        self.sources[name] = Source(tensor, block.shape, layout.order if layout else None)

    def _streamed_blocks(self) -> set[str]:
        """What streams read: they go through rows as they lie, also where query heads that share
        keys make their columns axes that do not follow one another."""
        if self.target.kind is not Kind.GPU or not self.target.streams_attention:
            return set()
        chains = (chain for chain in self.scop.chains if chain.kind == "stream")
        members = [self.blocks[name] for chain in chains for name in chain.blocks]
        return {access.tensor for block in members for access in block.accesses}

    def _shaped_blocks(self) -> set[str]:
        """Blocks whose tensors have to lie as they are: of ops that are carried whole, of updates,
        and of their operands."""
        whole = (BlockKind.OPAQUE, BlockKind.UPDATE)
        found = {name for name, block in self.blocks.items() if block.kind in whole}
        for name in tuple(found):
            found.update(access.tensor for access in self.blocks[name].accesses)
            found |= dependencies(self.view, name)
        return found

    def _free_name(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def _outputs(self, layouts: Mapping[str, Layout]) -> None:
        """Outputs are the tensors of blocks, as they are or in the order that a contraction wants
        them in, or copies of blocks."""
        for name, access, axes in self.scop.outputs:
            shape = self.scop.shapes.get(name, tuple(a.size for a in axes))
            held, layout = self.blocks.get(access.tensor), layouts.get(access.tensor)
            order = None
            if held is not None and self._is_block(held, access, axes, shape, None):
                block, source = held, access.tensor
            elif held and layout and self._is_block(held, access, axes, shape, layout.order):
                block, source, order = held, access.tensor, layout.order
            else:
                source = self._copy_name(name)
                dtype = self._dtype(access.tensor)
                block = PolyBlock(source, BlockKind.MOVEMENT, axes, dtype, (access,), None)
                self.blocks[source] = block
            tensor = Tensor(self._free_name(name), block.dtype, shape, "output")
            self.sources[source] = Source(tensor, block.shape, order)
            self.outputs.append(tensor.name)
            self.must[source] = "it is an output"

    def _is_block(
        self,
        block: PolyBlock,
        access: Access,
        axes: tuple[IterAxis, ...],
        shape: tuple[int, ...],
        order: tuple[int, ...] | None,
    ) -> bool:
        """Whether an output can be the tensor of a block, with its atoms in an order: no other
        output is, its elements lie the same way, and no op that is carried whole wants them under
        another shape."""
        if block.name in self.sources or not _is_block_as_stored(access, axes, block, order):
            return False
        if BlockKind.OPAQUE in (block.kind, *self.readers.get(block.name, ())):
            return order is None and shape == _stored_shape(block)
        return makes_up(shape, [block.shape[k] for k in order] if order else block.shape)

    def _copy_name(self, name: str) -> str:
        while name in self.blocks or name in self.sources:
            name += "_"
        return name

    def _dtype(self, name: str) -> DType:
        return self.blocks[name].dtype if name in self.blocks else self.scop.inputs[name][0]

    def _note_stored(self) -> None:
        """Note every block that has to be in memory, and why."""
        for name, block in self.blocks.items():
            if block.kind is BlockKind.OPAQUE:
                self.must.setdefault(name, "its op is carried whole")
            if block.kind is BlockKind.UPDATE:
                self.must.setdefault(name, "it is a window of another tensor")
            why = _WHOLE.get(block.kind)
            if why is not None:
                for access in block.accesses:
                    if access.tensor in self.blocks:
                        self.must.setdefault(access.tensor, why)
            for access in block.accesses:
                if access.tensor in block.after and access.tensor in self.blocks:
                    self.must.setdefault(access.tensor, "what reads it waits for it")
            for source in dependencies(self.view, name):
                if source in self.blocks:
                    self.must.setdefault(source, "an index or an update needs it in memory")

    # -- kernels ---------------------------------------------------------------------------------

    def _module(self, fusion: Fusion, groups: Sequence[tuple[Root, ...]]) -> Module:
        kernels: list[Kernel] = []
        computed: dict[str, tuple[str, ...]] = {}
        stops: dict[str, str] = {}
        done: set[object] = set()
        for group in groups:
            block = self.blocks[group[0].block]
            if block.kind is BlockKind.OPAQUE:
                key = _call_key(block)
                if key in done:
                    continue
                done.add(key)
                kernel, names = self._opaque(block, len(kernels))
            else:
                kernel, names = self._kernel(fusion, group, len(kernels))
                whys = [fusion.refusals[r.block] for r in group if r.block in fusion.refusals]
                if kernel.roles is not None and whys:
                    stops[kernel.name] = whys[0]
            kernels.append(kernel)
            computed[kernel.name] = names
        used = {name for kernel in kernels for name in kernel.buffers}
        tensors = {
            source.tensor.name: source.tensor
            for source in self.sources.values()
            if source.tensor.name in used or source.tensor.role != "internal"
        }
        return Module(
            tensors,
            tuple(kernels),
            tuple(self.scop.inputs),
            tuple(self.outputs),
            {kernel: self._origin(names) for kernel, names in computed.items()},
            self._chains(kernels, computed),
            tuple(fusion.notes),
            stops,
            {name: fusion.why_stored(name) for name in fusion.stored},
            tuple(fusion.weighed.values()),
        )

    def _chains(
        self, kernels: Sequence[Kernel], computed: Mapping[str, tuple[str, ...]]
    ) -> tuple[Chain, ...]:
        """The chains of Poly-View as the kernels that compute them: those of its ends, and those
        that store blocks of it for them. Others may compute some of it again for themselves."""
        found = []
        moved = [
            (kernel.name, {o.tensor for o in kernel.outputs}, kernel.inputs)
            for kernel in reversed(kernels)
        ]
        for chain in self.scop.chains:
            held = self._chain_kernels(chain.blocks, moved, computed)
            found.append(Chain(chain.kind, tuple(name for name in computed if name in held)))
        return tuple(found)

    def _chain_kernels(
        self,
        blocks: Collection[str],
        moved: Sequence[tuple[str, set[str], Sequence[str]]],
        computed: Mapping[str, tuple[str, ...]],
    ) -> set[str]:
        """Those of one chain; `moved` is what kernels store and read, the last kernel first."""
        read = {access.tensor for name in blocks for access in self.blocks[name].accesses}
        ends = set(blocks) - read
        held = {kernel for kernel, names in computed.items() if not ends.isdisjoint(names)}
        between = {self.sources[name].tensor.name for name in blocks if name in self.sources}
        wanted = {tensor for name, _, inputs in moved if name in held for tensor in inputs}
        for name, outputs, inputs in moved:
            if not wanted.isdisjoint(outputs & between):
                held.add(name)
                wanted.update(inputs)
        return held

    def _kernel(
        self, fusion: Fusion, group: tuple[Root, ...], number: int
    ) -> tuple[Kernel, tuple[str, ...]]:
        kernel = in_one_pass(fusion.finished(group), fusion.tensors, self.target.row_bytes)
        names = fusion.members(group) | {root.block for root in group}
        return replace(kernel, name=f"{kernel.pattern.value}{number}"), tuple(names)

    def _opaque(self, block: PolyBlock, number: int) -> tuple[Kernel, tuple[str, ...]]:
        alike = [
            other
            for other in self.blocks.values()
            if other.kind is BlockKind.OPAQUE and _call_key(other) == _call_key(block)
        ]
        value = block.value
        inputs = tuple(self.sources[a.tensor].tensor.name for a in block.accesses)
        results = [other.value.result for other in alike]
        outputs = [self._result(other, inputs) for other in alike]
        if value.workspace:
            results.append(-1)
            outputs.append(Output(self._workspace(block, value.workspace), "", ()))
        call = OpaqueCall(value.op, inputs, tuple(results), value.pairs)
        kernel = Kernel(f"opaque{number}", Pattern.OPAQUE, (), (), tuple(outputs), opaque=call)
        return kernel, tuple(other.name for other in alike)

    def _result(self, block: PolyBlock, inputs: Sequence[str]) -> Output:
        base = block.value.base
        name = self.sources[block.name].tensor.name
        return Output(name, "", (), None if base is None else inputs[base])

    def _workspace(self, block: PolyBlock, size: int) -> str:
        """Memory that only one kernel uses, as a tensor."""
        tensor = Tensor(self._free_name(f"{block.name}_workspace"), UI8, (size,))
        self.sources[tensor.name] = Source(tensor, (size,))
        return tensor.name

    def _origin(self, names: Sequence[str]) -> tuple[int, ...]:
        values = [self.blocks[name].value for name in names if self.blocks[name].value is not None]
        ids = [found for value in values for found in self.graph.origin.get(value, ())]
        return tuple(sorted(set(ids)))


_WHOLE = {
    BlockKind.OPAQUE: "an op that is carried whole reads it",
    BlockKind.CONTRACTION: "a contraction reads it",
}


def _call_key(block: PolyBlock) -> tuple[int, int, tuple[str, ...], tuple[str, ...]]:
    """What makes results those of one op: the op itself, where it stands, what it is given, and
    what it waits for."""
    value = block.value
    given = tuple(access.tensor for access in block.accesses)
    return id(value.op), value.site, given, block.after


def _stored_shape(block: PolyBlock) -> tuple[int, ...]:
    """The shape a block is stored with: that of its value, where the atoms make it up."""
    sizes = tuple(static(size) for size in block.value.shape)
    return sizes if makes_up(sizes, block.shape) else block.shape


def _is_block_as_stored(
    access: Access,
    axes: tuple[IterAxis, ...],
    block: PolyBlock,
    order: tuple[int, ...] | None,
) -> bool:
    """Whether an output is a block as it lies in memory, with its atoms in an order."""
    if access.guards or access.widen is not None:
        return False
    shape = tuple(found.size for found in axes)
    if math.prod(shape) != math.prod(block.shape):
        return False
    own = linear([axis(found.name) for found in axes], row_major(shape))
    places = order or tuple(range(len(block.shape)))
    sizes = tuple(block.shape[k] for k in places)
    return own is linear([access.map[k] for k in places], row_major(sizes))
