"""Functions with derivatives of their own: `custom_vjp` and `custom_jvp`.

A function is called as it is, until a derivative is taken of the trace around it. There the forward
rule is written instead, and its results pass an instruction that brings the backward rule along as
a program (`custom_gradient`). So the rule is found wherever the trace goes: under `jit`, `vmap`,
control flow, and when it is differentiated again. A rule for tangents becomes one for cotangents by
transposing it, and what is forward mode transposes it back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import update_wrapper
from types import MethodType
from typing import Any

from weft.foundation.errors import Unimplemented, UserError, a_type
from weft.foundation.lines import user_line
from weft.ops.arithmetic import number_kind
from weft.ops.array.creation import asarray, zeros, zeros_like
from weft.ops.calls import check_function, explained, public
from weft.ops.differentiate import is_smooth, vjp
from weft.ops.graph.context import current
from weft.ops.graph.node import Node
from weft.ops.parameters import Parameters
from weft.ops.pytree import Structure, flatten, flatten_up_to, leaf_names, unflatten
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor
from weft.ops.traced_function import (
    Arguments,
    TracedFunction,
    arguments_of,
    trace_function,
    with_tensors,
)
from weft.ops.tracing import Trace, trace
from weft.ptir.ir import Program
from weft.ptir.ops.custom import CustomGradient
from weft.ptir.text import print_program
from weft.ptir.types import TensorType

Forward = Callable[..., Any]
Backward = Callable[[Any, Any], Any]


class _Custom:
    """A function with a rule; some of its arguments may be plain values that the rule is given."""

    kind = ""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()):
        check_function(self.kind, function)
        update_wrapper(self, function)
        self.function = function
        self._parameters = Parameters(function, self.kind)
        self.name = getattr(function, "__name__", "function")
        given = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in given):
            raise UserError(
                f"[{self.kind}] nondiff_argnums is {nondiff_argnums!r}; it must name arguments by "
                "their positions, from 0"
            )
        self.plain = frozenset(given)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<weft.{self.kind} of {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._parameters.check(args, kwargs)
            return self._call_with_rules(args, kwargs)
        except UserError as error:
            raise explained(self.name, error, user_line()) from None

    def _call_with_rules(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = self._positional(args, kwargs)
        forward, backward = self._rules(given)
        if not current().is_differentiated:
            return self.function(*given)
        moved = tuple(x for n, x in enumerate(given) if n not in self.plain)
        return _Call(self, arguments_of(moved, {})).traced(forward, backward)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position: rules take them so."""
        if not kwargs:
            return args
        bound = inspect.signature(self.function).bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise UserError(
                f"[{self.kind}] {self.name} has arguments that only a name can give, "
                f"{', '.join(bound.kwargs)}; rules take arguments by position"
            )
        return bound.args

    def _plain_values(self, given: tuple[Any, ...]) -> list[Any]:
        for number in self.plain:
            if number >= len(given):
                raise UserError(
                    f"[{self.kind}] nondiff_argnums names argument {number}, but {self.name} was "
                    f"called with {len(given)} arguments"
                )
        return [given[number] for number in sorted(self.plain)]

    def _merge_arguments(self, plain: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
        """All arguments in their places."""
        own, rest = iter(plain), iter(moved)
        count = len(plain) + len(moved)
        return [next(own) if n in self.plain else next(rest) for n in range(count)]

    def _rules(self, given: tuple[Any, ...]) -> tuple[Forward, Backward]:
        """From arguments to results and what is kept; from that and cotangents to cotangents."""
        raise NotImplementedError

    def _missing_rule(self, method: str) -> UserError:
        return UserError(
            f"[{self.kind}] {self.name} has no rule yet; give it with {self.name}.{method}"
        )


class CustomVjp(_Custom):
    """A function whose backward pass is given."""

    kind = "custom_vjp"
    forward: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """The rule: `forward(*args)` answers a pair of the result and whatever `backward` needs,
        and `backward(needed, cotangent)` a tuple with a cotangent for each argument, None for
        zeros. Arguments that `nondiff_argnums` names come first in `backward`."""
        check_function("defvjp", forward)
        check_function("defvjp", backward)
        self.forward, self.backward = forward, backward

    def _rules(self, given: tuple[Any, ...]) -> tuple[Forward, Backward]:
        forward, backward = self.forward, self.backward
        if forward is None or backward is None:
            raise self._missing_rule("defvjp(forward, backward)")
        plain = self._plain_values(given)

        def ahead(*moved: Any) -> Any:
            result = forward(*self._merge_arguments(plain, moved))
            if not isinstance(result, tuple) or len(result) != 2:
                raise UserError(
                    f"[custom_vjp] the forward rule of {self.name} returns {a_type(result)}; it "
                    "must return a pair: the result, and what the backward rule needs"
                )
            return result

        return ahead, lambda kept, cotangent: backward(*plain, kept, cotangent)


class CustomJvp(_Custom):
    """A function whose derivative in a direction is given."""

    kind = "custom_jvp"
    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """The rule: `rule(primals, tangents)`, both tuples of arguments, answers a pair of the
        result and its tangent, which is linear in the tangents. Arguments that `nondiff_argnums`
        names come first."""
        check_function("defjvp", rule)
        self.rule = rule
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """A rule for each argument: `rule(tangent, result, *primals)`; None for one that the result
        does not depend on. The tangent of the result is their sum."""

        def together(*given: Any) -> Any:
            *plain, primals, tangents = given
            result = self.function(*self._merge_arguments(plain, primals))
            pairs = zip(rules, tangents, strict=True)
            parts = [rule(t, result, *primals) for rule, t in pairs if rule is not None]
            return result, sum(parts[1:], parts[0]) if parts else zeros_like(result)

        self.rule = together

    def _rules(self, given: tuple[Any, ...]) -> tuple[Forward, Backward]:
        rule = self.rule
        if rule is None:
            raise self._missing_rule("defjvp(rule)")
        plain = self._plain_values(given)

        def ahead(*moved: Any) -> Any:
            return self.function(*self._merge_arguments(plain, moved)), moved

        def back(primals: Any, cotangent: Any) -> Any:
            leaves, structure = flatten(primals)

            def directed(*tangents: Any) -> Any:
                result = rule(*plain, primals, unflatten(structure, tangents))
                if not isinstance(result, tuple) or len(result) != 2:
                    raise UserError(
                        f"[custom_jvp] the rule of {self.name} returns {a_type(result)}; it must "
                        "return a pair: the result and its tangent"
                    )
                return with_tensors(result[1])

            still = [zeros_like(asarray(leaf)) for leaf in leaves]
            moved = _are_smooth(still)
            given = [x for x, smooth in zip(still, moved, strict=True) if smooth]

            def of_floats(*tangents: Any) -> Any:
                supply = iter(tangents)
                pairs = zip(still, moved, strict=True)
                tangents = tuple(next(supply) if smooth else x for x, smooth in pairs)
                # The rule is the derivative: of what it calls itself, none is taken here.
                traced = trace_function(directed, arguments_of(tangents, {}), order=-1)
                return traced.results(traced.emit(traced.trace.program))

            found = iter(vjp(of_floats, *given)[1](cotangent)) if given else iter(())
            return unflatten(structure, [next(found) if smooth else None for smooth in moved])

        return ahead, back


def _are_smooth(tensors: Sequence[Tensor]) -> list[bool]:
    return [is_smooth(tensor.type) for tensor in tensors]


class _Call:
    """One call of a function with a rule, in a trace that a derivative is taken of."""

    def __init__(self, owner: _Custom, arguments: Arguments) -> None:
        self.owner = owner
        self.arguments = arguments

    def traced(self, forward: Forward, backward: Backward) -> Any:
        def ahead(*args: Any) -> Any:
            result, kept = forward(*args)
            return with_tensors(result), kept

        traced = trace_function(ahead, self.arguments, order=-1)
        traced.check_stateless(self.owner.kind, "return it from the function instead")
        self._check_result(traced)
        tensors = traced.emit(traced.trace.program)
        shape = traced.trace.structure.children[0]
        traced.carry(tensors)
        own = len(traced.trace.returned)
        results, kept = tensors[: shape.leaf_count], tensors[shape.leaf_count : own]
        inputs = [tensor for tensor in self.arguments.tensors if is_smooth(tensor.type)]
        if not inputs or not any(_are_smooth(results)):
            return unflatten(shape, results)
        back = self._way_back(traced, backward, results, kept)
        return unflatten(shape, self._join_results(results, kept, inputs, traced, back))

    def _check_result(self, traced: TracedFunction) -> None:
        outputs, shape = traced.trace.outputs, traced.trace.structure.children[0]
        for output in outputs[: shape.leaf_count]:
            if output is not None:
                raise UserError(
                    f"[{self.owner.kind}] {self.owner.name} returns {a_type(output.value)}; it "
                    "must return tensors"
                )

    def _join_results(
        self,
        results: list[Tensor],
        kept: list[Tensor],
        inputs: list[Tensor],
        traced: TracedFunction,
        back: Trace,
    ) -> list[Tensor]:
        """The results, past the instruction that has the rule."""
        closed = [c.node for c in traced.trace.captured if _is_differentiable(c.node)]
        more = [captured.node for captured in back.captured]
        held = [*(tensor._node for tensor in kept), *more]
        text = print_program(_kept_first(back.program, len(kept), len(more)))
        op = CustomGradient(len(results), len(held), len(inputs), text)
        session = Session.here()
        nodes = [*(x._node for x in results), *held, *(x._node for x in inputs), *closed]
        made = session.append(op, *(Handle(session, node) for node in nodes))
        handles = [made] if len(results) == 1 else list(made)
        grad = any(tensor.requires_grad for tensor in inputs)
        return [session.export(handle, requires_grad=grad) for handle in handles]

    def _way_back(
        self, traced: TracedFunction, backward: Backward, results: list[Tensor], kept: list[Tensor]
    ) -> Trace:
        """The backward rule as a program of what was kept and of cotangents."""
        shape, kept_shape = traced.trace.structure.children
        seeds = [x.type for x in results if is_smooth(x.type)]
        kinds = [*(tensor.type for tensor in kept), *seeds]
        held = traced.trace.outputs[shape.leaf_count :]

        def fill(tensors: list[Tensor]) -> Any:
            supply = iter(tensors)
            known = [next(supply) if o is None else o.value for o in held]
            by_result = [
                next(supply) if is_smooth(x.type) else zeros(x.shape, dtype=x.dtype)
                for x in results
            ]
            return unflatten(kept_shape, known), unflatten(shape, by_result)

        def call(given: Any) -> list[Tensor]:
            return self._cotangents(backward(*given))

        found = trace(self.owner.function, kinds, fill, call, order=-1)
        if found.has_effects:
            raise Unimplemented(
                f"the backward rule of {self.owner.name}",
                "it calls weft.debug.print or weft.debug.callback, and a rule has no effects: "
                "return what is to be looked at from the forward rule",
            )
        return found

    def _cotangents(self, found: Any) -> list[Tensor]:
        """What the backward rule gives, for each argument of floats in order."""
        shapes = self.arguments.positional
        if not isinstance(found, list | tuple) or len(found) != len(shapes):
            more = f" of {len(found)}" if isinstance(found, list | tuple) else ""
            raise UserError(
                f"[{self.owner.kind}] the backward rule of {self.owner.name} returns "
                f"{a_type(found)}{more}; it must return a tuple of {len(shapes)}, a cotangent for "
                "each argument"
            )
        leaves = iter(self.arguments.leaves)
        made: list[Tensor] = []
        for number, (shape, given) in enumerate(zip(shapes, found, strict=True)):
            names = leaf_names(shape, f"argument {number}")
            cotangents = self._leaves(number, shape, given)
            for name, cotangent in zip(names, cotangents, strict=True):
                leaf = next(leaves)
                if isinstance(leaf, Tensor) and is_smooth(leaf.type):
                    made.append(self._check_cotangent(name, leaf.type, cotangent))
        return made

    def _leaves(self, number: int, shape: Structure, given: Any) -> list[Any]:
        try:
            return _leaves_of(shape, given)
        except UserError:
            raise UserError(
                f"[{self.owner.kind}] the backward rule of {self.owner.name} gives "
                f"{a_type(given)} for argument {number}, which is not nested as the argument is"
            ) from None

    def _check_cotangent(self, name: str, kind: TensorType, cotangent: Any) -> Tensor:
        if cotangent is None:
            return zeros(kind.shape, dtype=kind.dtype)
        if not isinstance(cotangent, Tensor) and number_kind(cotangent) is None:
            raise UserError(
                f"[{self.owner.kind}] the backward rule of {self.owner.name} gives "
                f"{a_type(cotangent)} for {name}; cotangents are tensors, or None for zeros"
            )
        tensor = asarray(cotangent).astype(kind.dtype)
        if tensor.shape != kind.shape:
            raise UserError(
                f"[{self.owner.kind}] the backward rule of {self.owner.name} gives {tensor.type} "
                f"for {name}, which is {kind}"
            )
        return tensor


def _leaves_of(shape: Structure, given: Any) -> list[Any]:
    """The cotangents of the leaves of an argument; None stands for all that is below it."""
    if given is None:
        return [None] * shape.leaf_count
    if shape.kind is None:
        return [given]
    top = replace(shape, children=tuple(Structure(None) for _ in shape.children))
    parts = zip(shape.children, flatten_up_to(top, given), strict=True)
    return [leaf for child, part in parts for leaf in _leaves_of(child, part)]


def _is_differentiable(node: Node) -> bool:
    """Whether a derivative may be asked for with respect to a value of the outside."""
    return node.arena.tracing and isinstance(node.type, TensorType) and is_smooth(node.type)


def _kept_first(program: Program, kept: int, more: int) -> Program:
    """The program with what the rule uses of the outside, its last parameters, behind what is
    kept."""
    main = program.main
    order = [*range(kept), *range(len(main.parameters) - more, len(main.parameters))]
    order += [at for at in range(len(main.parameters)) if at not in order]
    return program.with_main(
        replace(
            main,
            parameters=tuple(main.parameters[at] for at in order),
            parameter_ids=tuple(main.parameter_ids[at] for at in order),
        )
    )


@public
def custom_vjp(
    function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()
) -> CustomVjp:
    """The function, of which `defvjp` says what gradients are. Arguments that `nondiff_argnums`
    names by position are plain values, such as functions and settings."""
    return CustomVjp(function, nondiff_argnums)


@public
def custom_jvp(
    function: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()
) -> CustomJvp:
    """The function, of which `defjvp` says what the derivative in a direction is; gradients are
    made of it. Arguments that `nondiff_argnums` names by position are plain values."""
    return CustomJvp(function, nondiff_argnums)
