"""Random Core IR modules that verify, with inputs for them: the same for the same seed.

Floats stay inside bounds that are tracked from value to value, so that a result can be judged by
how large it may be; integers may take any value and wrap.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.one_op import Array
from weft.core_ir import Module, ModuleBuilder, Padding
from weft.core_ir.types import DTYPES, Shape, dtype_name
from weft.foundation.dtypes import SI32, SI64, DType
from weft.foundation.errors import SpecViolation

MOST_ELEMENTS = 400
LARGEST = 1e6
FLOATS = ("f32", "f64")


@dataclass
class Case:
    """A module, inputs for it, and a bound on the size of each output."""

    module: Module
    inputs: list[Array]
    bounds: list[float]


@dataclass
class _Maker:
    rng: random.Random
    builder: ModuleBuilder
    dtypes: Sequence[str]
    smooth: bool
    """Only what is differentiable everywhere near the inputs."""
    inputs: list[Array] = field(default_factory=list)
    bounds: dict[int, float] = field(default_factory=dict)
    lows: dict[int, float] = field(default_factory=dict)
    """The least that a float value can be, where that is above zero."""

    # -- values ----------------------------------------------------------------------------------

    def pool(self, wanted: Callable[[int], bool] = lambda value: True) -> list[int]:
        return [value for value in self.bounds if wanted(value)]

    def pick(self, wanted: Callable[[int], bool] = lambda value: True) -> int | None:
        found = self.pool(wanted)
        return self.rng.choice(found) if found else None

    def dtype(self, value: int) -> DType:
        return self.builder.type(value).dtype

    def shape(self, value: int) -> Shape:
        return self.builder.shape(value)

    def is_float(self, value: int) -> bool:
        return self.dtype(value).is_float

    def keep(self, value: int, bound: float, low: float = 0.0) -> None:
        self.bounds[value] = bound
        if low > 0:
            self.lows[value] = low

    def random_shape(self, rank: int | None = None) -> Shape:
        rank = self.rng.choice([0, 1, 1, 2, 2, 3, 4]) if rank is None else rank
        return tuple(self.rng.choice([1, 1, 2, 3, 4]) for _ in range(rank))

    def data(self, dtype: DType, shape: Shape) -> Array:
        rng = np.random.default_rng(self.rng.randrange(2**32))
        if not dtype.is_integer:
            # Away from zero, where Relu bends.
            signs = rng.choice([-1.0, 1.0], shape)
            return np.asarray(signs * rng.uniform(0.25, 2.0, shape)).astype(dtype.numpy)
        if self.rng.random() < 0.5:
            return rng.integers(-3, 4, shape).astype(dtype.numpy)
        low, high = int(dtype.lowest), int(dtype.highest)
        return np.asarray(rng.integers(low, high, shape, np.int64, endpoint=True)).astype(
            dtype.numpy
        )

    def bound_of(self, dtype: DType) -> float:
        return 2.0 if dtype.is_float else 0.0

    def input(self) -> None:
        dtype, shape = DTYPES[self.rng.choice(list(self.dtypes))], self.random_shape()
        value = self.builder.input(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(self.data(dtype, shape))
        self.keep(value, self.bound_of(dtype))

    def constant(self, dtype: DType | None = None, shape: Shape | None = None) -> int:
        dtype = dtype or DTYPES[self.rng.choice(list(self.dtypes))]
        shape = self.random_shape() if shape is None else tuple(max(d, 1) for d in shape)
        data = self.data(dtype, shape)
        if dtype is SI32 or (not shape and self.rng.random() < 0.5):
            value = self.builder.emit(
                "ConstTensor", data=data, dtype=dtype_name(dtype), shape=shape
            )
        else:
            value = self.builder.constant(data, dtype)
        self.keep(value, self.bound_of(dtype))
        return value

    def beside(self, value: int, shape: Shape | None = None) -> int:
        """Another operand of the same dtype, of that shape if it is given."""
        dtype = self.dtype(value)
        other = self.pick(
            lambda v: self.dtype(v) is dtype and (shape is None or self.shape(v) == shape)
        )
        if other is None or self.rng.random() < 0.3:
            return self.constant(dtype, shape)
        return other

    # -- instructions ----------------------------------------------------------------------------

    def binary(self) -> None:
        x = self.pick()
        if x is None:
            return
        target = tuple(d if self.rng.random() < 0.7 else 1 for d in self.shape(x))
        other = self.rng.choice([self.shape(x), target, target[1:]])
        y = self.beside(x, other)
        x, y = (y, x) if self.rng.random() < 0.5 else (x, y)
        opcode = self.rng.choice(["Add", "Sub", "Mul"])
        a, b = self.bounds[x], self.bounds[y]
        self.add(opcode, [x, y], a * b if opcode == "Mul" else a + b)

    def divide(self) -> None:
        x = self.pick(lambda v: "div" in self.builder.extensions)
        if x is None:
            return
        dtype = self.dtype(x)
        data = self.data(dtype, self.shape(x))
        data[data == 0] = -1
        y = self.builder.emit(
            "ConstTensor", data=data, dtype=dtype_name(dtype), shape=self.shape(x)
        ) if 0 not in self.shape(x) else x  # fmt: skip
        if y != x:
            self.keep(y, self.bound_of(dtype))
            self.add("Div", [x, y], self.bounds[x] * 4)

    def unary(self) -> None:
        x = self.pick(lambda v: v in self.lows) if self.rng.random() < 0.3 else self.pick()
        if x is None:
            return
        choices = ["Neg"]
        if self.is_float(x):
            choices += [] if self.smooth and x not in self.pool(self.is_leaf) else ["Relu"]
            choices += ["Exp"] if self.bounds[x] <= 3 else []
            choices += ["Log"] if x in self.lows else []
        opcode = self.rng.choice(choices)
        if opcode == "Exp":
            self.add(opcode, [x], float(np.exp(self.bounds[x])), float(np.exp(-self.bounds[x])))
        elif opcode == "Log":
            self.add(opcode, [x], float(max(abs(np.log(self.lows[x])), np.log(self.bounds[x]), 1)))
        else:
            self.add(opcode, [x], self.bounds[x])

    def is_leaf(self, value: int) -> bool:
        """Inputs, whose values are away from zero."""
        return value < len(self.inputs)

    def reduce(self) -> None:
        x = self.pick()
        if x is None:
            return
        rank = len(self.shape(x))
        axes = [axis for axis in range(rank) if self.rng.random() < 0.5]
        self.rng.shuffle(axes)
        axes = [axis - rank if self.rng.random() < 0.3 else axis for axis in axes]
        opcode = self.rng.choice(["Sum", "Mean"])
        count = max(1, int(np.prod([self.shape(x)[a] for a in axes] or self.shape(x))))
        bound = self.bounds[x] * (count if opcode == "Sum" else 1)
        self.add(opcode, [x], bound, axes=axes, keepdims=self.rng.random() < 0.5)

    def move(self) -> None:
        x = self.pick()
        if x is None:
            return
        shape = self.shape(x)
        rank = len(shape)
        match self.rng.randrange(4):
            case 0:
                dims = [d for d in shape if d != 1]
                self.rng.shuffle(dims)
                new = [*dims, *[1] * self.rng.randrange(2)]
                if new and self.rng.random() < 0.5:
                    new[self.rng.randrange(len(new))] = -1
                self.add("Reshape", [x], self.bounds[x], self.lows.get(x, 0.0), new_shape=new)
            case 1:
                order = list(range(rank))
                self.rng.shuffle(order)
                low = self.lows.get(x, 0.0)
                self.add("Transpose", [x], self.bounds[x], low, permutation=order)
            case 2:
                count = self.rng.randrange(3)
                axes = self.rng.sample(range(rank + count), count)
                self.add("ExpandDims", [x], self.bounds[x], self.lows.get(x, 0.0), axes=axes)
            case 3:
                ones = [axis for axis, dim in enumerate(shape) if dim == 1]
                axes = self.rng.sample(ones, self.rng.randrange(len(ones) + 1))
                self.add("Squeeze", [x], self.bounds[x], self.lows.get(x, 0.0), axes=axes)

    def take(self) -> None:
        x = self.pick()
        if x is None:
            return
        shape, bound = self.shape(x), self.bounds[x]
        match self.rng.randrange(3):
            case 0 if 0 not in shape:
                self.add("Index", [x], bound, indices=[self.rng.randrange(d) for d in shape])
            case 1:
                starts = [self.rng.randint(-1, d) for d in shape]
                ends = [self.rng.randint(s, d + 2) for s, d in zip(starts, shape, strict=True)]
                steps = [self.rng.choice([1, 1, 2, 3]) for _ in shape]
                self.add("Slice", [x], bound, starts=starts, ends=ends, steps=steps)
            case _ if shape and shape[0]:
                where = np.array(
                    [self.rng.randrange(shape[0]) for _ in range(self.rng.randrange(1, 4))]
                )
                dtype = self.rng.choice([SI32, SI64])
                indices = self.builder.constant(where.astype(dtype.numpy), dtype)
                self.add("Gather", [x, indices], bound)

    def product(self) -> None:
        x = self.pick(lambda v: len(self.shape(v)) >= 1 and 0 not in self.shape(v))
        if x is None:
            return
        shape = self.shape(x)
        n = self.rng.choice([1, 2, 3])
        if len(shape) == 1:
            y = self.beside(x, self.rng.choice([shape, (shape[0], n)]))
            opcode = "Dot"
        elif len(shape) == 2 and self.rng.random() < 0.5:
            y = self.beside(x, self.rng.choice([(shape[1],), (shape[1], n)]))
            opcode = "Dot"
        else:
            batch = tuple(self.rng.choice([1, d]) for d in shape[:-2])
            y = self.beside(x, (*self.rng.choice([(), batch, shape[:-2]]), shape[-1], n))
            opcode = "MatMul"
        self.add(opcode, [x, y], self.bounds[x] * self.bounds[y] * shape[-1])

    def convolve(self) -> None:
        dtype = DTYPES[self.rng.choice(list(self.dtypes))]
        found = self.pick(lambda v: len(self.shape(v)) == 4 and 0 not in self.shape(v))
        x = self.constant(dtype, (1, 5, 4, 2)) if found is None else found
        shape = self.shape(x)
        height, width = self.rng.randint(1, 3), self.rng.randint(1, 3)
        padding = self.rng.choice(
            [Padding("Valid"), Padding("Same"), Padding("Custom", ((1, 0), (2, 3)))]
        )
        y = self.beside(x, (height, width, shape[3], self.rng.choice([1, 2])))
        strides = [self.rng.choice([1, 2]), self.rng.choice([1, 3])]
        bound = self.bounds[x] * self.bounds[y] * height * width * shape[3]
        self.add("Conv2d", [x, y], bound, strides=strides, padding=padding)

    def add(
        self, opcode: str, operands: list[int], bound: float, low: float = 0.0, **attributes: object
    ) -> None:
        """Append an instruction, unless it would not verify or grow too large."""
        if bound > LARGEST:
            return
        try:
            value = self.builder.emit(opcode, *operands, **attributes)
        except SpecViolation:
            return
        if self.builder.type(value).size > MOST_ELEMENTS:
            self.builder.operations.pop()
            return
        self.keep(value, bound, low)


def random_case(
    seed: int, size: int = 12, dtypes: Sequence[str] = tuple(DTYPES), *, smooth: bool = False,
    div: bool = False,
) -> Case:  # fmt: skip
    """A module of about `size` instructions."""
    rng = random.Random(f"core {seed}")
    maker = _Maker(rng, ModuleBuilder(extensions=["div"] if div else []), dtypes, smooth)
    for _ in range(rng.randint(1, 3)):
        maker.input()
    steps: list[Callable[[], object]] = [
        maker.binary, maker.binary, maker.unary, maker.unary, maker.reduce, maker.move, maker.take,
        maker.product, maker.convolve, maker.divide, maker.constant,
    ]  # fmt: skip
    for _ in range(size):
        rng.choice(steps)()
    outputs = [v for v in maker.bounds if v >= len(maker.inputs)] or list(maker.bounds)
    chosen = rng.sample(outputs, min(len(outputs), rng.randint(1, 4)))
    bounds = [maker.bounds[v] for v in chosen]
    return Case(maker.builder.build(*chosen), maker.inputs, bounds)
