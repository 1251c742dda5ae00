"""Control flow built on `cond`, `while_loop` and `scan`: counted loops, switches, and associative
scans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.ops.array.creation import arange, asarray
from weft.ops.array.elementwise import clip
from weft.ops.array.manipulation import concat, flip, moveaxis, reshape, stack
from weft.ops.array.operands import known
from weft.ops.array.windows import integer_scalar
from weft.ops.calls import check_function, public
from weft.ops.control_flow import cond, scan, while_loop
from weft.ops.default_backend import at_home
from weft.ops.pytree import alike, flatten, unflatten
from weft.ops.tensor import Tensor

Trees = list[Tensor]
"""The leaves of a container, each with what is combined along its first axis."""


@public
@at_home
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """`carry = body(i, carry)` for i from `lower` up to, and without, `upper`; the last carry. With
    bounds that are Python numbers the number of steps is known, and gradients pass; with tensors it
    is a `while_loop`."""
    check_function("fori_loop", body)
    if isinstance(lower, int) and isinstance(upper, int):
        if upper <= lower:
            return init
        steps = arange(lower, upper)
        return scan(lambda carry, i: (body(i, carry), None), init, steps)[0]
    first, last = (
        integer_scalar(name, bound) for name, bound in (("lower", lower), ("upper", upper))
    )

    def step(state: Any) -> Any:
        i, end, carry = state
        return i + 1, end, body(i, carry)

    return while_loop(lambda state: state[0] < state[1], step, (first, last, init))[2]


@public
@at_home
def switch(index: Any, branches: Sequence[Callable[..., Any]], *args: Any) -> Any:
    """`branches[index](*args)`. An index out of range means the first or the last branch; one that
    is a Python number is looked up at once."""
    if not isinstance(branches, list | tuple) or not branches:
        raise UserError(
            f"branches is {a_type(branches)}; it must be a list of at least one function"
        )
    for branch in branches:
        check_function("switch", branch)
    if isinstance(index, int):
        return branches[min(max(index, 0), len(branches) - 1)](*args)
    place = clip(integer_scalar("index", index), 0, len(branches) - 1)
    return _choose_branch(place, list(branches), 0)(*args)


def _choose_branch(
    place: Tensor, branches: list[Callable[..., Any]], first: int
) -> Callable[..., Any]:
    """The function of the branch at a place, found by halves."""
    if len(branches) == 1:
        return branches[0]
    half = len(branches) // 2
    lower = _choose_branch(place, branches[:half], first)
    upper = _choose_branch(place, branches[half:], first + half)
    return lambda *args: cond(place < first + half, lower, upper, *args)


# -- everything so far ---------------------------------------------------------------------------


@public
@at_home
def associative_scan(
    function: Callable[[Any, Any], Any], elements: Any, *, reverse: bool = False, axis: int = 0
) -> Any:
    """What an associative function makes of the first element, the first two, the first three, ...
    along an axis: `[a, f(a, b), f(f(a, b), c), ...]`, in a number of steps that grows with the
    logarithm. The function takes and gives containers like `elements`, of slices along the axis,
    and works on many of them at once. `reverse` begins at the end."""
    check_function("associative_scan", function)
    leaves, structure = flatten(elements)
    if not leaves:
        raise UserError("elements contains no tensor")
    tensors = [_in_front(asarray(leaf), axis) for leaf in leaves]
    sizes = {known(tensor.shape[0], "the axis to scan along") for tensor in tensors}
    if len(sizes) > 1:
        raise SpecViolation(
            "ShapeMismatch",
            f"the elements have sizes {', '.join(map(str, sorted(sizes)))} along axis {axis}",
            "give tensors of one size there",
        )
    if reverse:
        tensors = [flip(tensor, axis=0) for tensor in tensors]

    def combined(earlier: Trees, later: Trees) -> Trees:
        given = [
            unflatten(structure, [moveaxis(x, 0, _axis_from_front(x, axis)) for x in side])
            for side in (earlier, later)
        ]
        found, shape = flatten(function(*given))
        if not alike(shape, structure):
            raise UserError("the function must return what it takes: a container like elements")
        return [_in_front(asarray(x), axis) for x in found]

    made = _all_so_far(combined, tensors, sizes.pop())
    if reverse:
        made = [flip(tensor, axis=0) for tensor in made]
    return unflatten(structure, [moveaxis(x, 0, _axis_from_front(x, axis)) for x in made])


def _axis_from_front(x: Tensor, axis: int) -> int:
    return normalise_axis(axis, x.ndim)


def _in_front(x: Tensor, axis: int) -> Tensor:
    if not x.ndim:
        raise SpecViolation("RankMismatch", "an element is a scalar, which has no axis", "stack it")
    return moveaxis(x, _axis_from_front(x, axis), 0)


def _all_so_far(combined: Callable[[Trees, Trees], Trees], elements: Trees, size: int) -> Trees:
    """Neighbours are combined to half as many, whose results are those at the odd places; each of
    the others is the one before it and one more."""
    if size < 2:
        return elements
    even = size - size % 2
    pairs = combined([x[0:even:2] for x in elements], [x[1:even:2] for x in elements])
    odd = _all_so_far(combined, pairs, even // 2)
    first = [x[:1] for x in elements]
    if size == 2:
        return [concat([a, b]) for a, b in zip(first, odd, strict=True)]
    before = odd if size % 2 else [x[:-1] for x in odd]
    rest = combined(before, [x[2::2] for x in elements])
    later = [concat([a, b]) for a, b in zip(first, rest, strict=True)]
    return [_weave_elements(a, b) for a, b in zip(later, odd, strict=True)]


def _weave_elements(first: Tensor, second: Tensor) -> Tensor:
    """The elements of two tensors in turn; the first may have one more."""
    count = second.shape[0]
    assert isinstance(count, int)
    both = stack([first[:count], second], axis=1)
    woven = reshape(both, (2 * count, *second.shape[1:]))
    return woven if first.shape[0] == count else concat([woven, first[count:]])
