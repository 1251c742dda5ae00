"""Sums of products: the generalised matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import normalise_axes
from weft.foundation.dtypes import F32, NUMBERS, SI4, SI8, UI4, UI8, DType, as_dtype
from weft.ptir.op import Array, EvalContext, Op, core_op
from weft.ptir.rules import accumulator, invalid_attribute, same_dim, same_dtype
from weft.ptir.schema import OPTIONAL_DTYPE, USIZES, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType

_PRODUCT_BYTES = 1 << 26
"""How much memory the products of a sequential dot may take at a time."""

_MOST_BATCH_AXES = 32
"""Beyond this the batch axes are merged into one, at the price of a copy."""


class _Sides(NamedTuple):
    """The axes of one operand by role, in the order in which the matrix product wants them."""

    batch: tuple[int, ...]
    free: tuple[int, ...]
    contract: tuple[int, ...]


@core_op(tag=3)
class DotGeneral(Op):
    """Sums of products over the contracted axes, for each index of the batch axes: `out[b, i, j] =
    sum_k lhs[b, i, k] * rhs[b, k, j]`, where each letter stands for a list of axes. Batch and
    contracted axes pair by position in their lists. The result has the batch axes in the order of
    `batch_lhs`, then the remaining axes of lhs, then those of rhs, both in axis order.

    Both operands are converted to the accumulator dtype and multiplied and added there; integers
    wrap. The default accumulator is f32 for floats under 32 bits, si32 or ui32 for integers under
    32 bits, and the operands' dtype otherwise; `accum_dtype` may name the operands' dtype or a
    wider one of its class. The sum is then cast to `out_dtype` (default: the operands' dtype),
    where integers saturate. An empty contraction gives zero. The order of the additions is not
    specified, except that a float accumulator under 32 bits rounds after each product and each
    addition, in row-major order of the contracted axes of lhs."""

    operands = ("lhs", "rhs")
    dtypes = {"lhs": NUMBERS, "rhs": NUMBERS}
    relative_axes = {"batch_lhs": 0, "batch_rhs": 1, "contract_lhs": 0, "contract_rhs": 1}

    batch_lhs: tuple[int, ...] = attr(USIZES, usual=())
    batch_rhs: tuple[int, ...] = attr(USIZES, usual=())
    contract_lhs: tuple[int, ...] = attr(USIZES)
    contract_rhs: tuple[int, ...] = attr(USIZES)
    accum_dtype: DType | None = attr(OPTIONAL_DTYPE)
    out_dtype: DType | None = attr(OPTIONAL_DTYPE)

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs = types
        same_dtype(lhs, rhs, "the operands of dot_general")
        accumulator(lhs.dtype, self.accum_dtype, "dot_general")
        self._check_axes(lhs.rank, "lhs", self.batch_lhs, self.contract_lhs)
        self._check_axes(rhs.rank, "rhs", self.batch_rhs, self.contract_rhs)
        self._check_pairs(lhs, rhs, "batch", self.batch_lhs, self.batch_rhs)
        self._check_pairs(lhs, rhs, "contract", self.contract_lhs, self.contract_rhs)
        left, right = self._sides(lhs.rank, rhs.rank)
        shape = [lhs.shape[axis] for axis in left.batch + left.free]
        shape += [rhs.shape[axis] for axis in right.free]
        return TensorType(self.out_dtype or lhs.dtype, tuple(shape))

    def _check_axes(
        self, rank: int, side: str, batch: Sequence[int], contract: Sequence[int]
    ) -> None:
        normalise_axes(batch, rank, f"batch_{side}")
        normalise_axes(contract, rank, f"contract_{side}")
        both = set(batch) & set(contract)
        if both:
            raise invalid_attribute(
                f"axis {min(both)} of {side} is in both batch_{side} and contract_{side}"
            )

    def _check_pairs(
        self, lhs: TensorType, rhs: TensorType, role: str, left: Sequence[int], right: Sequence[int]
    ) -> None:
        if len(left) != len(right):
            raise invalid_attribute(
                f"{role}_lhs names {len(left)} axes but {role}_rhs names {len(right)}"
            )
        for a, b in zip(left, right, strict=True):
            what = f"{role} axis {a} of lhs and {b} of rhs differ in extent"
            same_dim(lhs.shape[a], rhs.shape[b], what)

    def _sides(self, lhs_rank: int, rhs_rank: int) -> tuple[_Sides, _Sides]:
        # Contracting in the axis order of lhs keeps lhs, and often rhs, a view when axes merge.
        pairs = sorted(zip(self.contract_lhs, self.contract_rhs, strict=True))
        left, right = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
        free_lhs = _free_axes(lhs_rank, self.batch_lhs + left)
        free_rhs = _free_axes(rhs_rank, self.batch_rhs + right)
        return _Sides(self.batch_lhs, free_lhs, left), _Sides(self.batch_rhs, free_rhs, right)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        lhs, rhs = args
        dtype = as_dtype(lhs.dtype)
        accum = self.accum_dtype or numeric.dot_accumulator_dtype(dtype)
        left, right = self._sides(lhs.ndim, rhs.ndim)
        rows = _as_matrices(lhs, left.batch, left.free, left.contract)
        columns = _as_matrices(rhs, right.batch, right.contract, right.free)
        total = matrix_product(rows, columns, dtype, accum)
        return numeric.cast(total, accum, self.out_dtype or dtype).reshape(ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        return self.pulled_back(at)

    def pulled_back(self, at: Pullback, out_dtype: DType | None = None) -> Cotangents:
        """Two products of the same kind, accumulated in the wider of the dtypes of the operands and
        the result; in the dtypes of the operands, or in `out_dtype`."""
        lhs, rhs = at.operands
        wide = wider(lhs.dtype, at.cotangent.dtype)
        g = at.cotangent.cast(wide)
        accum, out = (self.accum_dtype, None) if wide is lhs.dtype else (None, lhs.dtype)
        out = out_dtype or out
        left, right = self._sides(lhs.rank, rhs.rank)
        batch = tuple(range(len(left.batch)))
        rows = tuple(range(len(batch), len(batch) + len(left.free)))
        columns = tuple(range(len(batch) + len(rows), g.rank))

        def product(a: Term, b: Term, **axes: tuple[int, ...]) -> Term:
            return a.dot_general(b, **axes, accum_dtype=accum, out_dtype=out)

        by_lhs = product(
            g, rhs.cast(wide).conj(), batch_lhs=batch, batch_rhs=right.batch,
            contract_lhs=columns, contract_rhs=right.free,
        )  # fmt: skip
        by_rhs = product(
            lhs.cast(wide).conj(), g, batch_lhs=left.batch, batch_rhs=batch,
            contract_lhs=left.free, contract_rhs=rows,
        )  # fmt: skip
        # The axes that were contracted come in the order in which the other operand has them.
        pairs = list(zip(left.contract, right.contract, strict=True))
        by_right = [a for a, _ in sorted(pairs, key=lambda pair: pair[1])]
        by_left = [b for _, b in sorted(pairs)]
        return (
            _in_axis_order(by_lhs, [*left.batch, *left.free, *by_right]),
            _in_axis_order(by_rhs, [*right.batch, *by_left, *right.free]),
        )


def _in_axis_order(x: Term, axes: Sequence[int]) -> Term:
    """`x`, whose axis `i` belongs at `axes[i]`, with every axis where it belongs."""
    return x.transpose([axes.index(axis) for axis in range(x.rank)])


def wider(operand: DType, result: DType) -> DType:
    """The dtype of the operands' class in which neither loses digits."""
    if operand.is_complex or result.is_complex:
        # A cast between real and complex numbers keeps the real part; so does its adjoint.
        return operand
    if operand.bits == result.bits and operand is not result:
        return F32
    return max(operand, result, key=lambda dtype: dtype.bits)


def _free_axes(rank: int, taken: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in taken)


def _as_matrices(
    array: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> Array:
    """The array as (batch..., rows, columns); a view wherever the merged axes lie evenly."""
    turned = array.transpose(*batch, *rows, *columns)
    # With many batch axes the others would exceed NumPy's rank.
    groups = [[axis] for axis in batch] if len(batch) <= _MOST_BATCH_AXES else [batch]
    extents = (math.prod(array.shape[axis] for axis in group) for group in groups)
    return turned.reshape(
        *extents,
        math.prod(array.shape[axis] for axis in rows),
        math.prod(array.shape[axis] for axis in columns),
    )


def matrix_product(lhs: Array, rhs: Array, dtype: DType, accum: DType) -> Array:
    """`lhs @ rhs` of arrays of `dtype`, multiplied and added in `accum`."""
    if accum.is_integer:
        return _integer_product(lhs, rhs, accum)
    lhs, rhs = lhs.astype(accum.numpy, copy=False), rhs.astype(accum.numpy, copy=False)
    if accum.is_float and accum.bits < 32:
        return _sequential_product(lhs, rhs)
    return np.asarray(np.matmul(_for_blas(lhs), _for_blas(rhs)))


def _for_blas(matrices: Array) -> Array:
    """The matrices themselves where BLAS can read them, plain or transposed; a copy otherwise."""
    step = matrices.itemsize
    rows, columns = matrices.shape[-2:]
    down, along = matrices.strides[-2:]
    plain = along == step and down % step == 0 and down >= columns * step
    transposed = down == step and along % step == 0 and along >= rows * step
    return matrices if plain or transposed else np.ascontiguousarray(matrices)


def _integer_product(lhs: Array, rhs: Array, accum: DType) -> Array:
    """An exact integer product, wrapped to `accum`: by float BLAS where no sum can be inexact."""
    depth = lhs.shape[-1]
    bound = depth * _magnitude_bound(lhs) * _magnitude_bound(rhs)
    for carrier, exact in ((np.float32, 1 << 24), (np.float64, 1 << 53)):
        if bound < exact:
            product = np.matmul(_for_blas(lhs.astype(carrier)), _for_blas(rhs.astype(carrier)))
            return numeric.narrow(product.astype(np.int64), accum)
    wide = {SI4: SI8, UI4: UI8}.get(accum, accum).numpy
    product = np.matmul(lhs.astype(wide, copy=False), rhs.astype(wide, copy=False))
    return numeric.narrow(np.asarray(product), accum)


def _magnitude_bound(array: Array) -> int:
    """An upper bound of the magnitudes in an integer array, tight where the dtype is wide."""
    dtype = as_dtype(array.dtype)
    if dtype.bits <= 8:
        return max(-int(dtype.lowest), int(dtype.highest))
    return max(-int(array.min()), int(array.max())) if array.size else 0


def _sequential_product(lhs: Array, rhs: Array) -> Array:
    """A product that rounds to the narrow dtype after each multiplication and each addition."""
    *batch, rows, depth = lhs.shape
    columns = rhs.shape[-1]
    result = np.zeros((*batch, rows, columns), lhs.dtype)
    if not depth or not result.size:
        return result
    row_bytes = math.prod(batch) * depth * columns * lhs.itemsize
    chunk = max(1, _PRODUCT_BYTES // row_bytes)
    for start in range(0, rows, chunk):
        part = lhs[..., start : start + chunk, :, None] * rhs[..., None, :, :]
        result[..., start : start + chunk, :] = np.add.accumulate(part, axis=-2)[..., -1, :]
    return result
