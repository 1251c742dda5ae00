"""A fixed list of instances of the GPU templates: small kernels that no card is needed to compile.

Matrix kernels are those of `gpu_support` and `gpu_types`, as their plans say; the rest are
programs, each with the template that must carry out one of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.device.sanitize import PROGRAMS as SANITIZED
from tests.support.gpu_contractions import SM80_CASES, SM90_CASES
from tests.support.gpu_convolutions import GRADIENTS
from tests.support.gpu_types import SM80_TYPES, SM90_TYPES, Case
from weft.codegen.gpu.templates import template_for
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import Plan, RowPlan
from weft.ptir import Builder, Program, Value

MATRICES: Final[dict[str, dict[str, Case]]] = {
    "sm90": {**SM90_CASES, **SM90_TYPES},
    "sm80": {**SM80_CASES, **SM80_TYPES},
}


@dataclass(frozen=True)
class Instance:
    """A program, the template of one of its kernels, and what of the last plan is changed."""

    make: Callable[[], Program]
    template: str
    changes: dict[str, int] = field(default_factory=dict)


def of(make: Callable[..., Value], *params: tuple[str, list[int]]) -> Callable[[], Program]:
    """A program of parameters of such dtypes and shapes."""

    def made() -> Program:
        b = Builder()
        return b.build(make(b, *(b.param(dtype, shape) for dtype, shape in params)))

    return made


def cast(source: str, target: str) -> Instance:
    return Instance(of(lambda b, x: b.cast(x, target), (source, [4096])), "map")


def norm(dtype: str, rows: int, length: int, template: str, **changes: int) -> Instance:
    def program(b: Builder, x: Value, scale: Value, shift: Value) -> Value:
        return b.layer_norm(x, scale, shift, epsilon=1e-5, feature_axis=1)

    shapes = ([rows, length], [length], [length])
    return Instance(of(program, *((dtype, shape) for shape in shapes)), template, changes)


def product(dtype: str, size: int, length: int, template: str) -> Instance:
    """Two matrices that lie along what is added up."""

    def program(b: Builder, x: Value, w: Value) -> Value:
        return b.dot_general(x, w, contract=([1], [1]))

    return Instance(of(program, *[(dtype, [size, length])] * 2), template)


def sanitized(name: str, template: str) -> Instance:
    make, _, changes = SANITIZED[name]
    return Instance(make, template, changes)


def _dropout(b: Builder, x: Value) -> Value:
    kept = b.compare(b.rng_uniform(shape=[512, 64], dtype="f32"), 0.9, "less")
    return b.select(kept, x * 1.25, b.full([512, 64], 0.0, "f32"))


def _filters() -> Program:
    case, of = GRADIENTS["of the filters, stride 2"]
    return case.gradient(of)


COMMON: Final[dict[str, Instance]] = {
    "map": sanitized("map", "map"),
    "map, broadcast": Instance(
        of(
            lambda b, x, y: b.tanh(x + b.broadcast_to(y, [64, 256])),
            ("bf16", [64, 256]),
            ("bf16", [256]),
        ),
        "map",
    ),
    "bf16 to f32": cast("bf16", "f32"),
    "f32 to fp8": cast("f32", "fp8_e4m3"),
    "f64 to si32": cast("f64", "si32"),
    "sine": Instance(of(lambda b, x: b.sin(x), ("f32", [4096])), "map"),
    "tangent of f64": Instance(of(lambda b, x: b.tan(x), ("f64", [4096])), "map"),
    "row of cosines": Instance(
        of(lambda b, x: b.reduce_sum(b.cos(x), [1]), ("bf16", [40, 1000])), "row"
    ),
    "dropout": Instance(of(_dropout, ("f32", [512, 64])), "map"),
    "gather of rows": Instance(
        of(lambda b, x, i: b.take(x, i), ("bf16", [100, 64]), ("si64", [40])), "map"
    ),
    "gather of elements": Instance(
        of(lambda b, x, i: b.gather(x, i, axis=1), ("f32", [30, 64]), ("si32", [30, 8])), "map"
    ),
    "transposed": sanitized("transposed", "transposed"),
    "transposed, in runs": sanitized("transposed, in runs", "transposed"),
    "row, a warp": sanitized("row, a warp", "row"),
    "row, a block": sanitized("row, a block", "row"),
    "row, norm": norm("bf16", 100, 1024, "row"),
    "rows, two to a thread": sanitized("rows, two to a thread", "several"),
    "rows, two to a thread, bf16 norm": norm("bf16", 65_536, 256, "several"),
    "rows, two to a thread, f32 norm": norm("f32", 32_768, 256, "several"),
    "row, argmax": Instance(of(lambda b, x: b.arg_max(x, axis=1), ("bf16", [40, 1000])), "row"),
    "columns": sanitized("columns", "columns"),
    "columns, bf16": Instance(
        of(lambda b, x: b.reduce_max(x, [0]), ("bf16", [512, 64])), "columns"
    ),
    "rows, eight together": Instance(
        of(
            lambda b, x, y: b.softmax(x + b.transpose(y, [1, 0]), axis=1),
            ("f32", [64, 1024]),
            ("f32", [1024, 64]),
        ),
        "row",
        {"rows_per_block": 8, "threads": 64},
    ),
    "fma": sanitized("fma", "fma"),
    "fma, a ring of three": sanitized("fma, a ring of three", "fma"),
    "convolution": Instance(
        of(
            lambda b, x, w: b.emit("weft.conv", x, w, layout="NHWC", pad=[1, 1, 1, 1]),
            ("f32", [1, 16, 16, 8]),
            ("f32", [3, 3, 8, 32]),
        ),
        "fma",
    ),
    "groups of 8 channels": sanitized("groups of 8 channels", "groups"),
    "groups of 6 channels": sanitized("groups of 6 channels", "groups"),
    "attention": sanitized("attention", "attention"),
    "attention, a mask": sanitized("attention, a mask", "attention"),
    "attention of few queries": sanitized("attention of few queries", "attention"),
    "weights of 4 bits": sanitized("weights of 4 bits", "codes"),
    "weights of 8 bits, one row": sanitized("weights of 8 bits, one row", "codes"),
    "scatter": sanitized("scatter", "Scatter"),
    "scatter of integers": sanitized("scatter of integers", "Scatter"),
    "scatter of sorted updates": sanitized("scatter of sorted updates", "Collected"),
    "sums in bins": sanitized("sums in bins", "Binned"),
    "running": sanitized("running", "Running"),
    "running, in parts": sanitized("running, in parts", "Continued"),
    "order, a warp": sanitized("order, a warp", "Order"),
    "order, a block": sanitized("order, a block", "Order"),
}
PROGRAMS: Final[dict[str, dict[str, Instance]]] = {
    "sm80": {
        **COMMON,
        "attention, two bands": sanitized("attention by warps", "attention"),
        "windows of an image": sanitized("windows of an image by warps", "sm80"),
        "gradient of filters": Instance(_filters, "sm80"),
    },
    "sm90": {
        **COMMON,
        "row, a cluster": sanitized("row, a cluster", "cluster"),
        "row, a ring": sanitized("row, a ring", "ring"),
        "row, rings of a cluster": sanitized("row, rings of a cluster", "ring"),
        "row, argmax in a ring": Instance(
            of(lambda b, x: b.arg_max(x, axis=1), ("f32", [4096, 65536])), "ring"
        ),
        "order of long rows": sanitized("order of long rows", "Moved"),
        "scatter of sorted rows": sanitized("scatter of sorted rows", "Collected"),
        "long sums in two kernels": product("bf16", 128, 65536, "sm90"),
        "sums in parts": sanitized("sums in parts", "sm90"),
        "sums of columns": sanitized("sums of columns", "sm90"),
        "windows of an image": sanitized("windows of an image", "sm90"),
        "pool of planes": sanitized("pool of planes", "planes"),
        "gradients of attention": sanitized("gradients of attention", "attention"),
        "tiles of groups": sanitized("rows of groups", "GroupTiles"),
        "rows of groups": sanitized("rows of groups", "GroupedTiles"),
        "spans of groups": sanitized("rows of groups, gradients", "GroupSpans"),
        "outer products of groups": sanitized("rows of groups, gradients", "OuterTiles"),
        "gradient of filters": Instance(_filters, "sm90"),
        "sines of a product": Instance(
            of(lambda b, x, w: b.sin(b.matmul(x, w)), *[("bf16", [256, 256])] * 2), "sm90"
        ),
        "product of f64": product("f64", 256, 128, "sm80"),
    },
}


def templates_of(compilation: Compilation) -> set[str]:
    """The templates that carry out a program's kernels: by plan, or by the op that stays whole."""
    plans = compilation["plan"]
    names = {kernel.name: kernel for kernel in compilation["region"].kernels}
    found = set()
    for name in compilation["gpu"].launches:
        call = names[name].opaque
        found.add(template_of(plans.of(name)) if call is None else type(call.op).__name__)
    return found


def template_of(plan: Plan) -> str:
    template = template_for(plan)
    assert template is not None
    shared = isinstance(plan, RowPlan) and plan.blocks_per_row > 1 and template.name == "row"
    return "cluster" if shared else template.name
