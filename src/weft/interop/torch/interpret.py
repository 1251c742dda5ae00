"""Graphs of torch.fx carried out on Weft's tensors, op by op.

Run under a trace, this is the import: what comes out is a program of PTIR that the verifier has
seen, with the lines of the user's model. Every result is compared with what torch says of it: a
rule that gives another dtype or shape is an error, never a wrong answer.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from weft.foundation.dims import UNKNOWN, Dim, Symbol, add_dims, multiply_dims
from weft.foundation.errors import SizeWanted, Unimplemented, WeftError
from weft.interop.torch import rules
from weft.interop.torch.dtypes import OURS, ours
from weft.interop.torch.lines import at_line, shown
from weft.interop.torch.tensors import from_tensor
from weft.ops import namespace
from weft.ops.tensor import Tensor

IGNORED: Final = frozenset(
    f"aten.{name}"
    for name in (
        "_assert_tensor_metadata.default", "_assert_async.msg", "_assert_async.default",
        "_assert_scalar.default", "sym_constrain_range.default",
        "sym_constrain_range_for_size.default",
    )
)  # fmt: skip
"""Checks of what the call has checked already, or that torch makes of its own work."""
INSTEAD: Final = {
    "aten.nonzero.default": "how large its result is depends on the data: keep the mask, and write "
    "torch.where(mask, a, b) or a product with it",
    "aten._local_scalar_dense.default": "a number of a tensor would decide what is computed: use "
    "the tensor itself in the place of .item()",
}
"""What to write in the place of ops that nobody can compile, by their names."""
UNHEARD: Final = frozenset(
    (
        "device",
        "layout",
        "memory_format",
        "pin_memory",
        "generator",
        "non_blocking",
        "requires_grad",
    )
)
"""Arguments that say nothing about values."""
_SIZE: Final[dict[str, Callable[..., Any]]] = {
    "aten.sym_size.int": lambda x, axis: x.shape[axis],
    "aten.sym_numel.default": lambda x: math.prod(x.shape),
}
_OPEN: Final[dict[Any, Callable[..., Dim]]] = {
    operator.mul: multiply_dims,
    operator.add: add_dims,
    operator.sub: lambda *sizes: UNKNOWN,
    operator.floordiv: lambda *sizes: UNKNOWN,
}
_ROUNDING: Final = (
    "_operator",
    "math",
    "builtins",
    "torch",
    "torch.fx.experimental.symbolic_shapes",
)


class NodeFailed(Exception):
    """An op could not be carried out; the cause is the error."""

    def __init__(self, node: Node, error: WeftError) -> None:
        self.node = node
        self.error = error
        super().__init__(str(error))


def name_of(node: Node) -> str:
    """An op's name: `aten.add.Tensor`."""
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def is_arithmetic(node: Node) -> bool:
    """Whether a node computes with Python's numbers: sizes, and parts of tuples."""
    target = node.target
    if isinstance(target, str | torch._ops.OpOverload | torch._ops.HigherOrderOperator):
        return False
    return getattr(target, "__module__", None) in _ROUNDING


def is_known(node: Node) -> bool:
    """Whether there is a rule for a node."""
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    name = name_of(node)
    if (
        is_arithmetic(node)
        or name in IGNORED
        or name in _SIZE
        or name in (NESTED, WRITES, *CONTROL)
    ):
        return True
    return rules.found(name) is not None


_MISTOLD: Final = frozenset(["aten.lstm.input"])
"""Ops of which torch 2.11 says the types of later results wrongly: the first alone is compared."""
_BY_DEVICE: Final = frozenset(
    [
        "aten.native_layer_norm.default",
        "aten._native_batch_norm_legit.no_stats",
        "aten._native_batch_norm_legit_functional.default",
        "aten._batch_norm_with_update_functional.default",
    ]
)
"""Ops whose later results are wide on a GPU and narrow on a CPU: they get what torch says."""
WRITES: Final = "aten.copy_.default"
"""A result written back into an input, at the end of a graph."""
_REPORT: Final = "aten._linalg_check_errors"
NESTED: Final = "wrap_with_set_grad_enabled"
"""A part of a graph that was written under `torch.no_grad()`."""
CONTROL: Final = ("cond", "while_loop")
"""Ops whose operands are parts of the graph."""


