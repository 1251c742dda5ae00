"""Recipes: captured instruction sequences that are remembered by the types of their operands.

What a capture emits depends on the types of its operands and on its parameters, never on elements.
So it is carried out once on operands that are nothing but types, written down as a recipe, and from
then on the recipe is followed: one look-up, and one step an instruction.

    @recorded
    def sum(x: Handle, /, *, axis=None) -> Handle: ...

is written on handles and called with tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, overload

from weft.foundation.errors import InternalError, UserError, a_type
from weft.foundation.lines import Line, user_line
from weft.foundation.memo import forgettable
from weft.ops.arithmetic import as_tensor
from weft.ops.calls import MISTAKES, PYTHON_ERRORS, explained, refused
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import arena_abroad, arena_for
from weft.ops.graph.node import Form, Node
from weft.ops.graph.program import reachable
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

P = ParamSpec("P")
Step: TypeAlias = "tuple[Form, tuple[int, ...]] | tuple[TensorLiteral, None]"
"""An instruction on earlier values, or a constant. Values count from the operands on."""

_MOST_KEPT = 16_384
_recipes: dict[Hashable, Recipe] = {}
forgettable(_recipes.clear)


class Recipe:
    """The steps of a capture, which values are its results, and what holds them: a tuple or list
    type, or None for one result."""

    __slots__ = ("holder", "results", "steps")

    def __init__(
        self, steps: tuple[Step, ...], results: tuple[int, ...], holder: type | None
    ) -> None:
        self.steps = steps
        self.results = results
        self.holder = holder

    def follow(self, arena: Arena, operands: Sequence[Node], line: Line | None) -> list[Node]:
        """The results for these operands, captured in an arena."""
        values = list(operands)
        for what, slots in self.steps:
            if slots is None:
                values.append(arena.constant(what))  # type: ignore[arg-type]
            else:
                taken = tuple([values[slot] for slot in slots])
                values.append(arena.emit(what, taken, line))  # type: ignore[arg-type]
        return [values[slot] for slot in self.results]


# -- following -----------------------------------------------------------------------------------


def captured(
    emit: Callable[..., Any], operands: Sequence[Tensor], line: Line | None, *params: Hashable
) -> Any:
    """`emit(*handles, *params)` on these tensors, its handles as tensors. They want gradients where
    an operand does and fractions exist."""
    nodes = [tensor._node for tensor in operands]
    arena = arena_for(nodes[0])
    key = (emit, *[id(node.type) for node in nodes], params)
    recipe = _recipes.get(key)
    if recipe is None:
        recipe = _remember(key, _write_recipe(arena, nodes, emit, params, {}))
    return _wrap_results(recipe, recipe.follow(arena, nodes, line), operands)


def _wrap_results(recipe: Recipe, nodes: list[Node], operands: Sequence[Tensor]) -> Any:
    wanted = True in [tensor._wants_grad for tensor in operands]
    if recipe.holder is None:
        return _tensor_of_node(nodes[0], wanted)
    tensors = [_tensor_of_node(node, wanted) for node in nodes]
    make = getattr(recipe.holder, "_make", recipe.holder)
    return make(tensors)


def _tensor_of_node(node: Node, wants_grad: bool) -> Tensor:
    if wants_grad:
        dtype = node.tensor.dtype
        wants_grad = dtype.is_float or dtype.is_complex
    return Tensor(node, wants_grad)


@overload
def recorded(
    function: Callable[Concatenate[Handle, Handle, P], Handle],
) -> Callable[Concatenate[Any, Any, P], Tensor]: ...
@overload
def recorded(
    function: Callable[Concatenate[Handle, P], Handle],
) -> Callable[Concatenate[Any, P], Tensor]: ...
@overload
def recorded(
    function: Callable[Concatenate[Handle, P], tuple[Any, ...]],
) -> Callable[Concatenate[Any, P], Any]: ...
def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A public function on tensors from a capture on handles. Its parameters that are annotated
    `Handle` are tensors, all others part of the recipe's name. An error names the function and the
    user's line."""
    name = function.__name__.strip("_")
    count = list(inspect.get_annotations(function).values()).count("Handle")
    count -= inspect.get_annotations(function).get("return") == "Handle"

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        line = user_line()
        try:
            operands = [
                x
                if type(x) is Tensor and x.number is None
                else as_tensor(x, arena_abroad(args, kwargs))
                for x in args[:count]
            ]
            nodes = [tensor._node for tensor in operands]
            params = args[count:]
            key = (function, *[id(node.type) for node in nodes], params, *kwargs.items())
            try:
                recipe = _recipes.get(key)
            except TypeError:
                named = {key: _hashable(value) for key, value in kwargs.items()}
                return call(*operands, *_hashable(params), **named)
            arena = arena_for(nodes[0])
            if recipe is None:
                _hashable((params, *kwargs.values()))
                recipe = _remember(key, _write_recipe(arena, nodes, function, params, kwargs))
            return _wrap_results(recipe, recipe.follow(arena, nodes, line), operands)
        except MISTAKES as error:
            raise explained(name, error, line) from None
        except PYTHON_ERRORS as error:
            raise refused(call, args, kwargs, error) from None

    call.__signature__ = _public_signature(function)  # type: ignore[attr-defined]
    return call


