"""Fusion of attention gradients: kernels that recompute the softmax weights block by block.

    s = kernel(q, k);  p, ds = kernel(s, lse, do, v)
    dq = kernel(ds, k);  dk = kernel(ds, q);  dv = kernel(p, do)
        ->  dq = kernel(q, k, lse, do, v);  dk, dv = kernel(q, k, lse, do, v)

What has both queries and keys never reaches memory: every result's kernel makes it anew, and
results that sum over the same axes share one. Numbers of single rows are made beforehand. What the
streams of one layer are, those of others like it are too, on other tensors.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.fitting.choices import with_known_choices
from weft.region.fitting.cutting import free_name, needed
from weft.region.fitting.joining import live, merged
from weft.region.forms.stream import StreamAxes, stream_axes
from weft.region.forms.warpgroups import stream_suits_warpgroups
from weft.region.ir import (
    Binary,
    Chain,
    Const,
    Kernel,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    operands,
)
from weft.region.structure import buffers, on_tensors, without_tensors

_STATE: Final = 16
"""Elements of a tensor that is no more than the state of a random stream."""


def join_streams(module: Module) -> Module:
    """The module with every stream as kernels of its own, where that is possible."""
    known: dict[Hashable, _Joined] = {}
    for chain in module.chains:
        if chain.kind == "stream":
            module = _Streams(module, chain, known).joined()
    return module


@dataclass(frozen=True)
class _Joined:
    """Kernels of some tensors as one kernel, and whether it can be a stream."""

    whole: Kernel | None
    tensors: tuple[str, ...]
    fits: bool


@dataclass
class _Streams:
    """The kernels of one chain."""

    module: Module
    chain: Chain
    known: dict[Hashable, _Joined] = field(default_factory=dict)
    """What was found of kernels that are the same but for their tensors."""
    maps: dict[tuple[Let, ...], Kernel] = field(default_factory=dict)
    """Kernels of what rows have for themselves, by what they compute."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """What these store."""
    parts: tuple[str, ...] = ()
    """The kernels of the chain, and those that draw random numbers for it."""

    def joined(self) -> Module:
        """The module with the chain's results made by streams; as it was where one cannot be."""
        by_name = {kernel.name: kernel for kernel in self.module.kernels}
        members = [by_name[name] for name in self.chain.kernels if name in by_name]
        members = [*self.drawn(members), *members]
        self.parts = tuple(kernel.name for kernel in members)
        wide = self.wide(members)
        makers = [k for k in members if _writes(k) & wide]
        results = [k for k in members if k not in makers and set(k.inputs) & wide]
        plain = all(k.roles is not None for k in results)
        plain = plain and not any(k.params or k.opaque for k in members)
        if not makers or not results or not plain:
            return self.module
        groups: list[list[Kernel]] = []
        # Greedy: each result joins the first group that it can be one stream with. There are two or
        # three.
        for result in results:
            for group in groups:
                apart = not any(_writes(other) & set(_tensors_read(result)) for other in group)
                if apart and self.merge(makers, [*group, result], wide).fits:
                    group.append(result)
                    break
            else:
                groups.append([result])
        # What rows have for themselves was made only to see which results fit together: now it is
        # made for good, and only what streams need is.
        self.maps.clear()
        self.tensors.clear()
        streams = [self.stream(makers, group, wide) for group in groups]
        return self.replaced(groups, streams)

    def drawn(self, members: Sequence[Kernel]) -> list[Kernel]:
        """The parts of kernels that draw random numbers for the members alone, of a state alone:
        what is dropped is drawn anew where it is needed."""
        names, tensors = {kernel.name for kernel in members}, self.module.tensors
        found: list[Kernel] = []
        for kernel in self.module.kernels:
            if kernel.pattern is not Pattern.MAP or kernel.name in names:
                continue
            if not kernel.draws:
                continue
            for output in kernel.outputs:
                part = live(replace(kernel, outputs=(output,)))
                made = output.tensor
                readers = {k.name for k in self.module.kernels if made in _tensors_read(k)}
                # Drawn anew of a seed and an offset costs no memory; what is made of large tensors
                # would be read again.
                few = all(math.prod(tensors[name].shape) <= _STATE for name in part.inputs)
                if readers and readers <= names and few and tensors[made].role == "internal":
                    found.append(part)
        return found

    def wide(self, members: Sequence[Kernel]) -> frozenset[str]:
        """The largest tensors that members hand on: a number for every row and column."""
        tensors = self.module.tensors
        read = {name for kernel in members for name in kernel.inputs}
        handed = {name for k in members for name in _writes(k) & read if not k.outputs[0].base}
        handed = {name for name in handed if tensors[name].role == "internal"}
        sizes = {name: math.prod(tensors[name].shape) for name in handed}
        return frozenset(name for name in handed if sizes[name] == max(sizes.values()))

    def stream(
        self, makers: Sequence[Kernel], results: Sequence[Kernel], wide: frozenset[str]
    ) -> Kernel | None:
        """The kernel of some results; None where there is none."""
        found = self.merge(makers, results, wide)
        if found.whole is None or not found.fits:
            return None
        names = dict(zip(found.tensors, _tensors_of((*makers, *results)), strict=True))
        return self.with_stored_rows(on_tensors(found.whole, names))

    def merge(
        self, makers: Sequence[Kernel], results: Sequence[Kernel], wide: frozenset[str]
    ) -> _Joined:
        """Some results and what makes them as one kernel, which does not store what rows have for
        themselves; it may be on the tensors of another layer."""
        key = self.key((*makers, *results), len(makers), wide)
        if key is None or key not in self.known:
            chosen = _makers_of_results(makers, results, wide)
            whole = merged([*chosen, *results], wide, Pattern.STREAM)
            whole = None if whole is None else _with_hidden_rows(with_known_choices(whole))
            tensors = _tensors_of((*makers, *results))
            found = _Joined(whole, tensors, whole is not None and self.is_stream(whole))
            if key is None:
                return found
            self.known[key] = found
        return self.known[key]

    def key(self, kernels: Sequence[Kernel], makers: int, wide: frozenset[str]) -> Hashable | None:
        """All that a kernel made of others depends on, with their tensors by number; None where it
        has more."""
        tensors, names = self.module.tensors, _tensors_of(kernels)
        numbers = {name: number for number, name in enumerate(names)}
        plain = tuple(without_tensors(kernel, tensors) for kernel in kernels)
        if None in plain or any(kernel.labels for kernel in kernels):
            return None
        places = tuple(tuple(numbers[name] for name in buffers(kernel)) for kernel in kernels)
        roles = tuple(tensors[name].role for name in names)
        return plain, makers, places, roles, tuple(name in wide for name in names)

    def is_stream(self, whole: Kernel) -> bool:
        """Whether warpgroups can carry a kernel out that reads what it would compute for rows."""
        kernel = self.with_stored_rows(whole)
        return stream_suits_warpgroups(kernel, {**self.module.tensors, **self.tensors})

    # Numbers of rows

    def with_stored_rows(self, kernel: Kernel) -> Kernel:
        """A stream that reads what it would compute for rows, or for columns, alone."""
        found = stream_axes(kernel)
        if found is None:
            return kernel
        body: list[Let] = []
        stored = _values_of_one_axis(kernel, found)
        for let in kernel.body:
            if let.name in stored:
                tensor = self.map_of(kernel, let)
                index = tuple(axis(name) for name in let.axes)
                body.append(replace(let, expr=Read(tensor, index)))
            else:
                body.append(let)
        return live(replace(kernel, body=tuple(body)))

    def map_of(self, kernel: Kernel, let: Let) -> str:
        """The tensor of a value, and the kernel that makes it."""
        names = needed([let.name], kernel)
        body = tuple(found for found in kernel.body if found.name in names)
        # The same numbers have their axes in another order in a stream the other way round.
        key = tuple(replace(found, axes=tuple(sorted(found.axes))) for found in body)
        known = self.maps.get(key)
        if known is not None:
            return known.outputs[0].tensor
        number = self.chain.kernels[-1].lstrip("abcdefghijklmnopqrstuvwxyz_")
        tensor = free_name(f"rows{number}", {**self.module.tensors, **self.tensors})
        index = tuple(axis(name) for name in let.axes)
        output = Output(tensor, let.name, index)
        kernels = {found.name for found in (*self.module.kernels, *self.maps.values())}
        sums = any(isinstance(found.expr, Reduce) for found in body)
        pattern = Pattern.ROW if sums else Pattern.MAP
        name = free_name(f"{pattern.value}_{tensor}", kernels)
        self.maps[key] = live(Kernel(name, pattern, kernel.axes, body, (output,)))
        shape = tuple(kernel.sizes[name] for name in let.axes)
        self.tensors[tensor] = Tensor(tensor, let.dtype, shape, "internal")
        return tensor

    # The module

    def replaced(
        self, groups: Sequence[Sequence[Kernel]], streams: Sequence[Kernel | None]
    ) -> Module:
        """The module with streams in the place of results, and without what nobody reads now."""
        kernels, origin = list(self.module.kernels), dict(self.module.origin)
        for group, stream in zip(groups, streams, strict=True):
            place = (
                None
                if stream is None
                else _stream_position(kernels, group, stream, set(self.tensors))
            )
            if stream is None or place is None:
                return self.module
            names = [k.name for k in group]
            number = names[0].lstrip("abcdefghijklmnopqrstuvwxyz_")
            name = f"{Pattern.STREAM.value}{number}"
            kernels[place] = replace(stream, name=name)
            kernels = [k for k in kernels if k.name not in names]
            origin[name] = self.origin((*self.chain.kernels, *names))
        maps = [*self.maps.values()]
        readers = (n for n, k in enumerate(kernels) if set(k.inputs) & set(self.tensors))
        first = min(readers, default=0)
        origin |= {found.name: self.origin(self.chain.kernels) for found in maps}
        kernels[first:first] = maps
        tensors = {**self.module.tensors, **self.tensors}
        return _without_unread(self.module, kernels, tensors, origin, self.parts)

    def origin(self, names: Sequence[str]) -> tuple[int, ...]:
        known = self.module.origin
        return tuple(sorted({found for name in names for found in known.get(name, ())}))


