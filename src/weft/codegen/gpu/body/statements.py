"""A builder of dialect statements for templates that emit them one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.formats import NARROW
from weft.codegen.gpu.ir.scalar import Like, Lit, Name, Scalar, scalar, wide
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError


@dataclass
class Code:
    """Statements in the making."""

    body: list[ir.Stmt] = field(default_factory=list)
    count: int = 0

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def let(self, stem: str, value: Scalar) -> Scalar:
        """A number of the thread in a variable."""
        return value if isinstance(value, Lit) else self.variable(stem, value)

    def variable(self, stem: str, value: Like) -> Scalar:
        """A number of the thread that changes."""
        name = self.fresh(stem)
        self.body.append(ir.Let(name, scalar(value)))
        return Name(name)

    def compute(self, dtype: DType, fn: str, *args: str, value: Number | None = None) -> str:
        name = self.fresh()
        self.body.append(values.Compute(ElementOp(name, dtype, fn, args, value)))
        return name

    def choose(self, dtype: DType, cond: Scalar, x: str, y: str) -> str:
        name = self.fresh()
        self.body.append(values.Choose(name, dtype, cond, x, y))
        return name

    def load(
        self, buffer: int, dtype: DType, offset: Scalar, guard: Scalar, fill: Number, constant: bool
    ) -> str:
        name = self.fresh()
        self.body.append(ir.LoadElement(name, buffer, dtype, wide(offset), guard, fill, constant))
        return name

    def set(self, variable: Scalar, value: Scalar) -> None:
        """A new value for a number of the thread."""
        if not isinstance(variable, Name):
            raise InternalError(f"{variable} is not a variable")
        self.body.append(ir.Set(variable.name, value))

    def place(self, value: str, size: int) -> Scalar:
        """An integer value as a number of the thread, held to [0, size)."""
        name = self.fresh("at")
        self.body.append(values.PlaceOf(name, value, size))
        return Name(name)

    def inside(self) -> Code:
        """Statements of a loop or a branch, with names of their own."""
        return Code([], self.count)

    def widened(self, dtype: DType, value: str) -> str:
        """A value of a dtype as it is combined: narrow floats in f32."""
        return self.compute(F32, "cast", value) if dtype in NARROW else value

    def loop(self, variable: str, stop: Like, inner: Code, times: int = 1, start: Like = 0) -> None:
        self.count = inner.count
        self.body.append(ir.For(variable, start, stop, 1, tuple(inner.body), times))

    def branch(self, cond: Scalar, inner: Code) -> None:
        self.count = inner.count
        if cond == Lit(1):
            self.body += inner.body
        elif inner.body:
            self.body.append(ir.If(cond, tuple(inner.body)))

    def get(self, dtype: DType, place: ir.Address) -> str:
        """A value from shared memory."""
        name = self.fresh()
        self.body.append(ir.LoadShared(name, dtype, place))
        return name


def split_number(code: Code, number: Scalar, inner: int, count: int) -> tuple[Scalar, Scalar]:
    """A number below `count` as (place within `inner`, which one of these)."""
    if inner == count:
        return number, Lit(0)
    if inner == 1:
        return Lit(0), number
    return code.let("at", number % inner), code.let("at", number // inner)
