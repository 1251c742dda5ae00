"""`weft.spmd`: a function that every rank of a mesh runs on its part of the arguments.

It is traced once, on the types of one rank's parts. On a mesh of processes the trace is this rank's
program, compiled as `jit` does it. On a simulated mesh the reference interpreter runs it for each
rank, in threads that meet at collectives. What a function returns is the same on all ranks, or a
`Sharded` value; anything else is an error, with the line that made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.ranks import SimulatedProgram
from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation, Unimplemented, UserError, a_type, brief
from weft.foundation.lines import shown, user_line
from weft.foundation.mesh import Mesh, Split
from weft.ops.array.creation import asarray
from weft.ops.calls import check_function, explained, public
from weft.ops.custom_rules import CustomVjp
from weft.ops.default_backend import at_home
from weft.ops.differentiate import grad
from weft.ops.graph.context import current
from weft.ops.graph.inline import inline
from weft.ops.graph.node import Node
from weft.ops.jit import jit
from weft.ops.mesh.collectives import all_reduce
from weft.ops.mesh.mesh import on_mesh
from weft.ops.mesh.sharded import Sharded, check_mesh, is_sharded, part_of, splits_of
from weft.ops.module_state import Changes, Watched
from weft.ops.parameters import Parameters
from weft.ops.pytree import Structure, flatten, unflatten
from weft.ops.rank_classes import classes_of_nodes
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, from_array
from weft.ops.traced_function import arguments_of
from weft.ops.tracing import Trace, trace
from weft.ptir.exchanges import exchanges
from weft.ptir.ops.callback import Callback
from weft.ptir.types import TensorType

Array = NDArray[Any]


@told
def spmd(mesh: Mesh, *, split: Mapping[str, Split] | None = None) -> Callable[..., Any]:
    """Let every rank of a mesh run the function on its part: `@weft.spmd(mesh, split={"x": {0:
    "data"}})`. `split` says by name which axes of which arguments are split over which axes of the
    mesh; a name may be a pattern of what is inside an argument, as in `"model.*.up.weight"`. An
    argument that is `Sharded` says it itself. All others are the same on every rank, and so is what
    the function returns, unless it is `Sharded`."""
    check_mesh("spmd", mesh)
    splits = splits_of(split)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function("spmd", function)
        return on_ranks(mesh, splits, function)

    return decorate


def on_ranks(
    mesh: Mesh,
    splits: Mapping[str, Split],
    function: Callable[..., Any],
    *,
    dressed: bool = False,
) -> Callable[..., Any]:
    """The function, called by every rank on its parts; `dressed` ones are all `Sharded`."""
    made = _simulate_ranks if mesh.simulated else _real
    return made(mesh, splits, function, dressed)


# -- on ranks that are processes -----------------------------------------------------------------


def _real(
    mesh: Mesh, splits: Mapping[str, Split], function: Callable[..., Any], dressed: bool
) -> Callable[..., Any]:
    @wraps(function)
    def local(*args: Any, **kwargs: Any) -> Any:
        whole = _Given(mesh, splits, function, args, kwargs, dressed)
        with on_mesh(mesh):
            result, state, values = _call_on_rank(mesh, function, whole.own())
        state.carry(list(map(Tensor, values)), (args, kwargs))
        return result

    made: Callable[..., Any] = jit(local)
    return made


@dataclass(frozen=True)
class _Leaf:
    """A leaf of the arguments: its name, how it is split, and whether it came so."""

    name: str
    split: dict[int, Any]
    is_part: bool


class _Given:
    """The arguments of a call, and how each is split."""

    def __init__(
        self,
        mesh: Mesh,
        splits: Mapping[str, Split],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dressed: bool,
    ) -> None:
        self.mesh, self.dressed = mesh, dressed
        leaves, self.structure = flatten((args, kwargs), is_sharded)
        self.leaves = [_leaf_value(leaf) for leaf in leaves]
        names = Parameters(function, "").leaf_names(self.structure)
        used: set[str] = set()
        self.kinds = [
            self._leaf(leaf, name, splits, used)
            for leaf, name in zip(self.leaves, names, strict=True)
        ]
        for pattern in splits.keys() - used:
            there = f"there are {', '.join(names[:8])}" if names else "there are no arguments"
            raise UserError(f"split names {pattern!r}, and no argument is called that; {there}")

    def _leaf(self, leaf: Any, name: str, splits: Mapping[str, Split], used: set[str]) -> _Leaf:
        found = [pattern for pattern in splits if _matches(name, pattern)]
        used.update(found)
        if isinstance(leaf, Sharded):
            if leaf.mesh != self.mesh:
                raise UserError(f"{name} is split over {leaf.mesh}, and this is {self.mesh}")
            said = self.mesh.checked(splits[found[-1]], leaf.shape, name) if found else leaf.split
            if said != leaf.split:
                raise UserError(
                    f"split gives {said} for {name}, but it is split as {leaf.split}; leave it "
                    "out of split, or split it so with weft.shard"
                )
            return _Leaf(name, leaf.split, not self.mesh.simulated)
        if not isinstance(leaf, Tensor):
            if name in found:
                raise UserError(f"{name} is {a_type(leaf)}, and only tensors can be split")
            return _Leaf(name, {}, False)
        if not found:
            return _Leaf(name, {}, False)
        shape = leaf.type.static_shape
        return _Leaf(name, self.mesh.checked(splits[found[-1]], shape, name), False)

    def own(self) -> Any:
        """The arguments of one rank, whose number the program asks for."""
        made = [self._own(x, kind) for x, kind in zip(self.leaves, self.kinds, strict=True)]
        return unflatten(self.structure, made)

    def _own(self, leaf: Any, kind: _Leaf) -> Any:
        if not kind.split:
            return bare(leaf)
        session = Session.here()
        handle = session.import_(bare(leaf))
        if not kind.is_part:
            handle = part_of(session, handle, self.mesh, kind.split)
        part = session.export(_mark_part(session, handle, self.mesh, kind.split))
        return self._dress_part(part, kind)

    def _dress_part(self, part: Any, kind: _Leaf) -> Any:
        """A part as the function gets it."""
        if self.dressed and kind.split:
            return Sharded(part, self.mesh, kind.split)
        return bare(part)

    def tensors(self) -> list[tuple[Tensor, _Leaf]]:
        """The tensors among the arguments, and how each is split."""
        own = map(bare, self.leaves)
        return [(x, k) for x, k in zip(own, self.kinds, strict=True) if isinstance(x, Tensor)]

    def filled(self, parts: Sequence[Tensor]) -> Any:
        """The arguments with one rank's parts in the place of their tensors."""
        supply, session = iter(parts), Session.here()
        made = []
        for leaf, kind in zip(self.leaves, self.kinds, strict=True):
            part = next(supply) if isinstance(bare(leaf), Tensor) else leaf
            if kind.split:
                marked = _mark_part(session, session.import_(part), self.mesh, kind.split)
                part = session.export(marked)
            made.append(self._dress_part(part, kind))
        return unflatten(self.structure, made)


