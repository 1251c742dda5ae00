"""What a bundle is built of: a program, and what its inputs and results are to whoever runs it.

An input is data, which the caller gives in every run; a weight, whose elements come with the
bundle; or a state, which begins with given elements, stays in an instance, and is replaced by a
result of the program after every run.

Models of other frameworks come as modules.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.driver.programs.shape_sets import ShapeSet
from weft.foundation.errors import UserError, a_type
from weft.ops.jit import Jitted
from weft.ops.module_state import Changes
from weft.ops.nn.module import Module
from weft.ops.parameters import Names
from weft.ops.pytree import children, leaf_names
from weft.ops.state import Holder
from weft.ops.versions import Seen
from weft.ptir.ir import Program
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import verify

Array = NDArray[Any]
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class State:
    """An input that a result takes the place of after every run."""

    input: int
    result: int
    first: Array
    """What it holds in a new instance."""


@dataclass(frozen=True)
class Model:
    """A program with its weights and states. Inputs and results are numbered as the program's, its
    tuples taken apart."""

    name: str
    program: Program
    input_names: tuple[str, ...]
    results: tuple[tuple[int, str], ...]
    """The results that the caller gets, and their names."""
    weights: Mapping[int, Array] = field(default_factory=dict)
    """The elements of inputs that are weights."""
    states: tuple[State, ...] = ()
    shapes: ShapeSet | None = None

    @property
    def input_types(self) -> list[TensorType]:
        return [leaf for kind in self.program.main.parameters for leaf in leaves(kind)]

    @property
    def result_types(self) -> list[TensorType]:
        return [leaf for kind in self.program.main.results for leaf in leaves(kind)]

    @property
    def data(self) -> list[int]:
        """The inputs that the caller gives."""
        kept = {*self.weights, *(state.input for state in self.states)}
        return [number for number in range(len(self.input_types)) if number not in kept]


def model_of(
    source: Any, example: Sequence[Any], name: str | None, state: Any, shapes: ShapeSet | None
) -> Model:
    """The model that something is, for arguments such as these."""
    if isinstance(source, Program):
        found = _of_program(source, example, state, shapes)
    elif isinstance(source, Jitted):
        found = _of_function(source, example, state, shapes)
    elif callable(source):
        found = _of_callable(source, example, state, shapes)
    else:
        raise UserError(f"build takes a function, a module or a program, not {a_type(source)}")
    given = name or re.sub(r"\W", "_", found.name).strip("_") or "model"
    if not _NAME.fullmatch(given) or given.lower().startswith("weft"):
        raise UserError(
            f"{given!r} cannot be the prefix of C functions: a name consists of letters, digits "
            "and _, begins with a letter but not with weft, and has at most 64 characters"
        )
    made = replace(found, name=given)
    _check_states(made)
    return made


def _check_states(model: Model) -> None:
    """A new state has the type of the old one, of one size."""
    for state in model.states:
        old, new = model.input_types[state.input], model.result_types[state.result]
        name = model.input_names[state.input]
        if old != new:
            raise UserError(f"the state {name} is {old}, and its new value {new}; they must agree")
        if not old.is_static:
            raise UserError(f"the state {name} is {old}; a state has a fixed size")


# -- programs ------------------------------------------------------------------------------------


def _of_program(
    program: Program, example: Sequence[Any], state: Any, shapes: ShapeSet | None
) -> Model:
    """A program: all inputs are data but the states, which `{input: result}` names."""
    if example:
        raise UserError("a program has its own types: call build without example inputs")
    if not isinstance(state, Mapping) and state:
        raise UserError(f"the state of a program is a dict such as {{0: 1}}, not {state!r}")
    verify(program)
    inputs = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    outputs = [leaf for kind in program.main.results for leaf in leaves(kind)]
    states = []
    for number, result in dict(state or {}).items():
        if number not in range(len(inputs)) or result not in range(len(outputs)):
            raise UserError(
                f"state names input {number!r} and result {result!r}; @{program.entry} has "
                f"{len(inputs)} inputs and {len(outputs)} results"
            )
        kind = inputs[number]
        shape = kind.static_shape if kind.is_static else ()
        states.append(State(number, result, np.zeros(shape, kind.dtype.numpy)))
    kept = {each.result for each in states}
    ends = _c_names(program.result_names, "out", len(outputs))
    results = tuple((n, ends[n]) for n in range(len(outputs)) if n not in kept)
    names = _c_names(program.input_names, "in", len(inputs))
    return Model(program.entry, program, names, results, {}, tuple(states), shapes)


def _c_names(named: Sequence[str], prefix: str, count: int) -> tuple[str, ...]:
    """Names as C has them, of which no two are equal, for so many tensors: those that the program's
    source gave them, or numbers."""
    found: dict[str, None] = {}
    for number, name in enumerate(named if len(named) == count else [""] * count):
        word = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or f"{prefix}{number}"
        word = f"{prefix}_{word}" if word[0].isdecimal() else word
        others = (f"{word}_{again}" for again in itertools.count(2))
        found[next(each for each in itertools.chain([word], others) if each not in found)] = None
    return tuple(found)


# -- functions under jit -------------------------------------------------------------------------


def _of_function(
    function: Jitted, example: Sequence[Any], state: Names, shapes: ShapeSet | None
) -> Model:
    """A function: the modules among its arguments, and the tensors that it captures, are weights.
    What it assigns to attributes of modules is state, and so are the arguments that `state` names,
    for which the last of what it returns is the new value."""
    seen = function.seen(tuple(example), {})
    arrays = [np.asarray(tensor.numpy()) for tensor in seen.tensors]
    inside = list(_belong_to_modules(seen.given))
    captured = seen.captured_names()
    weights = {n: array for n, array in enumerate(arrays) if inside[n]}
    weights |= {len(arrays) + n: array for n, array in enumerate(seen.captured())}
    for place, _ in Changes((), seen.trace.state.remade).told(seen.given):
        raise UserError(
            f"{place} has another structure after a call; the states of a bundle are tensors of "
            "fixed sizes: start with a tensor of the size that it has in the end"
        )
    pairs = [*seen.trace.state.leaves, *_named_states(function, seen, state)]
    states = tuple(State(number, result, arrays[number]) for number, result in pairs)
    for each in states:
        weights.pop(each.input, None)
    names = _result_names(seen)
    returned = _list_returned(seen, len(function.named("state", state)))
    results = tuple((n, names[n]) for n in returned)
    inputs = (*seen.names, *captured)
    chosen = shapes if shapes is not None else function.shapes
    return Model(function.name, seen.trace.program, inputs, results, weights, states, chosen)


def _of_callable(
    source: Any, example: Sequence[Any], state: Names, shapes: ShapeSet | None
) -> Model:
    """A function or a module, such as one that was read from ONNX or exported by torch: as it is
    under jit. A module that has names for its inputs and results gives them."""
    found = _of_function(Jitted(source), example, state, shapes)
    if not isinstance(source, Module):
        return found
    names, results = found.input_names, found.results
    count = len(names) - len(found.weights)
    inputs, ends = getattr(source, "input_names", ()), getattr(source, "result_names", ())
    if _are_names(inputs, count) and not found.states:
        names = (*_c_names(inputs, "in", count), *names[count:])
    if _are_names(ends, len(results)):
        words = _c_names(ends, "out", len(results))
        results = tuple((n, word) for (n, _), word in zip(results, words, strict=True))
    return replace(found, name=type(source).__name__.lower(), input_names=names, results=results)


def _are_names(value: Any, count: int) -> bool:
    is_tuple = isinstance(value, tuple) and len(value) == count
    return is_tuple and all(isinstance(name, str) for name in value)


def _belong_to_modules(value: Any, inside: bool = False) -> Iterator[bool]:
    """For every leaf, whether it belongs to a module."""
    parts = children(value)
    if parts is None:
        yield inside
        return
    for _, part in parts:
        yield from _belong_to_modules(part, inside or isinstance(value, Holder))


def _list_returned(seen: Seen, without: int) -> list[int]:
    """The numbers of the program's results that the function returns, but for the last elements of
    the tuple that it returns."""
    outputs, structure = seen.trace.outputs, seen.trace.structure
    if without:
        kept = structure.children[:-without] if _is_tuple(seen) else ()
        outputs = outputs[: sum(child.leaf_count for child in kept)]
    return list(range(sum(output is None for output in outputs)))


def _is_tuple(seen: Seen) -> bool:
    return seen.trace.structure.kind is tuple


def _result_names(seen: Seen) -> dict[int, str]:
    """What each result is called, by its number in the program."""
    named = zip(leaf_names(seen.trace.structure, "out"), seen.trace.outputs, strict=True)
    return dict(enumerate(name for name, output in named if output is None))


def _named_states(function: Jitted, seen: Seen, state: Names) -> list[tuple[int, int]]:
    """The leaves of arguments that are state, each with the result that replaces it."""
    wanted = function.named("state", state)
    if not wanted:
        return []
    several = len(seen.trace.structure.children) if _is_tuple(seen) else 1
    if several < len(wanted):
        raise UserError(
            f"state names {len(wanted)} arguments, and {function.name} returns {several} "
            "values: the last of them must be the new states"
        )
    old = [n for argument in wanted for n, owner in enumerate(seen.owners) if owner == argument]
    all_results, kept = _list_returned(seen, 0), _list_returned(seen, len(wanted))
    new = all_results[len(kept) :]
    if len(old) != len(new):
        raise UserError(
            f"the states of {function.name} have {len(old)} tensors, and their new values, "
            f"the last of what it returns, {len(new)}; both must have the same structure"
        )
    return list(zip(old, new, strict=True))
