"""Derivatives of Python functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`, and
`checkpoint`, which trades their memory for time.

A function is traced to a PTIR program. Formulas that are a coarse op (attention, softmax, norms)
are found in it first, because those have better gradients than their parts; then it is
differentiated, and what its backward part can compute again for less than it costs to keep is not
kept. Forward and backward are one program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import numpy as np

from weft.coarse.raising import raise_program
from weft.driver.loading.plugins import described
from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation, UserError, a_type, with_article
from weft.foundation.lines import user_line
from weft.foundation.partitions import Classes
from weft.ops.arithmetic import as_tensor
from weft.ops.array.creation import asarray, zeros, zeros_like
from weft.ops.array.manipulation import reshape
from weft.ops.calls import check_function, explained, public
from weft.ops.default_backend import at_home
from weft.ops.graph.context import arena_for, current, within
from weft.ops.graph.forms import plain_form
from weft.ops.graph.node import Node
from weft.ops.pytree import Structure, alike, flatten, unflatten
from weft.ops.rank_classes import classes_of_nodes
from weft.ops.tensor import Tensor, from_array, tensor_method
from weft.ops.traced_function import (
    Arguments,
    TracedFunction,
    arguments_of,
    returning_tensors,
    trace_function,
)
from weft.ops.tracing import Plain, Trace
from weft.ptir.gradient import gradient as program_gradient
from weft.ptir.gradient import jvp as program_jvp
from weft.ptir.gradient import vjp as program_vjp
from weft.ptir.ir import Program
from weft.ptir.passes.recompute import kept_bytes, recompute
from weft.ptir.sameness import rank_counts
from weft.ptir.types import TensorType
from weft.ptir.vmap import vmap as program_vmap


@dataclass(frozen=True)
class _Question:
    """Which derivatives of a traced function are asked for."""

    traced: TracedFunction
    shapes: tuple[Structure, ...]
    """The structure of every argument that is differentiated."""
    leaves: tuple[tuple[int, Tensor], ...]
    """The leaves of these arguments, each with its position among the inputs."""

    @property
    def wanted(self) -> list[int]:
        """The inputs that are differentiated: floats and complex numbers."""
        return [position for position, leaf in self.leaves if is_smooth(leaf.type)]

    @cached_property
    def program(self) -> Program:
        """The function's program in ops whose gradients are good."""
        return raise_program(self.traced.trace.program)

    @cached_property
    def classes(self) -> list[Classes]:
        """Between which ranks of a mesh the inputs differ, where the function has collectives."""
        return classes_of_nodes(self.traced.nodes) if rank_counts(self.program) else []

    def with_less_kept(self, joint: Program) -> Program:
        """A derivative that keeps less between forward and backward, where that pays."""
        count, parts = self.traced.count, self.traced.trace.parts
        less = recompute(joint, count, parts)
        saves = less is not joint and kept_bytes(less, count) < kept_bytes(joint, count)
        return less if saves else joint

    def per_argument(self, tensors: Sequence[Tensor]) -> list[Any]:
        """One derivative for every leaf, nested as the arguments are; integers get zeros."""
        supply = iter(tensors)
        found = iter([next(supply) if is_smooth(x.type) else zeros_like(x) for _, x in self.leaves])
        return [unflatten(s, [next(found) for _ in range(s.leaf_count)]) for s in self.shapes]


def is_smooth(kind: TensorType) -> bool:
    """Whether there are derivatives of tensors of a type."""
    return kind.dtype.is_float or kind.dtype.is_complex


def _make_question(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    argnums: set[int],
    *,
    has_aux: bool = False,
) -> _Question:
    arguments = arguments_of(args, kwargs, argnums)
    leaves = tuple(_find_differentiated(arguments, argnums))
    shapes = tuple(arguments.positional[number] for number in sorted(argnums))
    whole = returning_tensors(function, has_aux=has_aux)
    traced = trace_function(whole, arguments, order=1)
    return _Question(traced, shapes, leaves)


def _find_differentiated(arguments: Arguments, argnums: set[int]) -> Iterator[tuple[int, Tensor]]:
    """The leaves of these arguments, with their positions among the tensors."""
    position = 0
    for leaf, owner in zip(arguments.leaves, arguments.owners, strict=False):
        if owner in argnums:
            if isinstance(leaf, Plain):
                raise UserError(
                    f"derivatives are taken with respect to tensors, but argument {owner} "
                    f"contains {a_type(leaf.value)}"
                )
            if not is_smooth(leaf.type) and arguments.positional[owner].kind is None:
                raise UserError(
                    f"argument {owner} is {leaf.type}; derivatives are taken with respect to "
                    "floats and complex numbers"
                )
            yield position, leaf
        position += isinstance(leaf, Tensor)


