"""Sums of products: dots, convolutions, and systems of equations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.interop.stablehlo.reading.shapes import pad, reversed_along
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.interop.stablehlo.records import tensors
from weft.ptir.builder import Value

_CONV: Final = re.compile(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]")


def product(
    at: Site, x: Value, y: Value, contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]],
) -> Value:  # fmt: skip
    """A product in the dtype that the operation declares."""
    wanted = at.result().dtype
    if x.dtype is not y.dtype:
        # The wider of the two holds both: StableHLO multiplies what each operand stands for.
        x, y = (at.b.cast(v, wanted) for v in (x, y))
    narrow = x.dtype.is_integer and x.dtype.bits < 32
    # PTIR adds small integers up in 32 bits and saturates; StableHLO wraps in the result's own.
    other = None if wanted is x.dtype and not narrow else wanted
    return at.b.dot_general(
        x, y, contract=contract, batch=batch, accum_dtype=other, out_dtype=other
    )


def _dot_general(at: Site) -> Value:
    x, y = at.x
    fields = at.fields("dot_dimension_numbers")
    sides = [
        [fields.get(f"{side}_{what}_dimensions", ()) for side in ("lhs", "rhs")]
        for what in ("contracting", "batching")
    ]
    for a, b in zip(*(sides[0]), strict=True):
        if x.shape[a] != y.shape[b]:
            at.reader.same((x.shape[a], y.shape[b]))
    for a, b in zip(*(sides[1]), strict=True):
        if x.shape[a] != y.shape[b]:
            at.reader.same((x.shape[a], y.shape[b]))
    return product(at, x, y, (sides[0][0], sides[0][1]), (sides[1][0], sides[1][1]))


def _lower_dot(at: Site) -> Value:
    x, y = at.x
    return product(at, x, y, ((x.rank - 1,), (0,)), ((), ()))


# -- convolution ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where the axes of one operand of a convolution lie."""

    first: int
    """The batch of an image or of the result; the output features of a kernel."""
    last: int
    """The features; the input features of a kernel."""
    spatial: tuple[int, ...]


def _layouts(at: Site) -> tuple[Layout, Layout, Layout]:
    found = _CONV.search(str(at.attr("dimension_numbers")))
    if found is None:
        at.refuse(f"its dimension_numbers are {str(at.attr('dimension_numbers'))[:80]}")
    image, kernel, result = (_parse_layout(group) for group in found.groups())
    return image, kernel, result


def _parse_layout(text: str) -> Layout:
    letters = [letter.strip() for letter in text.split(",")]
    first = next(i for i, letter in enumerate(letters) if letter in ("b", "o"))
    last = next(i for i, letter in enumerate(letters) if letter in ("f", "i"))
    spatial = tuple(letters.index(str(n)) for n in range(len(letters) - 2))
    return Layout(first, last, spatial)


def _convolution(at: Site) -> Value:
    (result,) = tensors(at.op.types[0])
    if 0 in result.dims and result.is_static:
        # A window that is larger than what it moves over has no place; MLIR has checked the type.
        return at.b.full([size for size in result.dims if size is not None], 0, result.dtype)
    return _convolve_windows(at, at.pairs("padding", at.x[0].rank - 2))


def _dynamic_conv(at: Site) -> Value:
    ends = at.numbers(2)
    return _convolve_windows(at, tuple(zip(ends[::2], ends[1::2], strict=True)))


def _convolve_windows(at: Site, padding: Sequence[tuple[int, int]]) -> Value:
    """Windows of the image as rows, times the kernel as columns, group by group."""
    x, kernel = at.x[:2]
    image_at, kernel_at, result_at = _layouts(at)
    x = x.transpose([image_at.first, *image_at.spatial, image_at.last])
    kernel = kernel.transpose([*kernel_at.spatial, kernel_at.last, kernel_at.first])
    count = len(image_at.spatial)
    reversal = at.attr("window_reversal") or ()
    turned = [axis for axis, is_turned in enumerate(reversal) if is_turned]
    kernel = reversed_along(at, kernel, turned)
    groups, batches = int(at.attr("feature_group_count", 1)), int(at.attr("batch_group_count", 1))
    if batches > 1:
        x, groups = _batches_as_features(at, x, batches), batches
    found = _multiply_groups(at, _window_rows(at, x, kernel, padding), kernel, groups, count)
    order = [0] * found.rank
    order[result_at.first], order[result_at.last] = 0, found.rank - 1
    for axis, place in enumerate(result_at.spatial):
        order[place] = axis + 1
    return found.transpose(order)