def bare(leaf: Any) -> Any:
    """The tensor of a `Sharded` value; anything else as it is."""
    return leaf.value if isinstance(leaf, Sharded) else leaf


def _leaf_value(leaf: Any) -> Any:
    found = arguments_of((bare(leaf),), {}).leaves[0]
    value = found if isinstance(found, Tensor) else found.value
    return Sharded(value, leaf.mesh, leaf.split) if isinstance(leaf, Sharded) else value


def _matches(name: str, pattern: str) -> bool:
    """Whether a leaf, or something that it is inside of, is called so."""
    # model['up'][0] as model.up.0: brackets mean something else in patterns.
    plain = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", name)
    return any(
        fnmatchcase(plain, wanted) or fnmatchcase(plain, f"{wanted}.*")
        for wanted in (pattern, re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", pattern))
    )


def _mark_part(session: Session, part: Handle, mesh: Mesh, split: Split) -> Handle:
    names = [name for over in split.values() for name in mesh.names(over)]
    return session.emit("mark_varying", part, classes=mesh.places(names))


def _call_on_rank(
    mesh: Mesh, function: Callable[..., Any], given: Any
) -> tuple[Any, Changes, list[Node]]:
    """What the function returns on one rank's arguments, what it leaves in their modules, and the
    values of that. Both are checked: what differs between ranks is said to."""
    watched = Watched(given)
    result = function(*given[0], **given[1])
    leaves, structure = flatten(result, is_sharded)
    leaves = [_count_axes_from_front(mesh, leaf) if is_sharded(leaf) else leaf for leaf in leaves]
    tensors = [(leaf, x) for leaf in leaves if isinstance(x := bare(leaf), Tensor)]
    values: list[Node] = []
    state = watched.changes(values)
    classes = classes_of_nodes([*(tensor._node for _, tensor in tensors), *values])
    for (leaf, tensor), own in zip(tensors, classes, strict=False):
        split = leaf.split.values() if isinstance(leaf, Sharded) else ()
        said = {name for over in split for name in mesh.names(over)}
        axes = [name for name in mesh.varying(own) if name not in said]
        if axes:
            also = "also " if said else ""
            raise UserError(
                f"a result of type {tensor.type} {also}differs between the ranks along "
                f"{', '.join(axes)}; all_reduce it, or return weft.Sharded(value, mesh, split)",
                "RanksDiffer",
                shown(tensor._node.line),
            )
    for place, at in ((place, at) for place, results in state.told(given) for at in results):
        if axes := mesh.varying(classes[len(tensors) + at]):
            raise UserError(
                f"{place} is assigned a value that differs between the ranks along "
                f"{', '.join(axes)}; all_reduce it before, or let weft.parallel split the function",
                "RanksDiffer",
                shown(values[at].line),
            )
    return unflatten(structure, leaves), state, values


def _count_axes_from_front(mesh: Mesh, part: Sharded) -> Sharded:
    """A part that a function returns, with axes counted from the front."""
    if part.mesh != mesh:
        raise UserError(f"a result is split over {part.mesh}, and this is {mesh}")
    rank = len(part.value.shape)
    for axis in part.split:
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise UserError(f"a result has {rank} axes, and is Sharded along axis {brief(axis)}")
    return Sharded(part.value, mesh, {axis % rank: over for axis, over in part.split.items()})


# -- on ranks that are simulated -----------------------------------------------------------------


def _simulate_ranks(
    mesh: Mesh, splits: Mapping[str, Split], function: Callable[..., Any], dressed: bool
) -> Callable[..., Any]:
    known: dict[Any, _Program] = {}

    @public
    @at_home
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = _Given(mesh, splits, function, args, kwargs, dressed)
            key = given.structure, tuple(map(_leaf_key, given.leaves)), tuple(map(str, given.kinds))
            found = known.get(key)
            if found is None:
                found = _Program(mesh, function, given)
                if not found.trace.captured:
                    known[key] = found
        except (SpecViolation, UserError) as error:
            raise explained("spmd", error, user_line()) from None
        return found(given, (args, kwargs))

    def explain() -> str:
        lines = [line for program in known.values() for line in program.explain()]
        return "\n".join(lines) or "nothing traced yet: the function has not been called"

    call.__dict__["explain"] = explain
    return call


def _leaf_key(leaf: Any) -> Any:
    value = bare(leaf)
    return value.type if isinstance(value, Tensor) else (type(value), repr(value))


class _Program:
    """A function traced for the ranks of a simulated mesh."""

    def __init__(self, mesh: Mesh, function: Callable[..., Any], given: _Given) -> None:
        self.mesh = mesh
        kinds = [_part_type(mesh, x, k) for x, k in given.tensors()]

        def call(arguments: Any) -> Any:
            with on_mesh(mesh):
                return _call_on_rank(mesh, function, arguments)[0]

        self.trace: Trace = trace(function, kinds, given.filled, call, stands_for=())
        self.program = SimulatedProgram(self.trace.program)

    def __call__(self, given: _Given, called: Any) -> Any:
        inputs = [tensor for tensor, _ in given.tensors()]
        inputs += [Tensor(captured.node) for captured in self.trace.captured]
        splits = [kind.split for _, kind in given.tensors()]
        splits += [{}] * (len(inputs) - len(splits))
        if current().tracing:
            made = self._trace_ranks(inputs, splits)
        else:
            arrays = self._run_ranks([np.asarray(tensor.numpy()) for tensor in inputs], splits)
            made = [from_array(array, current()) for array in arrays]
        self.trace.state.carry(made, called)
        supply = iter(made)
        leaves = [next(supply) if o is None else o.value for o in self.trace.outputs]
        return unflatten(self.trace.structure, leaves)

    def explain(self) -> list[str]:
        """What was traced, and what its ranks exchange."""
        count = len(self.trace.program.main.body)
        said = f"traced for {self.mesh} ({count} instructions)"
        return [said, *(f"  {line}" for line in exchanges(self.trace.program))]

    def _run_ranks(self, inputs: Sequence[Array], splits: Sequence[Split]) -> list[Array]:
        """The results as a whole: of each rank's parts, or rank 0's where all are the same."""

        def parts(rank: int) -> list[Array]:
            given = zip(inputs, splits, strict=True)
            return [_own_part(self.mesh, x, s, rank) for x, s in given]

        found = self.program.run(self.mesh.count, parts)
        columns = [[np.asarray(x) for x in column] for column in zip(*found, strict=True)]
        return [_join_parts(self.mesh, c, s) for c, s in zip(columns, self._splits(), strict=True)]

    def _splits(self) -> list[Split]:
        """How each result of the program is split."""
        found = _result_splits(self.trace.structure)
        used = [s for s, o in zip(found, self.trace.outputs, strict=True) if o is None]
        return used + [{}] * (len(self.trace.program.main.results) - len(used))

    def _trace_ranks(self, inputs: Sequence[Tensor], splits: Sequence[Split]) -> list[Tensor]:
        """The run as part of a trace around it, which may be differentiated."""

        def forward(*given: Tensor) -> Any:
            return tuple(self._instruction(given, splits)), given

        def backward(given: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Any:
            return self._backward(given, splits, cotangents)

        run = CustomVjp(lambda *given: forward(*given)[0])
        run.defvjp(forward, backward)
        return list(run(*inputs))

    def _backward(
        self, inputs: Sequence[Tensor], splits: Sequence[Split], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor | None, ...]:
        """The cotangents of the inputs. Each rank makes its own, on the same mesh, as slopes of a
        number that all ranks have: the sum of results times cotangents, where those of parts are
        summed over the ranks that have them."""
        mesh, outputs = self.mesh, self._splits()
        if any(x.type.dtype.is_complex for x in (*inputs, *cotangents)):
            raise Unimplemented(
                "the gradient around a function on a simulated mesh",
                "it takes or returns complex numbers; take the gradient inside of the function",
            )
        wanted = [at for at, x in enumerate(inputs) if x.type.dtype.is_float]

        def slopes(parts: Sequence[Tensor], weights: Sequence[Tensor]) -> Any:
            def number(moved: Sequence[Tensor]) -> Tensor:
                given = list(parts)
                for at, part in zip(wanted, moved, strict=True):
                    given[at] = part
                made = inline(self.trace.program, [x._node for x in given], current(), user_line())
                total = asarray(0.0)
                for node, weight, split in zip(made, weights, outputs, strict=True):
                    if node.tensor.dtype.is_float:
                        part = (Tensor(node) * weight).sum()
                        over = [name for axes in split.values() for name in mesh.names(axes)]
                        total = total + (all_reduce(part, over=over) if over else part)
                return total

            found = grad(number)([parts[at] for at in wanted])
            pairs = zip(found, wanted, strict=True)
            return [Sharded(x, mesh, splits[at]) if splits[at] else x for x, at in pairs]

        def dressed(values: Sequence[Tensor], how: Sequence[Split]) -> list[Any]:
            pairs = zip(values, how, strict=True)
            return [Sharded(x, mesh, split) if split else x for x, split in pairs]

        found = spmd(mesh)(slopes)(dressed(inputs, splits), dressed(cotangents, outputs))
        made = dict(zip(wanted, map(bare, found), strict=True))
        return tuple(made.get(at) for at in range(len(inputs)))

    def _instruction(self, inputs: Sequence[Tensor], splits: Sequence[Split]) -> list[Tensor]:
        """The run as an instruction of a trace around it: the host carries it out."""
        session = Session.here()
        results = zip(self.trace.results, self._splits(), strict=True)
        kinds = [_whole_type(self.mesh, kind, split) for kind, split in results]
        op = Callback.of(lambda arrays: self._run_ranks(arrays, splits), "spmd", False, kinds)
        made = session.append(op, *(session.import_(tensor) for tensor in inputs))
        handles = [made] if isinstance(made.type, TensorType) else list(made)
        return [session.export(handle) for handle in handles]


def _own_part(mesh: Mesh, whole: Array, split: Split, rank: int) -> Array:
    return np.array(whole[mesh.part(whole.shape, split, rank)], order="C")


def _part_type(mesh: Mesh, leaf: Tensor, kind: _Leaf) -> TensorType:
    dims = list(leaf.type.static_shape)
    for axis, over in kind.split.items():
        dims[axis] //= mesh.size(over)
    return leaf.type.with_shape(dims)


def _whole_type(mesh: Mesh, kind: TensorType, split: Split) -> TensorType:
    dims = list(kind.static_shape)
    for axis, over in split.items():
        dims[axis] *= mesh.size(over)
    return kind.with_shape(dims)


def _join_parts(mesh: Mesh, parts: Sequence[Array], split: Split) -> Array:
    if not split:
        return parts[0]
    dims = list(parts[0].shape)
    for axis, over in split.items():
        dims[axis] *= mesh.size(over)
    whole = np.empty(dims, parts[0].dtype)
    for rank, part in enumerate(parts):
        whole[mesh.part(dims, split, rank)] = part
    return whole


def _result_splits(structure: Structure) -> list[Split]:
    """How each leaf of a result is split: as the `Sharded` around it says."""
    if structure.kind is Sharded:
        rest: Any = structure.rest
        return [dict(rest[1])] * structure.leaf_count
    if structure.kind is None:
        return [{}]
    return [s for child in structure.children for s in _result_splits(child)]
