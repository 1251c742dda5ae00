"""Raising of layer_norm and l2_norm: by roots or their inverses, by divisions or products."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.coarse.raising.matched import Matched, one_op
from weft.coarse.raising.search import Search, View
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.term import Term
from weft.ptir.types import Shape

# -- layer_norm ----------------------------------------------------------------------------------


def layer_norm(view: View, root: Instruction) -> Matched | None:
    """`(x - mean) / sqrt(variance + epsilon) * weight + bias`."""
    if root.op.mnemonic != "add":
        return None
    for product, bias in (root.operands, root.operands[::-1]):
        search = Search(view)
        search.inside.append(root.id)
        found = _match_normalised(search, product, bias)
        if found is not None:
            return found
    return None


def _match_normalised(search: Search, product: Operand, bias: Operand) -> Matched | None:
    factors = _factors_and_powers(search, product)
    shape = search.view.shape(product)
    if shape is None or len(factors) != 3:
        return None
    for centred, power in factors:
        others = [factor for factor in factors if factor[0] != centred]
        # Three factors in any order: the centred rows, one over their deviation (or the deviation
        # with power -1), and the weight.
        if power != 1 or len(others) != 2:
            continue
        for spread, weight in (others, others[::-1]):
            found = search.first(partial(_affine, search, centred, spread, weight, bias, shape))
            if found is not None:
                return found
    return None


def _factors_and_powers(search: Search, operand: Operand) -> list[tuple[Operand, int]]:
    """A product as factors, each with its power."""
    definition = search.view.definition(operand)
    if definition is None or definition.op.mnemonic not in ("mul", "div"):
        return [(operand, 1)]
    search.inside.append(definition.id)
    left, right = definition.operands
    sign = 1 if definition.op.mnemonic == "mul" else -1
    return [
        *_factors_and_powers(search, left),
        *((o, sign * p) for o, p in _factors_and_powers(search, right)),
    ]


def _affine(
    search: Search,
    centred: Operand,
    spread: tuple[Operand, int],
    weight: tuple[Operand, int],
    bias: Operand,
    shape: Shape,
) -> Matched | None:
    difference = search.take(centred, "sub")
    if difference is None or weight[1] != 1:
        return None
    x, centre = difference.operands
    axes = search.axes_of(centre, shape, "sum")
    if axes is None or not axes or search.mean(centre, shape, axes) != x:
        return None
    found = _epsilon(search, *spread, centred, shape, axes)
    laid = [search.laid(parameter, shape, axes) for parameter in (weight[0], bias)]
    if found is None or laid[0] is None or laid[1] is None:
        return None
    epsilon, outside = found
    ordered = tuple(sorted(axes))
    write = partial(_write_norm, ordered, epsilon, outside)
    return Matched((x, laid[0], laid[1]), frozenset(search.inside), write)


def _epsilon(
    search: Search,
    operand: Operand,
    power: int,
    centred: Operand,
    shape: Shape,
    axes: Sequence[int],
) -> tuple[float, bool] | None:
    """The epsilon of one over the deviation, and whether it stands outside the root. Functions may
    be taken of the rows, or of what repeats them."""
    length = search.unrepeated(operand, shape, axes)
    attempt = partial(_match_epsilon, search, centred, shape, axes)
    if power == 1:
        inverse = search.first(lambda: attempt(search.argument(length, "rsqrt")))
        if inverse is not None:
            return inverse, False
        length = search.unrepeated(search.inverted(length), shape, axes)
    plain = search.first(lambda: attempt(search.argument(length, "sqrt")))
    if plain is not None:
        return plain, False
    outer = search.first(lambda: _outside(search, length, centred, shape, axes))
    return None if outer is None else (outer, True)


def _match_epsilon(
    search: Search, centred: Operand, shape: Shape, axes: Sequence[int], operand: Operand | None
) -> float | None:
    """The epsilon of `variance + epsilon`."""
    found = search.plus_number(search.unrepeated(operand, shape, axes))
    if found is None or found[0] < 0.0:
        return None
    base = search.square(search.mean(found[1], shape, axes))
    return found[0] if base == centred else None


def _outside(
    search: Search,
    operand: Operand | None,
    centred: Operand,
    shape: Shape,
    axes: Sequence[int],
) -> float | None:
    """The epsilon of `sqrt(variance) + epsilon`."""
    found = search.plus_number(operand)
    if found is None or found[0] < 0.0:
        return None
    deviation = search.unrepeated(found[1], shape, axes)
    base = search.square(search.mean(search.argument(deviation, "sqrt"), shape, axes))
    return found[0] if base == centred else None


def _write_norm(
    axes: tuple[int, ...], epsilon: float, outside: bool, values: Sequence[Term]
) -> Term:
    x, *parameters = values
    dims = tuple(x.shape[axis] for axis in axes)
    laid = [parameter.reshape(dims) for parameter in parameters]
    return x.emitter.emit(
        "byteir.layer_norm", x, *laid, epsilon=epsilon, axis=axes,
        eps_outside_sqrt=True if outside else None,
    )  # fmt: skip


# -- l2_norm -------------------------------------------------------------------------------------


def l2_norm(view: View, root: Instruction) -> Matched | None:
    """`x / sqrt(max(sum(x^2), epsilon))` or `x / max(sqrt(sum(x^2)), epsilon)`."""
    shape = view.shape(Ref(root.id))
    if root.op.mnemonic not in ("mul", "div") or shape is None:
        return None
    orders = [root.operands] if root.op.mnemonic == "div" else [root.operands, root.operands[::-1]]
    for x, length in orders:
        search = Search(view)
        search.inside.append(root.id)
        power = 1 if root.op.mnemonic == "mul" else -1
        found = _match_length(search, x, length, power, shape)
        if found is not None:
            axes, epsilon, outside = found
            return one_op(
                search, "byteir.l2_norm", (x,), epsilon=epsilon, axis=axes,
                eps_outside_sqrt=True if outside else None,
            )  # fmt: skip
    return None


def _match_length(
    search: Search, x: Operand, operand: Operand, power: int, shape: Shape
) -> tuple[tuple[int, ...], float, bool] | None:
    """The axes and the epsilon of a length that x is divided by, or with power 1 multiplied by the
    inverse of; and whether the bound stands outside the root."""
    axes = search.axes_of(operand, shape, "sum")
    if not axes:
        return None
    length = search.unrepeated(operand, shape, axes)
    attempt = partial(_find_epsilon, search, x, shape, axes)
    if power == 1:
        inverse = search.first(lambda: attempt(search.argument(length, "rsqrt")))
        if inverse is not None:
            return axes, inverse, False
        length = search.unrepeated(search.inverted(length), shape, axes)
    plain = search.first(lambda: attempt(search.argument(length, "sqrt")))
    if plain is not None:
        return axes, plain, False
    bound = search.at_least(length)
    if bound is None:
        return None
    squares = search.argument(search.unrepeated(bound[1], shape, axes), "sqrt")
    return (axes, bound[0], True) if _is_square_sum(search, x, squares, shape, axes) else None


def _find_epsilon(
    search: Search, x: Operand, shape: Shape, axes: Sequence[int], operand: Operand | None
) -> float | None:
    """The epsilon of `max(sum(x^2), epsilon)`."""
    bound = search.at_least(search.unrepeated(operand, shape, axes))
    if bound is None or not _is_square_sum(search, x, bound[1], shape, axes):
        return None
    return bound[0]


def _is_square_sum(
    search: Search, x: Operand, operand: Operand | None, shape: Shape, axes: Sequence[int]
) -> bool:
    total = search.unrepeated(operand, shape, axes)
    return search.square(search.reduction(total, "sum", axes)) == x