def _argnums(given: Any, count: int, name: str) -> tuple[list[int], bool]:
    """The positions, and whether a single one was given."""
    single = isinstance(given, int)
    if not single and not isinstance(given, list | tuple | range):
        raise UserError(f"argnums is a number or a tuple of numbers, not {given!r}")
    numbers = [given] if single else list(given)
    for number in numbers:
        if not isinstance(number, int) or not -count <= number < count:
            raise UserError(
                f"argnums names argument {number!r}, but {name} was called with {count} "
                "positional arguments"
            )
    return [number % count for number in numbers], single


def _function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")


@told
def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns `(value, gradient)`.

    `function` returns a float scalar, or with `has_aux` a pair of one and anything else. `argnums`
    says with respect to which arguments; their gradients have the structure of the arguments, and
    are a tuple where several are asked for. Integers inside an argument get zeros.
    """
    check_function("grad", function)

    @public
    @at_home
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            numbers, single = _argnums(argnums, len(args), _function_name(function))
            asked = _make_question(function, args, kwargs, set(numbers), has_aux=has_aux)
            _check_scalar(asked.traced.trace, has_aux, _function_name(function))
            slopes = program_gradient(asked.program, asked.wanted, classes=asked.classes)
            made = asked.with_less_kept(slopes)
            results = asked.traced.emit(made)
        except (SpecViolation, UserError) as error:
            raise explained("grad", error, user_line()) from None
        value = asked.traced.results(results[: asked.traced.count])
        found = asked.per_argument(results[asked.traced.count :])
        asked.traced.carry(results)
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
        raise SpecViolation(
            "GradientOfNonScalar",
            f"{name} returns {_show(found, first)}, but a gradient is taken of one float scalar",
            "reduce it with sum or mean, return other results with has_aux=True, or use vjp",
        )


def _show(found: Trace, first: Structure) -> str:
    """What a function returned where a scalar was wanted."""
    if not first.leaf_count:
        return "nothing"
    if first.kind is not None:
        return f"{with_article(first.kind.__name__)} of {first.leaf_count} values"
    plain = found.outputs[0]
    if plain is not None:
        return described(plain.value)
    return str(found.program.main.results[0])


@told
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


@public
@at_home
def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`(function(*primals), pullback)`: the pullback takes a cotangent in the structure of the
    result and answers the cotangents of all arguments, as a tuple."""
    check_function("vjp", function)
    asked = _make_question(function, primals, {}, set(range(len(primals))))
    traced = asked.traced
    results = traced.emit(traced.trace.program)
    value = traced.results(results)
    traced.carry(results)
    made = program_vjp(asked.program, asked.wanted, classes=asked.classes)

    @public
    def pullback(cotangent: Any) -> Any:
        leaves, shape = flatten(cotangent)
        if not alike(shape, traced.trace.structure):
            raise UserError("the cotangent is not nested as the result is")
        outputs = zip(leaves, traced.trace.outputs, strict=True)
        given = [leaf for leaf, plain in outputs if plain is None]
        with within(traced.home):
            given += [zeros(kind.static_shape) for kind in traced.trace.results[len(given) :]]
            seeds = _seeds(given, traced.trace.results, "the cotangent of result")
            return tuple(asked.per_argument(traced.emit(made, seeds)[traced.count :]))

    return value, pullback


@public
@at_home
def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """`(function(*primals), tangent)`: the derivative of the function in the direction of the
    tangents, in the structure of the result. Results that are integers have zeros."""
    check_function("jvp", function)
    for given, what in ((primals, "arguments"), (tangents, "tangents")):
        if not isinstance(given, list | tuple):
            raise UserError(f"jvp takes a tuple of {what}, not {a_type(given)}")
    if len(primals) != len(tangents):
        raise UserError(f"{len(primals)} arguments but {len(tangents)} tangents")
    asked = _make_question(function, primals, {}, set(range(len(primals))))
    traced = asked.traced
    leaves, shape = flatten(tuple(tangents))
    if shape.children != asked.shapes:
        raise UserError("the tangents are not nested as the arguments are")
    kinds = [leaf.type for _, leaf in asked.leaves]
    seeds = _seeds(leaves, kinds, "the tangent of input")
    made = program_jvp(traced.trace.program, asked.wanted, classes=asked.classes)
    results = traced.emit(made, seeds)
    own = results[: traced.count]
    traced.carry(own)
    return traced.results(own), _slopes(asked, results)


@public
@at_home
def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """`(function(*primals), pushforward)`: the pushforward takes a tangent for each argument and
    answers the tangent of the result, as `jvp` does; the function is traced once."""
    check_function("linearize", function)
    asked = _make_question(function, primals, {}, set(range(len(primals))))
    traced = asked.traced
    traced.check_stateless("linearize", "return it from the function instead")
    results = traced.emit(traced.trace.program)
    value = traced.results(results)
    traced.carry(results)
    made = program_jvp(traced.trace.program, asked.wanted, classes=asked.classes)
    kinds = [leaf.type for _, leaf in asked.leaves]

    @public
    def pushforward(*tangents: Any) -> Any:
        leaves, shape = flatten(tangents)
        if shape.children != asked.shapes:
            raise UserError("the tangents are not nested as the arguments are")
        with within(traced.home):
            seeds = _seeds(leaves, kinds, "the tangent of input")
            return _slopes(asked, traced.emit(made, seeds))

    return value, pushforward