def is_report(node: Node) -> bool:
    """Whether a node raises torch's own error for a matrix that has no inverse, or no factors: it
    computes nothing but the token of what comes next. It is left to torch without a word, or out,
    where there is no torch."""
    return name_of(node) == "with_effects" and str(node.args[1]).startswith(_REPORT)


def nodes_without_rule(module: GraphModule) -> list[Node]:
    """The nodes that there is no rule for, in parts of the graph too."""
    found = []
    for part in module.modules():
        if isinstance(part, GraphModule):
            idle = _only_checked(part)
            found += [node for node in part.graph.nodes if node not in idle and not is_known(node)]
    return found


def _only_checked(module: GraphModule) -> set[Node]:
    """Checks, and what nothing else uses: the number that an assertion of the model reads."""
    found: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op != "call_function":
            continue
        if name_of(node) in IGNORED or (node.users and all(each in found for each in node.users)):
            found.add(node)
    return found


def check_known(module: GraphModule) -> None:
    """Every op has a rule; else all that have none are named, with the user's lines."""
    lost: dict[str, list[str]] = {}
    for node in nodes_without_rule(module):
        if is_report(node):
            continue
        lost.setdefault(name_of(node), []).append(shown(node).strip(" ()"))
    if lost:
        raise Unimplemented(", ".join(lost), _tell_lost(lost))


def _tell_lost(lost: dict[str, list[str]]) -> str:
    parts = []
    for name, lines in list(lost.items())[:20]:
        places = ", ".join(sorted({line for line in lines if line})[:3])
        told = f"{name}, {len(lines)} times" + (f", at {places}" if places else "")
        parts.append(told + (f" ({INSTEAD[name]})" if name in INSTEAD else ""))
    more = f"; and {len(lost) - 20} more" if len(lost) > 20 else ""
    return (
        f"the graph has ops that Weft has no rule for: {'; '.join(parts)}{more}; give one with "
        "@weft.torch.rule(name), a function of Weft's tensors"
    )


def carry_out(
    module: GraphModule,
    inputs: Sequence[Any],
    wanted: Sequence[Any] | None = None,
    lost: Container[Node] = (),
) -> Any:
    """The results of a graph for these inputs, nested as torch nests them; or what some of its
    nodes give. Nodes that are `lost` give zeros: somebody else carries them out."""
    given = iter(inputs)
    values: dict[Node, Any] = {}
    idle = _only_checked(module)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = _attribute(module, node)
        elif node.op == "output":
            return _fill_arguments(node.args[0] if wanted is None else list(wanted), values)
        elif node in idle:
            values[node] = None
        elif node in lost:
            values[node] = _stand_in(node.meta.get("val"))
        elif is_report(node):
            values[node] = [values[node.args[0]]]
        elif name_of(node) != WRITES:
            values[node] = _run_node(node, values)
        else:
            values[node] = _fill_arguments(node.args[1], values)
    return None


def _stand_in(fake: Any) -> Any:
    """Zeros of the type that torch says."""
    if isinstance(fake, list | tuple):
        return [_stand_in(each) for each in fake]
    if isinstance(fake, torch.Tensor):
        return namespace.zeros([sized(n) for n in fake.shape], dtype=ours(fake.dtype))
    return sized(fake) if isinstance(fake, torch.SymInt) else fake


