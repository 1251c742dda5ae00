"""`einsum`: sums of products, written as letters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.dims import Dim
from weft.foundation.dtypes import NUMBERS
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import listed
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_dtype,
    ensure_same_backend,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.promotion import promoted
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class EinsumChecked(Checked):
    """One label per axis of each operand and of the result. Labels of an ellipsis are numbers."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    sizes: tuple[tuple[str, Dim], ...]


def check_einsum(subscripts: Any, operands: Sequence[Any]) -> EinsumChecked:
    tensors = [ensure_tensor(f"operand {i}", x) for i, x in enumerate(operands)]
    if not isinstance(subscripts, str) or not tensors:
        raise UserError("it takes subscripts such as 'ij,jk->ik', then the operands")
    for index, tensor in enumerate(tensors):
        ensure_dtype(f"operand {index}", tensor, NUMBERS, "numbers")
        ensure_same_backend("operand 0", tensors[0], f"operand {index}", tensor)
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        shapes = ", ".join(listed(tensor.shape) for tensor in tensors)
        raise wrong_value(
            "subscripts",
            subscripts,
            f"they name {len(parts)} operands, but {len(tensors)} are given: {shapes}",
        )
    pairs = list(zip(parts, tensors, strict=True))
    hidden = [t.ndim - len(p.replace("...", "")) for p, t in pairs if "..." in p]
    most = max(hidden, default=0)
    labels = [_labels(part, tensor, most) for part, tensor in pairs]
    sizes = _label_sizes(labels, tensors)
    result = _result_labels(right if arrow else None, labels, most)
    unknown = [label for label in result if label not in sizes]
    if unknown or len(set(result)) != len(result):
        raise wrong_value(
            "subscripts",
            subscripts,
            "the result must name axes of the operands, each once",
        )
    return EinsumChecked(tuple(labels), result, tuple(sizes.items()))


def _labels(part: str, tensor: Tensor, most: int) -> tuple[str, ...]:
    """One label per axis; the axes of an ellipsis are numbered from the right."""
    before, dots, after = part.partition("...")
    letters = before + after
    hidden = tensor.ndim - len(letters)
    wrong = not all(c.isascii() and c.isalpha() for c in letters)
    if wrong or hidden < 0 or (hidden and not dots):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{part!r} does not name the {tensor.ndim} axes of {listed(tensor.shape)}",
            "one letter for each axis; '...' stands for any number of them",
        )
    numbered = [str(i) for i in range(most - hidden, most)]
    return (*before, *numbered, *after)


def _label_sizes(labels: Sequence[Sequence[str]], tensors: Sequence[Tensor]) -> dict[str, Dim]:
    found: dict[str, Dim] = {}
    for names, tensor in zip(labels, tensors, strict=True):
        for name, dim in zip(names, tensor.shape, strict=True):
            known = found.get(name, 1)
            if known not in (1, dim) and dim != 1:
                raise SpecViolation(
                    "ShapeMismatch",
                    f"the label {name!r} has the sizes {known} and {dim} in "
                    + ", ".join(listed(t.shape) for t in tensors),
                    "axes with one label must be equally long, or 1",
                )
            found[name] = dim if known == 1 else known
    return found


def _result_labels(
    right: str | None, labels: Sequence[Sequence[str]], most: int
) -> tuple[str, ...]:
    hidden = [str(i) for i in range(most)]
    if right is not None:
        before, dots, after = right.partition("...")
        return (*before, *(hidden if dots else ()), *after)
    every = [name for names in labels for name in names]
    once = sorted({name for name in every if name.isalpha() and every.count(name) == 1})
    return (*hidden, *once)


def capture_einsum(s: Session, checked: EinsumChecked, *operands: Handle) -> Handle:
    """Operand by operand: diagonals, then pairs of operands, the cheapest pair first."""
    dtype = operands[0].dtype
    for operand in operands[1:]:
        dtype = promoted(dtype, operand.dtype)
    sizes = dict(checked.sizes)
    terms = [
        _diagonal(s, s.cast(x, dtype), names, sizes)
        for x, names in zip(operands, checked.operands, strict=True)
    ]
    while len(terms) > 1:
        a, b = _cheapest([names for _, names in terms], checked.result, sizes)
        right, left = terms.pop(b), terms.pop(a)
        rest = {name for _, names in terms for name in names} | set(checked.result)
        terms.append(_contract_pair(left, right, rest, sizes))
    return _arrange_labels(*terms[0], checked.result, sizes)