def _slopes(asked: _Question, results: Sequence[Tensor]) -> Any:
    """The tangents of the results of a jvp, nested as the results are; integers have zeros."""
    count = asked.traced.count
    own, moved = results[:count], iter(results[count:])
    slopes = [next(moved) if is_smooth(value.type) else zeros_like(value) for value in own]
    return asked.traced.results(slopes)


def _seeds(given: Sequence[Any], kinds: Sequence[TensorType], what: str) -> list[Node]:
    """Cotangents or tangents of these types; those of integers are left out."""
    found = []
    for number, (leaf, kind) in enumerate(zip(given, kinds, strict=True)):
        if is_smooth(kind):
            tensor = asarray(leaf, dtype=kind.dtype)
            if tensor.shape != kind.shape:
                raise UserError(f"{what} {number} is {tensor.type}, not {kind}")
            found.append(tensor._node)
    return found


@told
def jacobian(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns all derivatives of all results: for each result, nested as they are,
    what `grad` would return for one of its elements, with the axes of the result in front.

    It is one backward pass for a batch of cotangents, a row of the identity for each element.
    """
    check_function("jacobian", function)

    @public
    @at_home
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            numbers, single = _argnums(argnums, len(args), _function_name(function))
            asked = _make_question(function, args, kwargs, set(numbers))
            asked.traced.check_stateless("jacobian", "call it without training=True")
            sizes = _row_counts(asked, _function_name(function))
            made = _rows_program(asked, sum(sizes))
            everything = asked.traced.emit(made, _identity(asked, sizes))
            results = everything[asked.traced.count :]
            asked.traced.carry(everything)
        except (SpecViolation, UserError) as error:
            raise explained("jacobian", error, user_line()) from None
        places = sorted(set(numbers))
        rows, start = [], 0
        for kind, size in zip(asked.traced.trace.returned, sizes, strict=True):
            parts = [_rows_of_result(result, start, size, kind) for result in results]
            found = asked.per_argument(parts)
            rows.append(found[0] if single else tuple(found[places.index(n)] for n in numbers))
            start += size
        return asked.traced.results(rows)

    return call


@told
def hessian(function: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns all second derivatives of a scalar function: the jacobian of its
    gradient."""
    check_function("hessian", function)
    return jacobian(grad(function, argnums), argnums)


def _row_counts(asked: _Question, name: str) -> list[int]:
    """How many elements every result has."""
    inputs = [leaf.type for _, leaf in asked.leaves]
    for kind in (*asked.traced.trace.returned, *inputs):
        if not kind.is_static or not kind.dtype.is_float:
            raise UserError(
                f"{name} takes or gives {kind}; a jacobian is between floats of known shapes"
            )
    return [kind.size for kind in asked.traced.trace.returned]


def _rows_program(asked: _Question, rows: int) -> Program:
    """The vjp of the function for a batch of cotangents."""
    single = program_vjp(asked.program, asked.wanted, classes=asked.classes)
    inputs = len(asked.traced.nodes)
    seeds = len(single.main.parameters) - inputs
    return program_vmap(single, rows, [*[None] * inputs, *[0] * seeds])


def _identity(asked: _Question, sizes: Sequence[int]) -> list[Node]:
    """For each result the columns of an identity matrix that belong to it, as its cotangents."""
    rows, start, found = sum(sizes), 0, []
    for kind, size in zip(asked.traced.trace.returned, sizes, strict=True):
        columns = np.eye(rows, size, -start, dtype=kind.dtype.numpy)
        found.append(from_array(columns.reshape(rows, *kind.static_shape))._node)
        start += size
    return found


def _rows_of_result(rows: Tensor, start: int, size: int, kind: TensorType) -> Tensor:
    """The rows of one result, with its axes in place of their number."""
    return reshape(rows[start : start + size], kind.static_shape + rows.type.static_shape[1:])


@public
def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of which a gradient keeps only the arguments and the results: what is inside is
    computed again on the way back. It changes nothing but memory and time. Under `vmap` it has an
    effect where it is the whole function."""
    check_function("checkpoint", function)

    @told
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arena = current()
        if not arena.tracing:
            return function(*args, **kwargs)
        traced = trace_function(function, arguments_of(args, kwargs))
        before = len(arena.created)
        results = traced.emit(raise_program(traced.trace.program))
        arena.parts.append(arena.created[before:])
        traced.carry(results)
        return traced.results(results)

    return call


@tensor_method
@public
def stop_gradient(x: Tensor) -> Tensor:
    """The same elements; no gradient passes."""
    node = as_tensor(x)._node
    made = plain_form("stop_gradient", node.type)
    return Tensor(arena_for(node).emit(made, (node,), user_line()))


@tensor_method
@public
def detach(x: Tensor) -> Tensor:
    """The same elements, without gradient. Only what is being traced has any to stop."""
    return stop_gradient(x) if arena_for(x._node).tracing else Tensor(x._node)