def _hashable(value: Any) -> Any:
    """Parameters with tuples in place of lists, and no tensors: their elements may change."""
    if isinstance(value, list | tuple):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, Tensor) or not isinstance(value, Hashable):
        traced = isinstance(value, Tensor) and value.is_traced
        advice = (
            "an argument of a function under jit is one where static= names it"
            if traced
            else "a tensor with one element has .item()"
        )
        raise UserError(f"{a_type(value)} is given where a Python value is wanted; {advice}")
    return value


def _public_signature(function: Callable[..., Any]) -> inspect.Signature:
    """What users see: tensors."""
    signature = inspect.signature(function)
    shown = [
        p.replace(annotation="Tensor") if p.annotation == "Handle" else p
        for p in signature.parameters.values()
    ]
    result = signature.return_annotation
    return signature.replace(
        parameters=shown, return_annotation="Tensor" if result == "Handle" else result
    )


# -- writing -------------------------------------------------------------------------------------


def _remember(key: Hashable, recipe: Recipe) -> Recipe:
    if len(_recipes) >= _MOST_KEPT:
        _recipes.clear()
    _recipes[key] = recipe
    return recipe


def _write_recipe(
    arena: Arena,
    operands: Sequence[Node],
    emit: Callable[..., Any],
    params: Sequence[Any],
    options: dict[str, Any],
) -> Recipe:
    """The recipe of `emit(*handles, *params, **options)` for operands of these types."""
    scratch = Arena(arena.backend, name="recipe", tracing=True)
    session = Session(scratch)
    given = [scratch.parameter(_tensor_type(node)) for node in operands]
    result = emit(*[Handle(session, node) for node in given], *params, **options)
    single = isinstance(result, Handle)
    roots = [handle.node for handle in ([result] if single else result)]
    slots = {node: slot for slot, node in enumerate(given)}
    steps: list[Step] = []
    for node in reachable(roots):
        if node not in slots:
            slots[node] = len(slots)
            steps.append(_step_of_node(node, scratch, slots))
    holder = None if single else type(result)
    return Recipe(tuple(steps), tuple(slots[node] for node in roots), holder)


def _tensor_type(node: Node) -> TensorType:
    if not isinstance(node.type, TensorType):
        raise InternalError(f"the operand of a capture is the tuple {node.type}")
    return node.type


def _step_of_node(node: Node, home: Arena, slots: dict[Node, int]) -> Step:
    if isinstance(node.storage, TensorLiteral):
        return (node.storage, None)
    if node.form is None or node.arena is not home:
        raise InternalError("a capture uses a tensor that is none of its operands")
    return (node.form, tuple(slots[operand] for operand in node.operands))
