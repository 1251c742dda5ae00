"""The contractions that the GPU benchmarks and device tests build: region kernels by hand, plans
from files, cubins from a cache.

A kernel here is exactly what fusion makes of `activation(x @ w + bias)`: nothing below the region
stage knows that it was written by hand.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from weft.codegen.gpu import ir
from weft.codegen.gpu.assemble import kernel_code
from weft.codegen.gpu.compile import Report, compile_cuda, read_log, version
from weft.codegen.gpu.products import sm90
from weft.codegen.gpu.spelling.print import cuda
from weft.foundation.dtypes import BF16, F32, DType
from weft.foundation.index_expr import Expr, axis
from weft.memory.ir import Buffer, MemRef, Space
from weft.plan import text
from weft.plan.ir import MmaPlan
from weft.region.forms.find import find_form
from weft.region.ir import Kernel, KernelAxis, Output, Pattern, Roles, Tensor
from weft.region.writing.build import Body
from weft.runtime.artifact import KernelCode
from weft.target.sm90 import SM90

PLANS = Path(__file__).parent / "plans"
ARCH = "sm_90a"


@dataclass(frozen=True)
class Contraction:
    """`y = activation(a @ b + bias)`, sizes, layouts and dtypes.

    `layouts` are those of A and B as stored: `row` has the last axis of [m, k] or [k, n]
    contiguous, `col` the first one.
    """

    m: int
    n: int
    k: int
    batch: int = 0
    dtype: DType = BF16
    out_dtype: DType = BF16
    layouts: tuple[str, str] = ("row", "col")
    epilogue: tuple[str, ...] = ()
    b_dtype: DType | None = None
    """The dtype of B, where it is another one."""
    total: DType = F32
    """The dtype of the sums."""

    @property
    def a_shape(self) -> tuple[int, ...]:
        pair = (self.m, self.k) if self.layouts[0] == "row" else (self.k, self.m)
        return (*self.lead, *pair)

    @property
    def b_shape(self) -> tuple[int, ...]:
        pair = (self.k, self.n) if self.layouts[1] == "row" else (self.n, self.k)
        return (*self.lead, *pair)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (*self.lead, self.m, self.n)

    @property
    def lead(self) -> tuple[int, ...]:
        return (self.batch,) if self.batch else ()


def region_kernel(shape: Contraction) -> Kernel:
    """The region kernel of a contraction."""
    lead = (KernelAxis("b", shape.batch),) if shape.batch else ()
    sizes = (KernelAxis("m", shape.m), KernelAxis("n", shape.n))
    axes = (*lead, *sizes, KernelAxis("k", shape.k, reduce=True))
    names = tuple(a.name for a in lead)
    body = Body([a.name for a in axes])
    a_axes = ("m", "k") if shape.layouts[0] == "row" else ("k", "m")
    b_axes = ("k", "n") if shape.layouts[1] == "row" else ("n", "k")
    lhs = body.read("a", shape.dtype, _index(*names, *a_axes))
    rhs = body.read("b", shape.b_dtype or shape.dtype, _index(*names, *b_axes))
    product = body.binary("mul", _widened(body, lhs, shape), _widened(body, rhs, shape))
    total = body.reduce("sum", product, ("k",), shape.total)
    result, kind = total, shape.total
    for name in shape.epilogue:
        result = _epilogue(body, name, result, shape, names)
        kind = F32 if name == "scale" else kind
    if shape.out_dtype is not kind:
        result = body.cast(result, shape.out_dtype)
    kernel = Kernel(
        "gemm",
        Pattern.MATMUL,
        axes,
        tuple(body.lets),
        (Output("y", result, _index(*names, "m", "n")),),
        roles=Roles(names, ("m",), ("n",), ("k",), total, lhs, rhs),
    )
    tensors = {name: Tensor(name, F32, sizes) for name, sizes in _shapes(shape).items()}
    return replace(kernel, form=find_form(kernel, tensors))


def _widened(body: Body, side: str, shape: Contraction) -> str:
    return side if shape.dtype is shape.total else body.cast(side, shape.total)


def _epilogue(body: Body, name: str, value: str, shape: Contraction, lead: tuple[str, ...]) -> str:
    match name:
        case "bias":
            bias = _widened(body, body.read("bias", shape.dtype, _index("n")), shape)
            return body.binary("add", value, bias)
        case "scale":
            wide = value if shape.total is F32 else body.cast(value, F32)
            return body.binary("mul", wide, body.read("rows", F32, _index("m")))
        case "rows":
            scale = body.read("rows", F32, _index("m"))
            return body.binary("mul", value, scale)
        case "residual":
            other = body.read("residual", shape.out_dtype, _index(*lead, "m", "n"))
            wide = other if shape.out_dtype is F32 else body.cast(other, F32)
            return body.binary("add", value, wide)
        case _:
            return body.unary(name, value)


def _index(*names: str) -> tuple[Expr, ...]:
    return tuple(axis(name) for name in names)


def references(shape: Contraction) -> dict[str, MemRef]:
    """Where each tensor lies: all of them row-major."""
    return {name: _dense(name, sizes) for name, sizes in _shapes(shape).items()}


def _shapes(shape: Contraction) -> dict[str, tuple[int, ...]]:
    found = {"a": shape.a_shape, "b": shape.b_shape, "y": shape.y_shape}
    return found | {"bias": (shape.n,), "rows": (shape.m,), "residual": shape.y_shape}


def _dense(name: str, sizes: tuple[int, ...]) -> MemRef:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    return MemRef(name, Buffer(Space.INPUT, 0, 0, step), sizes, tuple(strides), 256, True)


def plan_names() -> list[str]:
    return sorted(path.stem for path in PLANS.glob("*.json"))


def load_plan(name: str) -> MmaPlan:
    """A plan file."""
    plan = text.load_plan((PLANS / f"{name}.json").read_text())
    assert isinstance(plan, MmaPlan)
    return plan


def dialect_kernel(shape: Contraction, plan: MmaPlan) -> ir.Kernel:
    """The dialect kernel of a contraction; the plan takes over the layouts it is stored in."""
    plan = replace(plan, operand_layouts=shape.layouts)
    return sm90.build(region_kernel(shape), references(shape), plan, SM90, "gemm")


@dataclass(frozen=True)
class Built:
    """A compiled kernel and the names of its buffers, in the order of its parameters."""

    code: KernelCode
    buffers: tuple[str, ...]
    report: Report
    source: str


def build(shape: Contraction, plan: MmaPlan, cache: Path | None = None) -> Built:
    """Compile a contraction, or take it from the cache."""
    kernel = dialect_kernel(shape, plan)
    source = cuda(kernel)
    code, log = _cubin(source, cache)
    return Built(kernel_code(kernel, code), kernel.buffers, read_log(log), source)


def _cubin(source: str, cache: Path | None) -> tuple[bytes, str]:
    if cache is None:
        cubin = compile_cuda(source, ARCH)
        return cubin.code, cubin.log
    key = hashlib.sha256(f"{ARCH}\n{source}".encode()).hexdigest()[:24]
    stored, log = cache / f"{key}.cubin", cache / f"{key}.log"
    if stored.exists() and log.exists():
        return stored.read_bytes(), log.read_text()
    cubin = compile_cuda(source, ARCH)
    cache.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{cubin.log}\nNVRTC {version()}\n")
    stored.write_bytes(cubin.code)
    return cubin.code, cubin.log
