"""Control flow that stays in the program: `cond`, `while_loop` and `scan`.

Each body is traced into a region. A region sees nothing outside itself, so tensors that a body uses
without taking them are passed along: as further operands of `cond`, as carries that never change of
a loop. The token of effects is passed along so, too, and is changed by those in a body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import as_tensor, listed
from weft.ops.array.creation import asarray
from weft.ops.calls import check_function, public
from weft.ops.default_backend import at_home
from weft.ops.effects import after_body, first_token, follow, last_token
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, within
from weft.ops.graph.node import Fragment, Node
from weft.ops.graph.program import as_fragment, captured
from weft.ops.mode import keys_withheld
from weft.ops.module_state import Watched
from weft.ops.pytree import Structure, alike, flatten, leaf_names, unflatten
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.types import TensorType


@dataclass
class Body:
    """A traced body: its parameters, its results, and what it uses of the outside."""

    arena: Arena
    parameters: list[Node]
    results: list[Node]
    structure: Structure
    captured: list[Node]


def trace_body(
    name: str, function: Callable[..., Any], kinds: Sequence[TensorType], structure: Structure
) -> Body:
    """The function on traced arguments of these types."""
    outer = current()
    arena = Arena(outer.backend, name=name, tracing=True, parent=outer)
    parameters = [arena.parameter(kind) for kind in kinds]
    with within(arena), keys_withheld(f"the {name} of control flow"):
        arguments = unflatten(structure, [Tensor(node) for node in parameters])
        watched = Watched(arguments)
        result = function(*arguments)
        watched.check_returned(name, result)
        leaves, shape = flatten(result)
        results = [_result_as_tensor(name, leaf)._node for leaf in leaves]
    token = last_token(arena)
    roots = results if token is None else [*results, token]
    return Body(arena, parameters, results, shape, captured(arena, roots))


def _result_as_tensor(name: str, leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    try:
        return asarray(leaf)
    except (UserError, TypeError):
        raise UserError(f"{name} must return tensors, not {type(leaf).__name__}") from None


def _merge_captures(*bodies: Body) -> list[Node]:
    """What any of the bodies captured, once each."""
    found = {node for body in bodies for node in body.captured}
    return sorted(found, key=lambda node: node.id)


def _fragment(body: Body, captured: Sequence[Node], roots: Sequence[Node]) -> Fragment:
    return as_fragment([*body.parameters, *captured], roots, body.arena.parts)


def _effects_follow(
    result: Handle, token: Node | None, place: int, results: Sequence[Tensor]
) -> None:
    """Where the bodies of control flow have effects, the token at this place of its results is what
    later ones follow."""
    if token is not None:
        handles = [result] if isinstance(result.type, TensorType) else list(result)
        follow(current(), handles[place].node, [tensor._node for tensor in results])


def _export(session: Session, result: Handle, count: int, grad: bool) -> list[Tensor]:
    handles = [result] if isinstance(result.type, TensorType) else list(result)
    return [session.export(handle, requires_grad=grad) for handle in handles[:count]]


def _same_types(what: str, left: Sequence[Node], right: Sequence[Node], names: list[str]) -> None:
    for name, a, b in zip(names, left, right, strict=True):
        if a.type != b.type:
            raise SpecViolation(
                "RegionSignatureMismatch",
                f"{what}{name}: {a.type} and {b.type}",
                "make both the same, with astype, reshape or broadcast_to",
            )


def _same_structure(what: str, left: Structure, right: Structure) -> None:
    if not alike(left, right):
        raise SpecViolation(
            "RegionSignatureMismatch", f"{what} are nested in different ways", "return the same"
        )


@public
@at_home
def cond(
    predicate: Any, on_true: Callable[..., Any], on_false: Callable[..., Any], *args: Any
) -> Any:
    """`on_true(*args)` where the predicate, a boolean scalar, holds, and else `on_false(*args)`."""
    chosen = as_tensor(predicate) if not isinstance(predicate, bool) else asarray(predicate)
    if chosen.ndim or chosen.dtype.name != "i1":
        raise SpecViolation(
            "CondPredicateInvalid",
            f"the predicate is {chosen.dtype} of shape {listed(chosen.shape)}",
            "it must be one boolean; reduce it with all or any",
        )
    leaves, structure = flatten(args)
    tensors = [asarray(leaf) for leaf in leaves]
    kinds = [tensor.type for tensor in tensors]
    yes = trace_body("on_true", on_true, kinds, structure)
    no = trace_body("on_false", on_false, kinds, structure)
    _same_structure("the results of on_true and on_false", yes.structure, no.structure)
    names = leaf_names(yes.structure, "result")
    _same_types("on_true and on_false differ in their ", yes.results, no.results, names)
    outside = _merge_captures(yes, no)
    token = first_token(yes.arena, no.arena)
    passed = [] if token is None else [token]
    fragments = tuple(
        _fragment(body, outside, [*body.results, *after_body(body.arena, passed)])
        for body in (yes, no)
    )
    session = Session.here()
    operands = [chosen._node, *(t._node for t in tensors), *outside]
    made = session.append(
        Cond(0, 1), *(Handle(session, node) for node in operands), fragments=fragments
    )
    grad = any(tensor.requires_grad for tensor in tensors)
    results = _export(session, made, len(yes.results), grad)
    _effects_follow(made, token, -1, results)
    return unflatten(yes.structure, results)


@public
@at_home
def while_loop(condition: Callable[..., Any], body: Callable[..., Any], init: Any) -> Any:
    """Repeat `carry = body(carry)` as long as `condition(carry)` holds; the last carry."""
    leaves, structure = flatten((init,))
    tensors = [asarray(leaf) for leaf in leaves]
    kinds = [tensor.type for tensor in tensors]
    test = trace_body("condition", condition, kinds, structure)
    step = trace_body("body", body, kinds, structure)
    if len(test.results) != 1 or str(test.results[0].type) != "i1[]":
        found = ", ".join(str(node.type) for node in test.results)
        raise SpecViolation(
            "CondPredicateInvalid",
            f"condition must return one boolean scalar, not {found}",
            "reduce it with all or any",
        )
    _same_structure("the carry and what body returns", structure.children[0], step.structure)
    names = leaf_names(step.structure, "carry")
    _same_types("body changes the type of the ", step.parameters, step.results, names)
    outside = _merge_captures(test, step)
    fragments = (
        _fragment(
            test, outside, [test.results[0], *test.parameters, *after_body(test.arena, outside)]
        ),
        _fragment(step, outside, [*step.results, *after_body(step.arena, outside)]),
    )
    session = Session.here()
    operands = [*(t._node for t in tensors), *outside]
    made = session.append(
        While(0, 1), *(Handle(session, node) for node in operands), fragments=fragments
    )
    results = _export(session, made, len(tensors), False)
    token = first_token(test.arena, step.arena)
    place = operands.index(token) if token is not None else 0
    _effects_follow(made, token, place, results)
    return unflatten(step.structure, results)


@public
@at_home
def scan(
    body: Callable[..., Any], init: Any, inputs: Any = None, *, length: int | None = None
) -> tuple[Any, Any]:
    """`carry, y = body(carry, x)` for each slice x of the inputs along their first axis; the last
    carry, and the ys stacked along a new first axis. `length` says how often where there are no
    inputs."""
    check_function("scan", body)
    carries, carry_shape = flatten(init)
    scanned, input_shape = flatten(inputs)
    carry = [asarray(leaf) for leaf in carries]
    slices = [asarray(leaf) for leaf in scanned]
    counter = not slices
    if counter:
        if length is None:
            raise UserError("scan without inputs needs its length")
        if not isinstance(length, int) or length < 0:
            raise UserError(f"the length of a scan is a number of steps, not {length!r}")
        slices = [asarray(list(range(length)))] if length else [asarray([0])[:0]]
    _check_lengths(slices)
    kinds = [*(t.type for t in carry), *(t.type.with_shape(t.shape[1:]) for t in slices)]

    def step(*values: Tensor) -> Any:
        own = unflatten(carry_shape, values[: len(carry)])
        given = None if counter else unflatten(input_shape, values[len(carry) :])
        watched = Watched((own, given))
        result = body(own, given)
        watched.check_returned("body", result)
        if not isinstance(result, tuple) or len(result) != 2:
            raise UserError("the body of scan must return a pair: the next carry, and an output")
        return result

    flat = Structure(tuple, None, (Structure(None),) * len(kinds))
    traced = trace_body("body", step, kinds, flat)
    next_shape, output_shape = traced.structure.children
    _same_structure("the carry and the next carry", carry_shape, next_shape)
    count = len(carry)
    names = leaf_names(carry_shape, "carry")
    _same_types(
        "body changes the type of the ", traced.parameters[:count], traced.results[:count], names
    )
    return _emit_scan(traced, carry, slices, carry_shape, output_shape)


def _emit_scan(
    traced: Body,
    carry: list[Tensor],
    slices: list[Tensor],
    carry_shape: Structure,
    output_shape: Structure,
) -> tuple[Any, Any]:
    count = len(carry)
    outside = traced.captured
    order = [*traced.parameters[:count], *outside, *traced.parameters[count:]]
    passed = after_body(traced.arena, outside)
    roots = [*traced.results[:count], *passed, *traced.results[count:]]
    outputs = len(traced.results) - count
    if not roots:
        return unflatten(carry_shape, []), unflatten(output_shape, [])
    session = Session.here()
    operands = [*(t._node for t in carry), *outside, *(t._node for t in slices)]
    made = session.append(
        Scan(0, count + len(outside), outputs),
        *(Handle(session, node) for node in operands),
        fragments=(as_fragment(order, roots, traced.arena.parts),),
    )
    grad = any(t.requires_grad for t in (*carry, *slices))
    handles = [made] if isinstance(made.type, TensorType) else list(made)
    last = [session.export(h, requires_grad=grad) for h in handles[:count]]
    stacked = [session.export(h, requires_grad=grad) for h in handles[count + len(outside) :]]
    token = first_token(traced.arena)
    place = operands.index(token) if token is not None else 0
    _effects_follow(made, token, place, [*last, *stacked])
    return unflatten(carry_shape, last), unflatten(output_shape, stacked)


def _check_lengths(slices: Sequence[Tensor]) -> None:
    for tensor in slices:
        if not tensor.shape:
            raise SpecViolation(
                "RankMismatch", "scan goes along the first axis, and a scalar has none", "stack it"
            )
    sizes = {tensor.shape[0] for tensor in slices}
    if len(sizes) > 1:
        shapes = ", ".join(listed(tensor.shape) for tensor in slices)
        raise SpecViolation(
            "ShapeMismatch", f"the inputs {shapes} have first axes of different sizes", "slice them"
        )