def _tensors_of(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """The tensors of some kernels, in the order in which these name them."""
    return tuple(dict.fromkeys(name for kernel in kernels for name in buffers(kernel)))


def _writes(kernel: Kernel) -> set[str]:
    return {output.tensor for output in kernel.outputs}


def _makers_of_results(
    makers: Sequence[Kernel], results: Sequence[Kernel], wide: frozenset[str]
) -> list[Kernel]:
    """The makers of what results are made of, each with nothing but that."""
    wanted = {name for result in results for name in result.inputs} & wide
    chosen: list[Kernel] = []
    for maker in reversed(makers):
        kept = tuple(output for output in maker.outputs if output.tensor in wanted)
        if kept:
            part = live(replace(maker, outputs=kept))
            chosen.insert(0, part)
            wanted |= set(part.inputs) & wide
    return chosen


def _with_hidden_rows(kernel: Kernel) -> Kernel:
    """A stream with the masks of rows that see nothing as they were.

    Such rows are shown every key, `select(blind, 0, mask)`, and their shift, `select(blind, inf,
    lse)`, makes every power of theirs 0: what they see in between does not matter.
    """
    lets = {let.name: let for let in kernel.body}
    powers = (let.expr for let in kernel.body if isinstance(let.expr, Unary))
    raised = [lets[expr.x].expr for expr in powers if expr.fn == "exp"]
    shifts = [lets[expr.rhs].expr for expr in raised if isinstance(expr, Binary)]
    blind = {
        expr.pred
        for expr in shifts
        if isinstance(expr, Select) and _is_number(lets[expr.x], math.inf)
    }
    body: list[Let] = []
    for let in kernel.body:
        match let.expr:
            case Select(pred=pred, x=x, y=mask) if pred in blind and _is_number(lets[x], 0.0):
                body.append(replace(lets[mask], name=let.name))
            case _:
                body.append(let)
    return live(replace(kernel, body=tuple(body)))


def _is_number(let: Let, number: float) -> bool:
    return isinstance(let.expr, Const) and let.expr.value == number


def _values_of_one_axis(kernel: Kernel, found: StreamAxes) -> set[str]:
    """Values of rows or of columns alone that are computed of what is read, and that values of
    both are made of."""
    both = {found.row, found.column}
    axes = {*found.batch, *found.group, *both}
    lets = {let.name: let for let in kernel.body}
    narrow = set[str]()
    for let in kernel.body:
        if not both <= set(let.axes):
            continue
        for name in operands(let):
            made = lets[name]
            computed = not isinstance(made.expr, Read) and any(
                isinstance(lets[used].expr, Read) for used in needed([name], kernel)
            )
            alone = set(made.axes) <= axes and not both <= set(made.axes)
            if computed and alone and made.axes:
                narrow.add(name)
    return narrow


def _stream_position(
    kernels: Sequence[Kernel], group: Sequence[Kernel], stream: Kernel, ready: set[str]
) -> int | None:
    """Where a stream can stand: in the place of one of its results, after everything that it reads
    and before everything that reads it."""
    names = {kernel.name for kernel in group}
    places = [number for number, kernel in enumerate(kernels) if kernel.name in names]
    made = {name: number for number, kernel in enumerate(kernels) for name in _writes(kernel)}
    read = [made[name] for name in stream.inputs if name in made and name not in ready]
    users = [
        number
        for number, kernel in enumerate(kernels)
        if kernel.name not in names and _writes(stream) & set(buffers(kernel))
    ]
    fitting = (p for p in places if all(n < p for n in read) and all(n > p for n in users))
    return next(fitting, None)


def _without_unread(
    module: Module,
    kernels: Sequence[Kernel],
    tensors: Mapping[str, Tensor],
    origin: Mapping[str, tuple[int, ...]],
    parts: Sequence[str],
) -> Module:
    """The module with these kernels, but without parts whose results nobody reads any more."""
    left = list(kernels)
    while True:
        read = {name for kernel in left for name in _tensors_read(kernel)}
        members = [kernel for kernel in left if kernel.name in parts]
        idle = [k for k in members if all(_unread(tensors[n], read) for n in _writes(k))]
        if not idle:
            break
        left = [kernel for kernel in left if kernel not in idle]
    left = [_of_read(kernel, tensors, read) if kernel.name in parts else kernel for kernel in left]
    names, used = {k.name for k in left}, {name for k in left for name in buffers(k)}
    kept = {n: t for n, t in tensors.items() if n in used or t.role != "internal"}
    origin = {name: found for name, found in origin.items() if name in names}
    chains = tuple(
        replace(chain, kernels=tuple(name for name in chain.kernels if name in names))
        for chain in module.chains
    )
    return replace(module, kernels=tuple(left), tensors=kept, origin=origin, chains=chains)


def _of_read(kernel: Kernel, tensors: Mapping[str, Tensor], read: set[str]) -> Kernel:
    """A kernel that computes each of its elements by itself, without results that nobody reads."""
    kept = tuple(o for o in kernel.outputs if not _unread(tensors[o.tensor], read))
    if kernel.pattern is not Pattern.MAP or len(kept) == len(kernel.outputs):
        return kernel
    return live(replace(kernel, outputs=kept))


def _tensors_read(kernel: Kernel) -> Iterator[str]:
    yield from kernel.inputs
    yield from (output.base for output in kernel.outputs if output.base is not None)


def _unread(tensor: Tensor, read: set[str]) -> bool:
    return tensor.role == "internal" and tensor.name not in read