def _diagonal(
    s: Session, x: Handle, names: tuple[str, ...], sizes: dict[str, Dim]
) -> tuple[Handle, tuple[str, ...]]:
    """Each label once: elements where two axes of one label differ are set to 0 and summed away."""
    for label in dict.fromkeys(names):
        while names.count(label) > 1:
            first, second = [i for i, name in enumerate(names) if name == label][:2]
            x, names = _merge(s, x, names, first, second, sizes[label])
    return x, names


def _merge(
    s: Session, x: Handle, names: tuple[str, ...], first: int, second: int, size: Dim
) -> tuple[Handle, tuple[str, ...]]:
    shape = list(x.shape)
    shape[first] = shape[second] = size
    x = x.broadcast_to(shape)
    same = s.iota("si32", shape, first).compare("equal", s.iota("si32", shape, second))
    kept = s.select(same, x, s.full(0, x.dtype, shape))
    return kept.reduce_sum([second]), (*names[:second], *names[second + 1 :])


def _cheapest(
    names: list[tuple[str, ...]], result: tuple[str, ...], sizes: dict[str, Dim]
) -> tuple[int, int]:
    """The pair whose product is smallest, the first of equals."""

    def cost(a: int, b: int) -> int:
        rest = {n for i, ns in enumerate(names) if i not in (a, b) for n in ns} | set(result)
        total = 1
        for name in {*names[a], *names[b]} & rest:
            size = sizes[name]
            total *= size if isinstance(size, int) else 64
        return total

    pairs = [(a, b) for a in range(len(names)) for b in range(a + 1, len(names))]
    return min(pairs, key=lambda pair: cost(*pair))


def _contract_pair(
    left: tuple[Handle, tuple[str, ...]],
    right: tuple[Handle, tuple[str, ...]],
    kept: set[str],
    sizes: dict[str, Dim],
) -> tuple[Handle, tuple[str, ...]]:
    """One dot_general: labels of both are batch where they are still needed, and else summed."""
    (x, xs), (y, ys) = (
        _broadcast_ones(*left, right[1], sizes),
        _broadcast_ones(*right, left[1], sizes),
    )
    x, xs = _sum_labels_away(x, xs, kept | set(ys))
    y, ys = _sum_labels_away(y, ys, kept | set(xs))
    shared = [name for name in xs if name in ys]
    batch = [name for name in shared if name in kept]
    contract = [name for name in shared if name not in kept]
    product = x.dot_general(
        y,
        contract=([xs.index(n) for n in contract], [ys.index(n) for n in contract]),
        batch=([xs.index(n) for n in batch], [ys.index(n) for n in batch]),
    )
    free = [n for n in xs if n not in shared] + [n for n in ys if n not in shared]
    return product, (*batch, *free)


def _broadcast_ones(
    x: Handle, names: tuple[str, ...], other: tuple[str, ...], sizes: dict[str, Dim]
) -> tuple[Handle, tuple[str, ...]]:
    """Axes of size 1 that the other operand has longer are broadcast."""
    shape = [sizes[n] if n in other else dim for n, dim in zip(names, x.shape, strict=True)]
    return x.broadcast_to(shape), names


def _sum_labels_away(
    x: Handle, names: tuple[str, ...], kept: set[str]
) -> tuple[Handle, tuple[str, ...]]:
    """Labels that nobody needs summed away."""
    gone = [i for i, name in enumerate(names) if name not in kept]
    if not gone:
        return x, names
    return x.reduce_sum(gone), tuple(n for n in names if n in kept)


def _arrange_labels(
    x: Handle, names: tuple[str, ...], result: tuple[str, ...], sizes: dict[str, Dim]
) -> Handle:
    x, names = _sum_labels_away(x, names, set(result))
    order = [names.index(name) for name in result]
    if order != list(range(len(order))):
        x = x.transpose(order)
    return x.broadcast_to([sizes[name] for name in result])


@functional
def einsum(subscripts: str, *operands: Tensor) -> Tensor:
    """Sums of products by labels, as in NumPy: `einsum('bik,bkj->bij', x, y)`.

    A label that the result does not name is summed over; a label that occurs twice on one operand
    takes its diagonal; '...' stands for leading axes that broadcast; without '->' the result has
    the labels that occur once, in alphabetical order."""
    checked = check_einsum(subscripts, operands)
    tensors = [ensure_tensor(f"operand {i}", x) for i, x in enumerate(operands)]
    return capture(capture_einsum, checked, *tensors)


@functional
def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x1 @ weight[o] @ x2 + bias[o]` for x1 [..., I], x2 [..., J] and weight [out, I, J]."""
    found = einsum("...i,oij,...j->...o", x1, weight, x2)
    return found if bias is None else found + ensure_tensor("bias", bias)