def _batches_as_features(at: Site, x: Value, groups: int) -> Value:
    """Each group of the batch has output features of its own, as a group of features has."""
    batch, *spatial, features = at.static(x)
    parts = x.reshape([groups, batch // groups, *spatial, features])
    moved = parts.transpose([*range(1, parts.rank - 1), 0, parts.rank - 1])
    return moved.reshape([batch // groups, *spatial, groups * features])


def _window_rows(at: Site, x: Value, kernel: Value, padding: Sequence[tuple[int, int]]) -> Value:
    """Every window of the image: [N, places..., window * C]."""
    count = len(padding)
    ones = (1,) * count
    spread = [step - 1 for step in at.ints("lhs_dilation", ones)]
    if any(spread) or any(low < 0 or high < 0 for low, high in padding):
        zero = at.b.literal(0, x.dtype)
        low, high = ([0, *(pair[i] for pair in padding), 0] for i in range(2))
        x, padding = pad(at, x, zero, low, high, [0, *spread, 0]), ((0, 0),) * count
    return at.b.emit(
        "extract_patches",
        x,
        window=at.static(kernel)[:count],
        strides=at.ints("window_strides", ones),
        dilation=at.ints("rhs_dilation", ones),
        padding=padding,
        pad_value=0,
    )


def _multiply_groups(at: Site, rows: Value, kernel: Value, groups: int, count: int) -> Value:
    """[N, places..., O] from rows and the kernel [window..., I, O]."""
    window = math.prod(at.static(kernel)[:count])
    inputs, outputs = at.static(kernel)[count:]
    batch, *places, _ = rows.shape
    last = rows.rank - 1
    if groups == 1:
        columns = kernel.reshape([window * inputs, outputs])
        return product(at, rows, columns, ((last,), (0,)), ((), ()))
    cut = rows.reshape([batch, *places, window, groups, inputs])
    columns = kernel.reshape([window, inputs, groups, outputs // groups])
    contract = ((last, last + 2), (0, 1))
    found = product(at, cut, columns, contract, ((last + 1,), (2,)))
    moved = found.transpose([*range(1, found.rank - 1), 0, found.rank - 1])
    return moved.reshape([batch, *places, outputs])


# -- systems of equations ------------------------------------------------------------------------


def _cholesky(at: Site) -> Value:
    (x,) = at.x
    lower = bool(at.attr("lower", False))
    turned = x.transpose([*range(x.rank - 2), x.rank - 1, x.rank - 2])
    if x.dtype.is_complex:
        turned = at.b.emit("conj", turned)
    # Only one triangle is read: the other is made from it.
    rows, columns = (at.b.iota("si64", x.shape, x.rank - 2 + i) for i in range(2))
    mine = at.b.compare(rows, columns, "greater_equal" if lower else "less_equal")
    return at.b.emit("cholesky", at.b.emit("select", mine, x, turned), upper=not lower)


def _triangular_solve(at: Site) -> Value:
    a, b = at.x
    transpose = at.word("transpose_a", "NO_TRANSPOSE")
    lower, unit = bool(at.attr("lower")), bool(at.attr("unit_diagonal"))
    if transpose == "ADJOINT" and a.dtype.is_complex:
        a = at.b.emit("conj", a)
    turn = transpose in ("TRANSPOSE", "ADJOINT")
    swap = [*range(a.rank - 2), a.rank - 1, a.rank - 2]
    if not at.attr("left_side"):
        b, turn = b.transpose(swap), not turn
    found = at.b.emit("triangular_solve", a, b, lower=lower, transpose=turn, unit_diagonal=unit)
    return found if at.attr("left_side") else found.transpose(swap)


CONTRACTIONS: Final[Mapping[str, Lowering]] = {
    "dot_general": _dot_general,
    "dot": _lower_dot,
    "convolution": _convolution,
    "dynamic_conv": _dynamic_conv,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
}