def sized(size: Any) -> int:
    """A size as a number: what it was when torch traced it."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    if hint is None:
        raise Unimplemented(str(size), "a size that depends on the data")
    return int(hint)


def _attribute(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value


def _stop_gradient(value: Any) -> Any:
    return namespace.stop_gradient(value) if isinstance(value, Tensor) else value


def _run_node(node: Node, values: dict[Node, Any]) -> Any:
    name = name_of(node)
    args, more = _fill_arguments(node.args, values), _fill_arguments(node.kwargs, values)
    if name == NESTED:
        made = carry_out(args[1], args[2:])
        return made if args[0] else [_stop_gradient(each) for each in made]
    if is_arithmetic(node):
        return _compute_sizes(node, args, more)
    if name in _SIZE:
        return _SIZE[name](*args)
    rule = {"cond": _choose, "while_loop": _repeat}.get(name) or rules.found(name)
    if rule is None:
        raise NodeFailed(node, Unimplemented(name, "there is no rule for it"))
    plain = {key: _translate_setting(value) for key, value in more.items() if key not in UNHEARD}
    try:
        made = at_line(node, lambda: rule(*map(_translate_setting, args), **plain))
        return _check_result(node, name, made)
    except WeftError as error:
        raise NodeFailed(node, error) from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        why = f"its rule does not take these arguments: {error}"
        raise NodeFailed(node, Unimplemented(name, why)) from error


def _choose(predicate: Any, on_true: GraphModule, on_false: GraphModule, operands: Any) -> Any:
    """The part that the predicate chooses, of operands some of which may be sizes."""

    def branch(part: GraphModule) -> Callable[..., Any]:
        def call(*tensors: Any) -> Any:
            given = iter(tensors)
            return carry_out(part, [next(given) if isinstance(x, Tensor) else x for x in operands])

        return call

    holds = namespace.reshape(predicate, ()) if isinstance(predicate, Tensor) else bool(predicate)
    tensors = [each for each in operands if isinstance(each, Tensor)]
    return namespace.cond(holds, branch(on_true), branch(on_false), *tensors)


def _repeat(condition: GraphModule, body: GraphModule, carried: Any, constant: Any) -> Any:
    """The body as long as the condition holds; both read the constants, too."""
    if not all(isinstance(each, Tensor) for each in carried):
        raise Unimplemented("while_loop", "a number is carried; carry a tensor of rank 0")

    def holds(carry: Any) -> Any:
        found = carry_out(condition, [*carry, *constant])
        return namespace.reshape(found[0] if isinstance(found, list) else found, ())

    return namespace.while_loop(holds, lambda carry: carry_out(body, [*carry, *constant]), carried)


def _compute_sizes(node: Node, args: Any, more: Any) -> Any:
    """Python's arithmetic on sizes, and elements of tuples."""
    function: Any = node.target
    if function is operator.getitem:
        found = args[0][args[1]]
        if found is None and isinstance(node.meta.get("val"), torch.Tensor):
            source = node.args[0]
            assert isinstance(source, Node)
            why = f"its result {args[1]} is not computed here"
            raise NodeFailed(source, Unimplemented(name_of(source), why))
        return found
    if any(isinstance(each, Symbol) for each in args):
        return _open_size(function, args)
    return function(*args, **more)


def _open_size(function: Any, args: Any) -> Dim:
    """Arithmetic on open sizes: what it gives is open, and has no name."""
    if function in _OPEN:
        return _OPEN[function](*args)
    raise SizeWanted("SizeWanted", f"the size {args[0]} is computed with")


def _fill_arguments(value: Any, values: dict[Node, Any]) -> Any:
    """Arguments with the values of nodes in their place."""
    if isinstance(value, Node):
        return values[value]
    if isinstance(value, list | tuple):
        return [_fill_arguments(each, values) for each in value]
    if isinstance(value, dict):
        return {key: _fill_arguments(each, values) for key, each in value.items()}
    return value


def _translate_setting(value: Any) -> Any:
    return ours(value) if isinstance(value, torch.dtype) else value


def _check_result(node: Node, name: str, made: Any) -> Any:
    """What a rule gave, which must be of the types that torch says."""
    wanted = node.meta.get("val")
    if name in _MISTOLD:
        wanted = wanted[:1]
    if name in _BY_DEVICE:
        made = [x.astype(ours(fake.dtype)) for x, fake in zip(made, wanted, strict=True)]
    single = not isinstance(wanted, list | tuple)
    pairs = zip([made], [wanted], strict=True) if single else zip(made, wanted, strict=False)
    for found, fake in pairs:
        if (
            isinstance(fake, torch.Tensor)
            and isinstance(found, Tensor)
            and not _has_type_of(found, fake)
        ):
            raise Unimplemented(
                name, f"its rule gives {found.type}, where torch has {fake.dtype}{list(fake.shape)}"
            )
    return made


def _has_type_of(found: Tensor, fake: torch.Tensor) -> bool:
    if found.dtype is not OURS.get(fake.dtype) or found.ndim != fake.ndim:
        return False
    return all(
        not isinstance(theirs, int) or not isinstance(mine, int) or mine == theirs
        for mine, theirs in zip(found.shape, fake.shape, strict=True)
    )
