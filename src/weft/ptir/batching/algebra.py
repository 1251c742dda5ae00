"""Rules of products, factorisations, norms and quantisation."""

from __future__ import annotations

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64
from weft.ptir.batching.rules import Batching, batches, elementwise
from weft.ptir.batching.shapes import changed
from weft.ptir.op_rules import op_as
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.linear_algebra import Cholesky, Eigh, Lu, Qr, Svd, TriangularSolve
from weft.ptir.ops.normalisation import LayerNorm
from weft.ptir.ops.quantisation import Dequantize, Quantize, Requantize
from weft.ptir.ops.random import PhiloxBits, PhiloxNormal, PhiloxUniform
from weft.ptir.term import Term, unknown_size
from weft.ptir.types import Symbol, multiply_dims


@batches(DotGeneral)
def dot_general(b: Batching) -> Term:
    """A further batch axis where both operands have it; else a further row or column."""
    op = op_as(b, DotGeneral)
    lhs, rhs = (int(flag) for flag in b.batched)
    both = (0,) if lhs and rhs else ()
    wider = changed(
        op,
        batch_lhs=(*both, *(axis + lhs for axis in op.batch_lhs)),
        batch_rhs=(*both, *(axis + rhs for axis in op.batch_rhs)),
        contract_lhs=tuple(axis + lhs for axis in op.contract_lhs),
        contract_rhs=tuple(axis + rhs for axis in op.contract_rhs),
    )
    found = b.tape.append(wider, b.operands)
    if both:
        return found
    ahead = len(op.batch_lhs)
    rows = len(b.shape(0)) - ahead - len(op.contract_lhs)
    # A result's axes are the batch, the rows of the left operand, those of the right one: the
    # further axis is the first of the rows that it came with.
    return found.move_axis(ahead if lhs else ahead + rows, 0)


@batches(Cholesky, Qr, Eigh, Svd, Lu)
def factorise(b: Batching) -> Term:
    return b.tape.append(b.op, b.operands)


batches(TriangularSolve)(elementwise)


@batches(LayerNorm)
def layer_norm(b: Batching) -> Term:
    op = op_as(b, LayerNorm)
    axis = normalise_axis(op.feature_axis, len(b.shape(0)))
    wider = changed(op, feature_axis=axis + 1)
    x = b.spread(0)
    if not any(b.batched[1:]):
        return b.emit(wider, x, *b.operands[1:])
    # The op rounds once, so what it leaves to do is done in the same dtype.
    dtype = F64 if x.dtype is F64 else F32
    z = x.cast(dtype)
    extent = b.shape(0)[axis]
    # Weights that differ within the batch do not fit the op: it normalises alone, with weights of 1
    # and 0.
    plain = b.tape.append(wider, [z, z.full(1, [extent]), z.full(0, [extent])])
    column = [b.size, *(1 for _ in b.shape(0))]
    column[axis + 1] = extent
    scale, shift = (b.spread(i).cast(dtype).reshape(column).broadcast_to(z.shape) for i in (1, 2))
    return (plain * scale + shift).cast(x.dtype)


@batches(Quantize, Dequantize, Requantize)
def quantise(b: Batching) -> Term:
    """Parameters of each value are parameters along the batch axis; where they lie along an axis
    already, the batch joins it."""
    axis = getattr(b.op, "axis", None)
    if not any(b.batched[1:]):
        wider = changed(b.op, axis=None if axis is None else axis + 1)
        return b.emit(wider, *b.operands)
    if axis is None:
        return b.emit(changed(b.op, axis=0), *b.all_spread)
    return _quantised_rows(b, normalise_axis(axis, len(b.shape(0))))


def _quantised_rows(b: Batching, axis: int) -> Term:
    """Each position of the axis in each value of the batch is a row with parameters of its own."""
    first = b.spread(0).move_axis(axis + 1, 1)
    sizes = (b.size, first.shape[1])
    for dim in sizes:
        if isinstance(dim, Symbol):
            raise unknown_size(dim)
    rows = multiply_dims(*sizes)
    flat = first.reshape([rows, *first.shape[2:]])
    parameters = []
    for index in range(1, len(b.operands)):
        given = b.spread(index)
        column = given if given.rank == 2 else given.reshape([b.size, 1]).broadcast_to(sizes)
        parameters.append(column.reshape([rows]))
    found = b.tape.append(changed(b.op, axis=0), [flat, *parameters])
    return found.reshape(first.shape).move_axis(1, axis + 1)


@batches(PhiloxBits, PhiloxUniform, PhiloxNormal)
def philox(b: Batching) -> Term:
    return b.emit(b.op, *b.operands)
