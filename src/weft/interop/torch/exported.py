"""Exported programs of torch as modules of Weft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from inspect import Parameter, Signature
from typing import Any, NoReturn, TypeVar

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    OutputKind,
    TensorArgument,
)
from torch.utils import _pytree as torch_tree

from weft.foundation.dims import Symbol
from weft.foundation.errors import SpecViolation, Unimplemented, UserError, a_type
from weft.interop.torch import decompositions
from weft.interop.torch.dtypes import OURS
from weft.interop.torch.interpret import NESTED, NodeFailed, carry_out, check_known, name_of
from weft.interop.torch.tensors import check_tensor, from_tensor
from weft.ops.array.creation import asarray
from weft.ops.calls import public
from weft.ops.nn.module import Module, own_state
from weft.ops.pytree import flatten
from weft.ops.state import blank
from weft.ops.tensor import Tensor

T = TypeVar("T", bound="TorchModule")


class Part(Module):
    """Parameters and buffers under one name, and the parts under it."""


@cache
def _part_class(buffers: tuple[str, ...]) -> type[Part]:
    return type("Part", (Part,), {"buffers": buffers}) if buffers else Part


class TorchModule(Part):
    """A model of torch: its parameters and buffers under their names, and its graph."""

    source: Source

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        source = self.source
        given = source.arguments(args, kwargs)
        state = own_state(self)
        inputs = source.inputs(state, given)
        try:
            results = carry_out(source.module, inputs)
        except NodeFailed as failed:
            raise failed.error from None
        return source.finish(self, given, results)

    def __copy__(self: T) -> T:
        return self.map(lambda tensor: tensor)

    def __deepcopy__(self: T, memo: dict[int, Any]) -> T:
        """Tensors of its own, and the same graph: nothing in that changes."""
        return self.map(lambda tensor: deepcopy(tensor, memo))

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"the graph of {self.source.name} is torch's and is not pickled; pickle its "
            "state_dict(), and give that to with_state of the model imported again, or keep the "
            "exported program with torch.export.save",
            "NotPickled",
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Its tensors under all names that they have in torch's model: weights that two names
        share are there twice, as in torch's `state_dict`."""
        own = own_state(self)
        shared = self.source.shared.items()
        return own | {other: own[name] for other, name in shared if name in own}

    @public
    def with_state(self: T, state: Mapping[str, Any], *, strict: bool = True) -> T:
        """A module like this one with the tensors of a `state_dict`, of its own or of torch's
        model. Weights that two names share may be there under one of them, or be the same under
        both."""
        if not isinstance(state, Mapping):
            return super().with_state(state, strict=strict)
        found = {
            name: from_tensor(value.detach(), copy=True)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in state.items()
        }
        for other, name in self.source.shared.items():
            if other not in found:
                continue
            value = found.pop(other)
            if not _have_same_elements(found.setdefault(name, value), value):
                raise UserError(
                    f"{name} and {other} are one tensor in {self.source.name}, but the state has "
                    "different ones; leave one of them out, or import a model that does not "
                    "share them"
                )
        return super().with_state(found, strict=strict)

    @property
    def __signature__(self) -> Signature:
        """Its arguments as it was exported, if none is nested: `jit` knows them by their names."""
        args, named = (self.source.spec.in_spec.child(number) for number in range(2))
        if args.num_leaves != args.num_children:
            raise AttributeError("an argument is nested")
        positional = self.source.names[: args.num_leaves]
        return Signature(
            [
                *(Parameter(name, Parameter.POSITIONAL_ONLY) for name in positional),
                *(Parameter(name, Parameter.KEYWORD_ONLY) for name in named.context or ()),
            ]
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the tensors among its arguments are called, in order."""
        return tuple(self.source.tensors)

    @property
    def result_names(self) -> tuple[str, ...]:
        """What the tensors among its results are called, in order."""
        return tuple(self.source.result_names())

    def __repr__(self) -> str:
        count = sum(tensor.size or 0 for tensor in self.parameters())
        return f"{self.source.name}({count:,} parameters, from torch)"


def _have_same_elements(one: Any, other: Any) -> bool:
    """Whether two tensors, which may be packed, have the same elements."""
    if one is other:
        return True
    parts, others = flatten(one)[0], flatten(other)[0]
    return len(parts) == len(others) and all(
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.type == b.type
        and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in zip(parts, others, strict=True)
    )


@cache
def _root(buffers: tuple[str, ...]) -> type[TorchModule]:
    return type("TorchModule", (TorchModule,), {"buffers": buffers}) if buffers else TorchModule


class Source:
    """The graph that a module carries out, and how its inputs and results are named."""

    def __init__(self, program: ExportedProgram, owners: Mapping[str, str]) -> None:
        self.owners = owners
        """For every parameter and buffer, the name its tensor has in the module."""
        self.shared = {other: name for other, name in owners.items() if other != name}
        """Those whose tensor has another name in the module, with that name."""
        self.module = program.graph_module
        self.signature = program.graph_signature
        self.spec = program.call_spec
        self.ranges = program.range_constraints
        self.name = getattr(program.graph_module, "_weft_name", "TorchModule")
        nodes = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self.fakes = [node.meta.get("val") for node in nodes]
        self.constants = {
            name: from_tensor(value.detach())
            for name, value in program.constants.items()
            if isinstance(value, torch.Tensor)
        }
        own = [s for s in self.signature.input_specs if s.kind is InputKind.USER_INPUT]
        self.names = [spec.arg.name for spec in own]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among the arguments, by name."""
        return {
            spec.arg.name: fake
            for spec, fake in zip(self.signature.input_specs, self.fakes, strict=True)
            if spec.kind is InputKind.USER_INPUT and isinstance(fake, torch.Tensor)
        }

    # -- in --------------------------------------------------------------------------------------

    def arguments(self, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """The arguments as a flat list, nested as the program was exported with."""
        wanted = self.spec.in_spec
        order = list(wanted.child(1).context or ()) if wanted.num_children == 2 else []
        if set(order) != set(kwargs):
            raise UserError(
                f"the module takes the named arguments {order or 'none'}, not {list(kwargs)}; call "
                "it as it was exported",
                "WrongArguments",
            )
        leaves: list[Any]
        leaves, found = torch_tree.tree_flatten((args, {name: kwargs[name] for name in order}))
        if len(leaves) != wanted.num_leaves:
            raise UserError(
                f"the module takes {wanted.num_leaves} arguments ({', '.join(self.names)}), not "
                f"{len(leaves)}; call it as it was exported",
                "WrongArguments",
            )
        if found != wanted:
            raise UserError(
                f"the arguments are nested as {found}, but the module was exported for {wanted}",
                "WrongArguments",
            )
        return leaves

    def inputs(self, state: Mapping[str, Tensor], given: list[Any]) -> list[Any]:
        """What the graph takes: state by name, constants, and the arguments."""
        supply = iter(given)
        found: list[Any] = []
        sizes: dict[Any, int] = {}
        for spec, fake in zip(self.signature.input_specs, self.fakes, strict=True):
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and spec.target in self.owners:
                found.append(state[self.owners[spec.target]])
            elif spec.kind is InputKind.USER_INPUT:
                found.append(self._argument(spec.arg, next(supply), fake, sizes))
            elif spec.target in self.constants:
                found.append(self.constants[spec.target])
            elif spec.kind is InputKind.TOKEN:
                found.append(())  # of the order of effects: nothing is in it
            else:
                raise Unimplemented(str(spec.kind), f"an input of this kind, {spec.target}")
        return found

    def _argument(self, spec: Any, value: Any, fake: Any, sizes: dict[Any, int]) -> Any:
        if isinstance(spec, ConstantArgument) or not isinstance(fake, torch.Tensor):
            held = spec.value if isinstance(spec, ConstantArgument) else fake
            if isinstance(held, int | float | bool | str | type(None)) and value != held:
                raise UserError(
                    f"the argument {spec.name} is {value!r}, but the module was exported for "
                    f"{held!r}, which is part of it; export it again",
                    "ConstantChanged",
                )
            return value
        tensor = value
        if isinstance(value, torch.Tensor):
            check_tensor(value)
            tensor = from_tensor(value.detach())
        elif not isinstance(value, Tensor):
            tensor = asarray(value)
        self._check(spec.name, tensor, fake, sizes)
        return tensor

    def _check(self, name: str, tensor: Tensor, fake: torch.Tensor, sizes: Any) -> None:
        """The argument has the dtype and the shape that the program was exported for."""
        if tensor.dtype is not OURS.get(fake.dtype):
            raise SpecViolation(
                "DTypeMismatch",
                f"the argument {name} is {tensor.dtype}, but the module was exported for "
                f"{fake.dtype}",
                "convert it with astype",
            )
        shape = tuple(fake.shape)
        if tensor.ndim != len(shape):
            raise self._misfit(name, tensor, fake, f"it has {tensor.ndim} axes")
        for axis, (mine, theirs) in enumerate(zip(tensor.shape, shape, strict=True)):
            if isinstance(mine, Symbol):
                continue
            if isinstance(theirs, int):
                if mine != theirs:
                    raise self._misfit(name, tensor, fake, f"axis {axis} has size {mine}")
                continue
            self._bind(name, tensor, fake, axis, sizes)

    def _bind(self, name: str, tensor: Tensor, fake: torch.Tensor, axis: int, sizes: Any) -> None:
        """A free size is in its range, and the same wherever it has the same name."""
        dim: Any = fake.shape[axis]
        expression, size = dim.node.expr, tensor.shape[axis]
        if expression.is_Symbol:
            bounds = self.ranges.get(expression)
            if bounds is not None and not bounds.lower <= size <= bounds.upper:
                why = f"axis {axis} has size {size}, outside of {bounds.lower} to {bounds.upper}"
                raise self._misfit(name, tensor, fake, why)
            if sizes.setdefault(expression, size) != size:
                why = f"axis {axis} has size {size}, but {expression} is {sizes[expression]}"
                raise self._misfit(name, tensor, fake, why)
            return
        known = expression.subs(sizes)
        if known.is_number and int(known) != size:
            why = f"axis {axis} has size {size}, but {expression} is {known}"
            raise self._misfit(name, tensor, fake, why)

    def _misfit(self, name: str, tensor: Tensor, fake: torch.Tensor, why: str) -> SpecViolation:
        return SpecViolation(
            "ShapeMismatch",
            f"the argument {name} is {tensor.type}, but the module was exported for "
            f"{list(fake.shape)}: {why}",
            "give that shape, or export it again with dynamic_shapes=",
        )

    # -- out -------------------------------------------------------------------------------------

    def finish(self, module: Module, given: list[Any], results: Any) -> Any:
        """The results as the model nests them; what it writes to buffers and arguments is
        assigned."""
        flat: list[Any] = []
        for spec, value in zip(self.signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                assign(module, self.owners[spec.target], value)
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                _write_argument(spec.target, given[self.names.index(spec.target)], value)
            elif spec.kind is OutputKind.USER_OUTPUT:
                flat.append(value)
            elif spec.kind is not OutputKind.TOKEN:
                raise Unimplemented(str(spec.kind), "a result of this kind")
        return _as_containers(torch_tree.tree_unflatten(flat, self.spec.out_spec))

    def result_names(self) -> Iterator[str]:
        """What the tensors among the results are called: by the keys and attributes that lead to
        each, or by its number."""
        spec = self.spec.out_spec
        nested = torch_tree.tree_unflatten(range(spec.num_leaves), spec)
        paths = [path for path, _ in torch_tree.tree_flatten_with_path(nested)[0]]
        specs = self.signature.output_specs
        results = [each.arg for each in specs if each.kind is OutputKind.USER_OUTPUT]
        kept = (n for n, arg in enumerate(results) if isinstance(arg, TensorArgument))
        for number, leaf in enumerate(kept):
            keys = [str(getattr(key, "key", getattr(key, "name", ""))) for key in paths[leaf]]
            yield "_".join(filter(None, keys)) or f"out{number}"


def _write_argument(name: str, argument: Any, value: Tensor) -> None:
    if not isinstance(argument, Tensor):
        raise UserError(
            f"the model writes to its argument {name}; give a tensor of Weft for it",
            "ArgumentWritten",
        )
    argument.become(value)


def _as_containers(value: Any) -> Any:
    """Results in containers of Python: a model's own classes become dicts."""
    if isinstance(value, dict):
        return {key: _as_containers(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_as_containers, value))
    if isinstance(value, list | tuple):
        return type(value)(_as_containers(each) for each in value)
    return value


def assign(module: Module, name: str, value: Tensor) -> None:
    """Set the parameter or buffer with a dotted name."""
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, last, value)


def _tree(source: Source, state: Mapping[str, Tensor], buffers: set[str]) -> TorchModule:
    """The parameters and buffers as parts in parts."""

    def build(prefix: str, names: list[str], root: bool) -> Module:
        heads: dict[str, list[str]] = {}
        for name in names:
            head = name.removeprefix(prefix).partition(".")[0]
            heads.setdefault(head, []).append(name)
        own = tuple(head for head in heads if prefix + head in buffers)
        made: Any = blank((_root if root else _part_class)(own))
        if root:
            object.__setattr__(made, "source", source)
        for head, inside in heads.items():
            name = prefix + head
            leaf = state[name] if name in state else build(name + ".", inside, False)
            object.__setattr__(made, head, leaf)
        return made  # type: ignore[no-any-return]

    found = build("", list(state), True)
    assert isinstance(found, TorchModule)
    return found


def _owners(program: ExportedProgram) -> dict[str, str]:
    """For every parameter and buffer, the first name that its tensor has: weights that two names
    share stay one."""
    owners: dict[str, str] = {}
    first: dict[Any, str] = {}
    for spec in program.graph_signature.input_specs:
        name = str(spec.target)
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER) or (
            name not in program.state_dict
        ):
            continue
        tensor = program.state_dict[name]
        check_tensor(tensor)
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        owners[name] = first.setdefault(place, name) if tensor.numel() else name
    return owners


@contextmanager
def _stops_marked(graph: Any) -> Iterator[None]:
    """What was computed under `torch.no_grad()` is detached meanwhile: decompositions put it in
    line with the rest, and nothing would say that gradients end there."""
    detach = torch.ops.aten.detach.default
    marked: list[tuple[Any, Any]] = []
    for node in list(graph.nodes):
        if name_of(node) != NESTED or node.args[0]:
            continue
        for result in list(node.users):
            with graph.inserting_after(result):
                stop = graph.call_function(detach, (result,))
            stop.meta = dict(result.meta)
            users = [user for user in result.users if user not in (stop, graph.output_node())]
            for user in users:
                user.replace_input_with(result, stop)
            marked.append((result, stop))
    try:
        yield
    finally:
        for result, stop in marked:
            stop.replace_all_uses_with(result)
            graph.erase_node(stop)


@public
def from_exported(program: Any) -> Any:
    """A module of Weft that does what an exported program of torch does, with its parameters and
    buffers under the same names. It can be called, and be under `jit`, `grad` and `vmap`."""
    if not isinstance(program, ExportedProgram):
        raise UserError(
            f"an ExportedProgram of torch.export is wanted, not {a_type(program)}; for a module "
            "there is from_module(module, example)",
            "NotExported",
        )
    with _stops_marked(program.graph_module.graph):
        ready = program.run_decompositions(decompositions.of_export())
    check_known(ready.graph_module)
    signature = ready.graph_signature
    owners = _owners(ready)
    state = {
        name: from_tensor(ready.state_dict[name].detach(), copy=True)
        for name in dict.fromkeys(owners.values())
    }
    source = Source(ready, owners)
    for name, value in ready.constants.items():
        if not isinstance(value, torch.Tensor):
            raise Unimplemented("constant", f"{name} is {a_type(value)}, not a tensor")
    return _tree(source, state, set(signature.buffers))


@public
def from_module(
    module: Any,
    example: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Any:
    """A module of torch as one of Weft: exported for arguments like these (a tensor, or a tuple of
    arguments), then imported. `dynamic_shapes` is torch.export's."""
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"a torch.nn.Module is wanted, not {a_type(module)}", "NotAModule")
    args = example if isinstance(example, tuple) else (example,)
    try:
        program = torch.export.export(
            module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
        )
    except Exception as error:
        said = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise UserError(
            f"torch cannot export {type(module).__name__} with these arguments: {said}; call it "
            "with them first, and give arguments that it takes",
            "ExportFailed",
        ) from None
    made = from_exported(program)
    made.source.name = type(module).__name__
    return made
