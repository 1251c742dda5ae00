"""Derivatives of Python functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`.

A function is traced to a PTIR program, the program is differentiated, and the result is captured
where the derivative was asked for. So derivatives compose: with each other, with `jit`, with
control flow; and forward and backward are one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from weft.foundation.errors import SpecViolation, UserError
from weft.ops.array.creation import asarray
from weft.ops.calls import explained
from weft.ops.graph.context import current
from weft.ops.graph.forms import plain_form
from weft.ops.graph.inline import inline
from weft.ops.graph.node import Node
from weft.ops.lines import user_line
from weft.ops.pytree import Structure, flatten, unflatten
from weft.ops.tensor import Tensor, tensor_method
from weft.ops.tracing import Plain, Trace, trace
from weft.ptir.gradient import gradient as program_gradient
from weft.ptir.gradient import jvp as program_jvp
from weft.ptir.gradient import vjp as program_vjp
from weft.ptir.ir import Program
from weft.ptir.types import TensorType


@dataclass
class _Traced:
    """A function traced on arguments: its program, the nodes it runs on, and what is asked for."""

    trace: Trace
    nodes: list[Node]
    structures: list[Structure]
    """The structure of every argument that is differentiated."""
    wanted: list[int]
    """The positions of their leaves among the inputs."""

    def emit(self, program: Program, more: Sequence[Node] = ()) -> list[Tensor]:
        """The results of a program that takes the inputs of this one, and more."""
        arena = current()
        return [Tensor(n) for n in inline(program, [*self.nodes, *more], arena, user_line())]

    def results(self, tensors: Sequence[Tensor]) -> Any:
        """The function's own result, from the first of a derivative's results."""
        supply = iter(tensors)
        leaves = [next(supply) if o is None else o.value for o in self.trace.outputs]
        return unflatten(self.trace.structure, leaves)

    @property
    def count(self) -> int:
        """How many tensors the function returns."""
        return len(self.trace.program.main.results)

    def per_argument(self, tensors: Sequence[Tensor]) -> list[Any]:
        """One derivative for every leaf that is asked for, in the shape of the arguments."""
        supply = iter(tensors)
        return [
            unflatten(shape, [next(supply) for _ in range(shape.leaf_count)])
            for shape in self.structures
        ]


def _trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: Sequence[int],
) -> _Traced:
    leaves, structure = flatten((tuple(args), kwargs))
    values = [_argument(leaf) for leaf in leaves]
    tensors = [value for value in values if isinstance(value, Tensor)]

    def call(traced: list[Tensor]) -> Any:
        supply = iter(traced)
        filled = [v.value if isinstance(v, Plain) else next(supply) for v in values]
        own, named = unflatten(structure, filled)
        return function(*own, **named)

    found = trace(function, [t.type for t in tensors], call, [t.weak for t in tensors])
    nodes = [*(t._node for t in tensors), *(c.node for c in found.captured)]
    children = structure.children[0].children
    wanted = _positions(values, children, set(argnums))
    return _Traced(found, nodes, [children[n] for n in sorted(set(argnums))], wanted)


def _positions(
    values: Sequence[Tensor | Plain], arguments: Sequence[Structure], argnums: set[int]
) -> list[int]:
    """The positions, among the tensors, of the leaves of these arguments."""
    owners = [n for n, shape in enumerate(arguments) for _ in range(shape.leaf_count)]
    found, position = [], 0
    for index, value in enumerate(values):
        asked = index < len(owners) and owners[index] in argnums
        if asked and isinstance(value, Plain):
            raise UserError(
                f"derivatives are taken with respect to tensors, but argument {owners[index]} "
                f"contains a {type(value.value).__name__}"
            )
        if asked:
            found.append(position)
        position += isinstance(value, Tensor)
    return found


def _argument(leaf: Any) -> Tensor | Plain:
    """A number or array as a tensor; what is neither goes to the function as it is."""
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, bool | str) or leaf is None:
        return Plain(leaf)
    try:
        return asarray(leaf)
    except (UserError, SpecViolation, TypeError):
        return Plain(leaf)


def _argnums(given: Any, count: int, name: str) -> tuple[list[int], bool]:
    """The positions, and whether a single one was given."""
    single = isinstance(given, int)
    numbers = [given] if single else list(given)
    for number in numbers:
        if not isinstance(number, int) or not -count <= number < count:
            raise UserError(
                f"argnums names argument {number!r}, but {name} was called with {count}"
            )
    return [number % count for number in numbers], single


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns `(value, gradient)`.

    `function` returns a float scalar, or with `has_aux` a pair of one and anything else. `argnums`
    says with respect to which arguments; their gradients have the structure of the arguments, and
    are a tuple where several are asked for.
    """
    name = getattr(function, "__name__", "function")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            numbers, single = _argnums(argnums, len(args), name)
            traced = _trace(function, args, kwargs, numbers)
            _check_scalar(traced.trace, has_aux, name)
            made = program_gradient(traced.trace.program, traced.wanted)
        except (SpecViolation, UserError) as error:
            raise explained("grad", error, user_line()) from None
        results = traced.emit(made)
        value = traced.results(results[: traced.count])
        found = traced.per_argument(results[traced.count :])
        places = sorted(set(numbers))
        return value, found[0] if single else tuple(found[places.index(n)] for n in numbers)

    return call


