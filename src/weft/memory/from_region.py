"""Memory planning: from kernels in order to buffers, with their live ranges, reuse and copies.

1. A life for every tensor: first write to last read.
2. An output with a `base` takes over the base's buffer if the base is dead after the kernel, may be
   overwritten (state, donated, or internal), and is not read by the kernel at another element than
   the one being written. Otherwise the base is copied first.
3. An elementwise kernel with one output writes into an operand that dies there, if it is read only
   at the element being written and has the same size. What the program hands out goes into a
   donated input rather than into another operand: it has the same place in every run then, and
   takes no memory of its own.
4. So does a reduction over ranks.
5. What is left internal is packed into one arena, what is one exchange side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.foundation.index_expr import Expr, linear
from weft.foundation.packing import Block, pack
from weft.foundation.tally import counted
from weft.memory.ir import Buffer, BufferMap, Copy, MemRef, Share, Space
from weft.region.exchanges import buckets, reduced_alike
from weft.region.ir import (
    Fold,
    Kernel,
    Let,
    Module,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    operands,
    row_major,
    walk,
)

ALIGNMENT = 128
"""Bytes: the lines of a GPU's memory, and two of a CPU's."""
GIVEN = ("input", "param", "state", "constant", "run")


def assign_buffers(
    module: Module, donated: Iterable[str] = (), *, in_turn: bool = False
) -> BufferMap:
    """Where every tensor of a module lives. `donated` inputs may be overwritten once dead. Where
    results of a contraction are made `in_turn`, each reads again what it is made of."""
    assignment = Assignment(module, frozenset(donated), in_turn)
    assignment.share_all()
    return assignment.result()


def lives_of(module: Module, donated: frozenset[str]) -> dict[str, tuple[int, int]]:
    """First write and last read of every tensor, as kernel numbers."""
    end = len(module.kernels)
    first = {name: -1 for name, t in module.tensors.items() if t.role in GIVEN}
    last: dict[str, int] = {}
    for number, kernel in enumerate(module.kernels):
        for output in kernel.outputs:
            first[output.tensor] = number
            last[output.tensor] = number
        # A base counts as read: the elements that the kernel does not write have to be there until
        # it runs, whether they are copied or stay where they are.
        for name in (*kernel.inputs, *_bases(kernel)):
            last[name] = number
    for name, tensor in module.tensors.items():
        # What is given and not donated is read by the next run as well: it never dies.
        kept = tensor.role in GIVEN and tensor.role != "state" and name not in donated
        if kept or name in module.outputs:
            last[name] = end
    return {name: (at, last.get(name, at)) for name, at in first.items()}


def _bases(kernel: Kernel) -> list[str]:
    return [output.base for output in kernel.outputs if output.base is not None]


@dataclass
class Assignment:
    """Decisions so far: `owner` maps a tensor to the one whose buffer it took over."""

    module: Module
    donated: frozenset[str]
    in_turn: bool = False
    owner: dict[str, str] = field(default_factory=dict)
    shares: list[Share] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    taken: set[tuple[str, str]] = field(default_factory=set)
    """Kernels with the tensors whose buffers are taken over in them."""
    _fits: dict[str, list[str]] = field(default_factory=dict)
    """The donated inputs that a result could be written into."""
    _looks: dict[str, _Look] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lives = lives_of(self.module, self.donated)
        self.refreshed = self._refreshed_state()
        together = [bucket for bucket in buckets(self.module) if len(bucket) > 1]
        self.rows = [[o.tensor for kernel in one for o in kernel.outputs] for one in together]
        """The results of every exchange of several tensors."""
        self.exchanged = {name for row in self.rows for name in row}

    def _refreshed_state(self) -> set[str]:
        """State that some output is based on: its old content dies there, all other state stays."""
        found = {base for kernel in self.module.kernels for base in _bases(kernel)}
        end = len(self.module.kernels)
        for name, tensor in self.module.tensors.items():
            if tensor.role == "state" and name not in found and name not in self.donated:
                self.lives[name] = (-1, end)
        return found

    # -- sharing ---------------------------------------------------------------------------------

    def share_all(self) -> None:
        for number, kernel in enumerate(self.module.kernels):
            for output in kernel.outputs:
                if output.base is not None:
                    self._update(number, kernel, output, output.base)
            self._hand_back(number, kernel)
            for output in kernel.outputs:
                if output.base is None and output.tensor not in self.owner:
                    self._reuse(number, kernel, output)

    def _update(self, number: int, kernel: Kernel, output: Output, base: str) -> None:
        why = self._obstacle(number, kernel, output, base)
        if why is None:
            self._share(kernel, base, output.tensor, "it is the same tensor with a part replaced")
            return
        size = self.module.tensors[base].bytes
        self.copies.append(Copy(kernel.name, base, output.tensor, size, why))
        # The copy is made before the kernel: from then on the output is alive, and the base is read
        # by the copy alone.

    def _obstacle(self, number: int, kernel: Kernel, output: Output, base: str) -> str | None:
        """Why an output cannot be written into its base; None where it can."""
        role = self.module.tensors[base].role
        if role in _A and base not in self.donated:
            return f"{base} is {_A[role]} that is not donated"
        # Lives, and not readers, are asked: what the program hands out lives beyond the last
        # kernel, though no kernel reads it.
        if self.lives[base][1] > number:
            return f"{base} is read again after {kernel.name}"
        if self._is_taken(number, base):
            return f"the buffer of {base} is already taken over"
        # An op that is carried out whole may read its base as another operand while it overwrites
        # it.
        if kernel.opaque is not None and kernel.opaque.inputs.count(base) > 1:
            return f"{kernel.name} reads {base} twice"
        if not self._look(kernel).same_elements(output, base, self.module.tensors):
            return f"{kernel.name} also reads other elements of {base} than it writes"
        if kernel.opaque is None and self._look(kernel).is_read_again(output, base):
            return f"another result of {kernel.name} is made of {base}"
        if self._both_fixed(base, output.tensor):
            return f"{base} and {output.tensor} are both fixed in place"
        return None

    def _is_taken(self, number: int, name: str) -> bool:
        return (self.module.kernels[number].name, name) in self.taken

    def _both_fixed(self, base: str, name: str) -> bool:
        """Whether a share would force one address onto two tensors that each have their own.

        An output of the program may live in state or in a donated input; the runtime hands it out
        from there. Two given tensors never share.
        """
        fixed = {self._root(base), self._root(name)}
        return sum(self.module.tensors[root].role in GIVEN for root in fixed) > 1

    def _hand_back(self, number: int, kernel: Kernel) -> None:
        """Put as many results of the program as can be into donated inputs that they are computed
        from: each into the first one, in the order of results and inputs, unless another result has
        no other place. Those that have the fewest come first: a weight that is still read elsewhere
        does not turn a moment out of its place."""
        if kernel.pattern not in _IN_PLACE or self.donated.isdisjoint(kernel.inputs):
            return
        results = [o for o in kernel.outputs if o.base is None and o.tensor in self._handed_out]
        given = sorted(self.donated.intersection(kernel.inputs), key=self.module.inputs.index)
        taken: dict[str, Output] = {}
        results.sort(key=lambda o: self._handed_out[o.tensor])
        for output in results:
            read = self._look(kernel).tensors_behind(output)
            fit = [n for n in given if n in read and self._may_reuse(number, kernel, output, n)]
            self._fits[output.tensor] = fit
        # Each search for an augmenting path makes one more result fit in, so any order ends with as
        # many as can be. Those with the fewest places go first for the sake of which ones: a result
        # that had a choice moves on only where that lets another one in.
        for output in sorted(results, key=lambda o: len(self._fits[o.tensor])):
            self._settle(output, taken, set())
        for name, output in taken.items():
            why = "it is donated, and read only at the element being written"
            self._share(kernel, name, output.tensor, why)

    def _settle(self, output: Output, taken: dict[str, Output], tried: set[str]) -> bool:
        """Find a place for a result; others that are settled may have to move."""
        for name in self._fits[output.tensor]:
            if name in tried:
                continue
            tried.add(name)
            # An augmenting path of a bipartite matching: who is in the way moves on, if there is
            # another place for it.
            if name not in taken or self._settle(taken[name], taken, tried):
                taken[name] = output
                return True
        return False

    @cached_property
    def _handed_out(self) -> dict[str, int]:
        """The first position of every tensor among the results of the program."""
        return {name: n for n, name in reversed(list(enumerate(self.module.outputs)))}

    def _reuse(self, number: int, kernel: Kernel, output: Output) -> None:
        for name in kernel.inputs:
            if self._may_reuse(number, kernel, output, name):
                why = "it is read only at the element being written"
                self._share(kernel, name, output.tensor, why)
                return

    def _may_reuse(self, number: int, kernel: Kernel, output: Output, name: str) -> bool:
        """Whether an output without a base may be written into an operand."""
        operand, result = self.module.tensors[name], self.module.tensors[output.tensor]
        dead = operand.role == "internal" or name in self.donated
        if not dead or self.lives[name] == (-1, len(self.module.kernels)):
            return False
        # Element n of the result must lie on element n of the operand, which alone is read by then.
        # With elements of other sizes it would lie on its neighbours.
        size = operand.dtype.storage_bytes == result.dtype.storage_bytes
        fits = size and operand.bytes == result.bytes
        if not fits or self.lives[name][1] != number or self._is_taken(number, name):
            return False
        # Indices depend on a parameter: every element needs it, and not only the one that it is
        # written over.
        if any(param.tensor == name for param in kernel.params):
            return False
        if name in self.exchanged and output.tensor in self.module.outputs:
            # What is handed out has memory of its own, which is not beside that of others.
            return False
        # Exchanges may send from the memory that they receive into.
        if reduced_alike(kernel, self.module) is not None:
            return True
        # What has to look at the whole body comes last.
        look = self._look(kernel)
        if kernel.pattern not in _IN_PLACE or not look.is_one_row_at_a_time:
            return False
        if len(kernel.outputs) > 1 and not (
            look.is_one_pass and name in look.tensors_behind(output)
        ):
            return False
        if look.is_read_again(output, name):
            return False
        return look.same_elements(output, name, self.module.tensors)

    def _look(self, kernel: Kernel) -> _Look:
        found = self._looks.get(kernel.name)
        if found is None:
            found = self._looks[kernel.name] = _Look(kernel, in_turn=self.in_turn)
        return found

    def _share(self, kernel: Kernel, first: str, second: str, why: str) -> None:
        self.take(Share(kernel.name, first, second, why))

    def take(self, share: Share) -> None:
        """Let a tensor take over the buffer of another one."""
        self.shares.append(share)
        self.taken.add((share.kernel, share.first))
        self.owner[share.second] = share.first

    def obstacle(self, share: Share) -> str | None:
        """Why a share that somebody asks for cannot be; None where it can."""
        for number, kernel in enumerate(self.module.kernels):
            for output in kernel.outputs:
                if (kernel.name, output.tensor) != (share.kernel, share.second):
                    continue
                if share.second in self.owner:
                    return f"{share.second} has taken over {self.owner[share.second]}"
                if output.base is not None and output.base == share.first:
                    return self._obstacle(number, kernel, output, share.first)
                if share.first in kernel.inputs and output.base is None:
                    free = self._may_reuse(number, kernel, output, share.first)
                    return None if free else f"{share.first} is not free to be overwritten"
                return f"{share.kernel} does not read {share.first} where it writes"
        return f"there is no kernel {share.kernel} that writes {share.second}"

    def _root(self, name: str) -> str:
        while name in self.owner:
            name = self.owner[name]
        return name

    # -- the result ------------------------------------------------------------------------------

    def result(self) -> BufferMap:
        groups: dict[str, list[str]] = {}
        for name in self.module.tensors:
            groups.setdefault(self._root(name), []).append(name)
        homes = {root: self._home(names) for root, names in groups.items()}
        offsets, arena_bytes = self._pack_arena(
            {root: groups[root] for root, home in homes.items() if home is None}
        )
        shared = {name for share in self.shares for name in (share.first, share.second)}
        refs = {}
        for root, names in groups.items():
            size = max(self.module.tensors[name].bytes for name in names)
            buffer = homes[root] or Buffer(Space.ARENA, 0, offsets[root], size)
            for name in names:
                tensor, alone = self.module.tensors[name], name not in shared
                strides, item = row_major(tensor.shape), tensor.dtype.storage_bytes
                refs[name] = MemRef(name, buffer, tensor.shape, strides, ALIGNMENT, alone, item)
        ordered = {name: refs[name] for name in self.module.tensors}
        copies, shares = tuple(self.copies), tuple(self.shares)
        return BufferMap(ordered, arena_bytes, copies, self.lives, shares)

    def _pack_arena(self, groups: Mapping[str, list[str]]) -> tuple[dict[str, int], int]:
        """Offsets in the arena, and its size. The buffers of one exchange are one block."""
        blocks = {root: self._block(root, names) for root, names in groups.items()}
        inside: dict[str, tuple[str, int]] = {}
        for row in self._rows(blocks):
            # They lie without a gap but for alignment, so that one call exchanges them where they
            # are. The block lives while any of them does.
            at, whole = 0, blocks[row[0]]
            for root in row:
                one = blocks.pop(root)
                inside[root] = (row[0], at)
                at += -(-one.size // ALIGNMENT) * ALIGNMENT
                first, last = min(whole.first, one.first), max(whole.last, one.last)
                whole = replace(whole, first=first, last=last)
            blocks[row[0]] = replace(whole, size=at)
        packed = pack(list(blocks.values()), ALIGNMENT)
        places = {root: inside.get(root, (root, 0)) for root in groups}
        found = {root: packed.offsets[block] + at for root, (block, at) in places.items()}
        return found, packed.size

    def _rows(self, blocks: Mapping[str, Block]) -> list[list[str]]:
        """Buffers that are to lie side by side: those of the results of an exchange."""
        found: list[list[str]] = []
        placed: set[str] = set()
        for results in self.rows:
            row = [self._root(name) for name in results]
            # Two results in one buffer, or a buffer that is in another row already, cannot be
            # neighbours twice: they are exchanged through a copy.
            free = len({*row}) == len(row) and placed.isdisjoint(row)
            if free and all(root in blocks for root in row):
                found.append(row)
                placed.update(row)
        return found

    def _block(self, root: str, names: list[str]) -> Block:
        size = max(self.module.tensors[name].bytes for name in names)
        lives = [self.lives[name] for name in names]
        return Block(root, size, min(life[0] for life in lives), max(life[1] for life in lives))

    def _home(self, names: list[str]) -> Buffer | None:
        """The buffer outside the arena that a group has because of one of its tensors: that of
        what is given before that of what is handed out."""
        for roles, space in _SPACES:
            for name in names:
                tensor = self.module.tensors[name]
                if tensor.role in roles or (space is Space.OUTPUT and name in self.module.outputs):
                    return Buffer(space, self._numbers[space][name], 0, tensor.bytes)
        return None

    @cached_property
    def _numbers(self) -> dict[Space, dict[str, int]]:
        """The position of every tensor among those of its space."""
        tensors, found = self.module.tensors, {}
        for roles, space in _SPACES:
            alike = [name for name, tensor in tensors.items() if tensor.role in roles]
            if space is Space.INPUT:
                alike = [name for name in self.module.inputs if tensors[name].role in roles]
            if space is Space.OUTPUT:
                alike = list(self.module.outputs)
            # A tensor that is several outputs has the place of the first.
            found[space] = {name: n for n, name in reversed(list(enumerate(alike)))}
        return found


_A = {"input": "an input", "param": "a parameter", "constant": "a constant", "run": "the run's"}
_IN_PLACE = (Pattern.MAP, Pattern.ROW, Pattern.MATMUL, Pattern.CONV)
"""Kernels that may write where they read: what they read at the element they write (in a
contraction, what follows the sum) is read before they write it."""
_SPACES = (
    (("state",), Space.STATE),
    (("constant",), Space.CONSTANT),
    (("run",), Space.RUN),
    (("input", "param"), Space.INPUT),
    (("output",), Space.OUTPUT),
)


class _Look:
    """What is asked of a kernel for each of its results and operands."""

    def __init__(self, kernel: Kernel, *, in_turn: bool) -> None:
        self.kernel = kernel
        self.in_turn = in_turn and kernel.roles is not None
        self._behind: dict[str, set[str]] = {}

    @cached_property
    def loops(self) -> list[Let]:
        """Its reductions."""
        return [let for let in self.kernel.body if isinstance(let.expr, Reduce | Fold)]

    @cached_property
    def reads(self) -> dict[str, list[Let]]:
        """Every read, by what is read."""
        found: dict[str, list[Let]] = {}
        for let in walk(self.kernel.body):
            if isinstance(let.expr, Read):
                found.setdefault(let.expr.tensor, []).append(let)
        return found

    @cached_property
    def is_one_row_at_a_time(self) -> bool:
        """Whether all reductions run over the same axes: a row is then read whole before any of its
        elements is written, and no other row needs it."""
        return len({frozenset(_reduced_by(let)) for let in self.loops}) <= 1

    @cached_property
    def is_one_pass(self) -> bool:
        """Whether all outputs are written in one loop over the same points: what an iteration has
        read stays read when it writes."""
        if self.kernel.pattern not in _IN_PLACE:
            return False
        spaces = {self.kernel.let(output.value).axes for output in self.kernel.outputs}
        reduced = {name for let in self.loops for name in _reduced_by(let)}
        return len(spaces) == 1 and reduced.isdisjoint(*spaces)

    @cached_property
    def inside(self) -> set[str]:
        """The values that reductions are made of."""
        names = [name for let in self.loops for name in operands(let)]
        return {let.name for let in self._lets_behind(names)}

    def tensors_behind(self, output: Output) -> set[str]:
        """The tensors that the value of an output is computed from, which then are read before the
        output is written."""
        found = self._behind.get(output.value)
        if found is None:
            lets = self._lets_behind([output.value])
            found = {let.expr.tensor for let in lets if isinstance(let.expr, Read)}
            self._behind[output.value] = found
        return found

    def is_read_again(self, output: Output, name: str) -> bool:
        """Whether the kernel may read a tensor after it has stored an output, for another output
        that may come after this one: what is read in the loop of a reduction is read again behind
        it, and everything is where results are made in turn."""
        reads = [let.name for let in self.reads.get(name, ())]
        once = len(reads) == 1 and reads[0] not in self.inside and reads[0] in self.kernel.lets
        if once and not self.in_turn:
            return False
        others = (found for found in self.kernel.outputs if found is not output)
        return any(name in self.tensors_behind(other) for other in others)

    def same_elements(self, output: Output, name: str, tensors: Mapping[str, Tensor]) -> bool:
        """Whether every read of `name` is of the element that `output` writes. An op that is
        carried whole replaces elements of its base by what it read before."""
        if self.kernel.opaque is not None:
            return True
        target = _element_number(output.index, tensors[output.tensor])
        reads = [let.expr for let in self.reads.get(name, ())]
        return all(
            isinstance(read, Read) and _element_number(read.index, tensors[name]) is target
            for read in reads
        )

    def _lets_behind(self, names: Iterable[str]) -> list[Let]:
        """Values by name, and all that they are computed from."""
        lets = {let.name: let for let in self.kernel.body}
        stack = list(dict.fromkeys(names))
        seen, found = set(stack), list[Let]()
        while stack:
            let = lets[stack.pop()]
            found.append(let)
            fresh = [operand for operand in dict.fromkeys(operands(let)) if operand not in seen]
            seen.update(fresh)
            stack.extend(fresh)
        return found


def _reduced_by(let: Let) -> tuple[str, ...]:
    return let.expr.axes if isinstance(let.expr, Reduce | Fold) else ()


def _element_number(index: tuple[Expr, ...], tensor: Tensor) -> Expr:
    return linear(index, row_major(tensor.shape))


def report(module: Module, buffers: BufferMap) -> list[str]:
    """What `compile -v` says about memory, a line each."""
    copied = {(copy.before, copy.target): copy for copy in buffers.copies}
    lines = []
    for kernel in module.kernels:
        for output in kernel.outputs:
            if output.base is None:
                continue
            copy = copied.get((kernel.name, output.tensor))
            what = f"{kernel.name}: {output.tensor} updates {output.base}"
            lines.append(
                f"{what} in place, 0 bytes copied"
                if copy is None
                else f"{what} in a copy, {copy.bytes:,} bytes copied: {copy.why}"
            )
    internal = [name for name, ref in buffers.refs.items() if ref.buffer.space is Space.ARENA]
    total = sum(module.tensors[name].bytes for name in internal)
    lines.append(
        f"arena: {buffers.arena_bytes:,} bytes hold {counted(len(internal), 'tensor')} of "
        f"{total:,} bytes"
    )
    return lines
