"""A Poly-View executed block by block with NumPy: the meaning that its docstring gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions, numeric, philox
from weft.foundation.dims import static
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.index_expr import SELECTED, evaluate, params_of
from weft.poly_view.ir import Access, BlockKind, IterAxis, PolyBlock, Scop
from weft.tiny.ir import Cast, Check, Const, Iota, Words

Array = NDArray[Any]
Whole = Callable[[Any, Sequence[Array]], Array]


def run_scop(
    scop: Scop, inputs: Mapping[str, Array], opaque: Whole | None = None
) -> dict[str, Array]:
    """The program outputs by name, under the shapes of the program."""
    tensors = {
        name: np.asarray(inputs[name]).reshape(shape) for name, (_, shape) in scop.inputs.items()
    }
    executor = _Executor(scop, tensors, opaque)
    with np.errstate(all="ignore"):
        for block in scop.blocks:
            tensors[block.name] = executor.block(block)
        return {
            name: executor.read(access, axes).reshape(scop.shapes[name])
            for name, access, axes in scop.outputs
        }


class _Executor:
    def __init__(self, scop: Scop, tensors: dict[str, Array], opaque: Whole | None) -> None:
        self.scop, self.tensors, self.opaque = scop, tensors, opaque

    def params(self) -> dict[str, Any]:
        """Params whose tensor exists by now."""
        return {
            p.name: int(np.clip(int(self.read(p.access, ())), p.low, p.high))
            for p in self.scop.params
            if p.access.tensor in self.tensors
        }

    def read(
        self, access: Access, axes: Sequence[IterAxis], selected: Array | None = None
    ) -> Array:
        """The elements that an access reads, one per point of the axes; of a gather, at the places
        that are selected."""
        source = self.tensors[access.tensor]
        sizes = tuple(axis.size for axis in axes)
        places = np.indices(sizes, sparse=True)
        env: dict[str, Any] = {axis.name: place for axis, place in zip(axes, places, strict=True)}
        if any(params_of(e) for e in (*access.map, *(g.expr for g in access.guards))):
            env.update(self.params())
            env[SELECTED] = selected
        inside: Any = np.ones(sizes, bool)
        for guard in access.guards:
            value = evaluate(guard.expr, env)
            inside = inside & (value >= 0) & (value < guard.size)
        index = [np.broadcast_to(evaluate(e, env), sizes) for e in access.map]
        if 0 in sizes:
            result: Array = np.zeros(sizes, source.dtype)
        else:
            for k, where in enumerate(index):
                bad = inside & ((where < 0) | (where >= source.shape[k]))
                assert not bad.any(), f"{access.tensor} is read out of range on axis {k}"
            fallback = source.dtype.type(0) if access.fill is None else access.fill
            clipped = tuple(np.where(inside, i, 0) for i in index)
            found = source[clipped] if 0 not in source.shape else np.zeros(sizes, source.dtype)
            filled = np.asarray(fallback).astype(source.dtype)
            result = np.where(inside, np.broadcast_to(found, sizes), filled).astype(source.dtype)
            assert access.fill is not None or inside.all(), "a guard fails and there is no fill"
        if access.widen is not None:
            result = numeric.cast(result, as_dtype(result.dtype), access.widen)
        return result

    def block(self, block: PolyBlock) -> Array:
        if block.kind is BlockKind.UPDATE:
            return self.update(block)
        if block.kind is BlockKind.OPAQUE:
            return self.whole(block)
        if block.selected:
            where, source = block.accesses
            return self.read(source, block.axes, self.read(where, block.axes))
        if isinstance(block.value, Words):
            return self.words(block)
        args = [self.read(access, block.axes) for access in block.accesses]
        if block.kind is BlockKind.MOVEMENT:
            return args[0]
        over = [k for k, axis in enumerate(block.axes) if axis.reduce]
        if block.kind is BlockKind.CONTRACTION:
            dtype = as_dtype(args[0].dtype)
            product = numeric.cast(
                functions.binary("mul", dtype, args[0], args[1]), dtype, block.dtype
            )
            return functions.reduce("sum", block.dtype, product, over, block.dtype)
        if block.kind is BlockKind.REDUCE:
            return functions.reduce(block.fn, block.dtype, args[0], over, block.dtype)
        return self.ewise(block, args)

    def ewise(self, block: PolyBlock, args: Sequence[Array]) -> Array:
        value, sizes = block.value, tuple(axis.size for axis in block.axes)
        match value:
            case Const(value=scalar, dtype=dtype):
                return _constant(scalar, dtype)
            case Iota(axis=along, dtype=dtype):
                whole = tuple(static(d) for d in value.shape)
                counts: Array = np.indices(whole)[along]
                return numeric.cast(counts, as_dtype(counts.dtype), dtype).reshape(sizes)
            case Cast(x=x, dtype=dtype):
                return numeric.cast(args[0], x.dtype, dtype)
            case Check(rule=rule, size=size, code=code):
                return functions.checked(args[0], str(rule), size, code)
        if block.fn == "where":
            return np.asarray(np.where(*args))
        if block.fn in functions.UNARY:
            return functions.unary(block.fn, block.dtype, args[0])
        return functions.binary(block.fn, as_dtype(args[0].dtype), args[0], args[1])

    def words(self, block: PolyBlock) -> Array:
        seed, offset = (int(self.read(access, ())) for access in block.accesses)
        sizes = tuple(axis.size for axis in block.axes)
        stream, execution = offset & 0xFFFFFFFF, (offset >> 32) & 0xFFFFFFFF
        found = philox.words(seed & 0xFFFFFFFFFFFFFFFF, stream, execution, prod(sizes))
        return found.reshape(sizes)

    def update(self, block: PolyBlock) -> Array:
        assert block.write is not None
        assert block.base is not None
        result = np.array(self.tensors[block.base])
        assert result.shape == block.shape
        sizes = tuple(axis.size for axis in block.axes)
        places = np.indices(sizes, sparse=True)
        env: dict[str, Any] = {a.name: p for a, p in zip(block.axes, places, strict=True)}
        env.update(self.params())
        index = tuple(np.broadcast_to(evaluate(e, env), sizes) for e in block.write)
        for k, where in enumerate(index):
            assert where.size == 0 or (where.min() >= 0 and where.max() < block.shape[k])
        result[index] = self.read(block.accesses[0], block.axes)
        return result

    def whole(self, block: PolyBlock) -> Array:
        assert self.opaque is not None
        pairs = zip(block.accesses, block.value.inputs, strict=True)
        args = [self.tensors[access.tensor].reshape(x.shape) for access, x in pairs]
        return self.opaque(block.value, args).reshape(block.shape)


def _constant(scalar: Any, dtype: DType) -> Array:
    if dtype.is_float:
        return numeric.round_float(np.asarray(scalar, np.float64), dtype)
    return np.asarray(scalar).astype(dtype.numpy)