def _check_scalar(found: Trace, has_aux: bool, name: str) -> None:
    shape = found.structure
    if has_aux and (shape.kind is not tuple or len(shape.children) != 2):
        raise UserError(f"with has_aux, {name} must return a pair: the scalar, and anything else")
    first = shape.children[0] if has_aux else shape
    kind = found.program.main.results[0] if found.program.main.results else None
    scalar = isinstance(kind, TensorType) and not kind.shape and kind.dtype.is_float
    if first.kind is not None or not scalar or found.outputs[0] is not None:
        shown = "nothing" if kind is None else str(kind)
        raise SpecViolation(
            "GradientOfNonScalar",
            f"{name} returns {shown}, but a gradient is taken of one float scalar",
            "reduce it with sum or mean, return other results with has_aux=True, or use vjp",
        )


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of a scalar function; with `has_aux` a pair of it and
    the rest of the function's result."""
    both = value_and_grad(function, argnums, has_aux=has_aux)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return call


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`(function(*primals), pullback)`: the pullback takes a cotangent in the structure of the
    result and answers the cotangents of all arguments, as a tuple."""
    numbers = list(range(len(primals)))
    traced = _trace(function, primals, {}, numbers)
    value = traced.results(traced.emit(traced.trace.program))
    made = program_vjp(traced.trace.program, traced.wanted)

    def pullback(cotangent: Any) -> Any:
        leaves, shape = flatten(cotangent)
        if shape != traced.trace.structure:
            raise UserError("[vjp] the cotangent is not nested as the result is")
        kinds = [k for k in traced.trace.results if k.dtype.is_float or k.dtype.is_complex]
        smooth = [
            leaf for leaf, out in zip(leaves, traced.trace.outputs, strict=True) if out is None
        ]
        given = [
            asarray(leaf, dtype=kind.dtype)._node
            for leaf, kind in zip(smooth, traced.trace.results, strict=True)
            if kind in kinds
        ]
        results = traced.emit(made, given)
        return tuple(traced.per_argument(results[traced.count :]))

    return value, pullback


def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """`(function(*primals), tangent)`: the derivative of the function in the direction of the
    tangents, in the structure of the result."""
    if len(primals) != len(tangents):
        raise UserError(f"[jvp] {len(primals)} arguments but {len(tangents)} tangents")
    traced = _trace(function, primals, {}, list(range(len(primals))))
    made = program_jvp(traced.trace.program, traced.wanted)
    leaves = [leaf for tangent in tangents for leaf in flatten(tangent)[0]]
    kinds = [traced.trace.program.main.parameters[i] for i in traced.wanted]
    given = [
        asarray(leaf, dtype=kind.dtype)._node
        for leaf, kind in zip(leaves, kinds, strict=True)
        if isinstance(kind, TensorType)
    ]
    results = traced.emit(made, given)
    return traced.results(results[: traced.count]), traced.results(results[traced.count :])


@tensor_method
def stop_gradient(x: Tensor) -> Tensor:
    """The same elements; no gradient passes."""
    made = plain_form("stop_gradient", x._node.type)
    return Tensor(current().emit(made, (x._node,), user_line()))
