"""The first choice of a plan: kinds by pattern, numbers by target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import weft
from tests.support import kernels
from tests.support.cases import each
from tests.support.gpu_programs import through_stages
from tests.support.lowered import graph_of, lowered
from tests.support.tiny_example import convolution
from weft.codegen.cpu import compile as cpu_compile
from weft.codegen.gpu.products import sm90
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import axis
from weft.memory.from_region import assign_buffers
from weft.plan.contraction import register_tile
from weft.plan.edges import local_edges
from weft.plan.from_region import plan_kernel, plan_module
from weft.plan.ir import LocalEdge, MapPlan, MmaPlan, Plan, RowPlan
from weft.plan.verify import verify
from weft.ptir import Builder
from weft.region.form import MatrixAxes, Problem
from weft.region.forms.epilogue import find_epilogue
from weft.region.ir import (
    Kernel,
    KernelAxis,
    Module,
    OpaqueCall,
    Output,
    Pattern,
    problem_of,
)
from weft.target.cpu import describe
from weft.target.known import target_named
from weft.tiny.from_ptir import lower_program

KINDS: dict[str, dict[str, type[Plan]]] = {
    "linear": {"cpu": MmaPlan, "sm80": MmaPlan, "sm90": MmaPlan},
    "softmax": {"cpu": RowPlan, "sm80": RowPlan, "sm90": RowPlan},
    "softmax_fold": {"cpu": RowPlan, "sm80": RowPlan, "sm90": RowPlan},
    "layer_norm": {"cpu": RowPlan, "sm80": RowPlan, "sm90": RowPlan},
    "elementwise": {"cpu": MapPlan, "sm80": MapPlan, "sm90": MapPlan},
    "cache_update": {"cpu": MapPlan, "sm80": MapPlan, "sm90": MapPlan},
}


@pytest.mark.parametrize("target", ["cpu", "sm80", "sm90"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str, target: str) -> None:
    module = kernels.ALL[name]()
    plans = plan_module(module, target_named(target))
    (plan,) = plans.plans.values()
    assert type(plan) is KINDS[name][target]
    assert plan.header.target == target
    assert plan.header.kernel == plans.kernels[module.kernels[0].name]
    verify(plan, target_named(target), 4)


def test_equal_kernels_share_a_plan() -> None:
    one = kernels.linear(name="a", tensors=("x", "w", "b", "h"))
    two = kernels.linear(name="c", tensors=("h2", "w2", "b2", "y"))
    module = Module({**one.tensors, **two.tensors}, (*one.kernels, *two.kernels), (), ())
    plans = plan_module(module, target_named("cpu"))
    assert set(plans.kernels) == {"a", "c"}
    assert len(plans.plans) == 1
    assert plans.of("a") is plans.of("c")


def test_opaque_kernels_have_no_plan() -> None:
    kernel = Kernel(
        "o",
        Pattern.OPAQUE,
        (),
        (),
        (Output("y", "", ()),),
        opaque=OpaqueCall("sort", ("x",), (0,)),
    )
    module = replace(kernels.elementwise(), kernels=(kernel,))
    assert not plan_module(module, target_named("cpu")).plans


# -- contractions on SM90: forms that were measured to win, or within a percent of those -----------

SM90 = {
    (4096, 4096, 4096): ((128, 256, 64), "cooperative", False),
    (8192, 8192, 8192): ((128, 192, 64), "pingpong", False),
    (8192, 3072, 768): ((128, 192, 64), "pingpong", False),
    (4096, 14336, 4096): ((128, 256, 64), "cooperative", False),
    (1536, 1536, 1536): ((192, 96, 64), "cooperative", False),
    (256, 28672, 4096): ((128, 224, 64), "cooperative", False),
    (1024, 1024, 1024): ((64, 128, 64), "cooperative", False),
    (1024, 1024, 8192): ((64, 128, 64), "cooperative", False),
    (512, 512, 512): ((64, 64, 64), "cooperative", False),
    (16, 4096, 4096): ((64, 16, 64), "cooperative", True),
    (1, 28672, 4096): ((128, 8, 64), "cooperative", True),
}


def planned(m: int, n: int, k: int, target: str, activation: str = "none") -> MmaPlan:
    module = kernels.linear(m, n, k, dtype=BF16, activation=activation)
    plan = plan_kernel(module.kernels[0], module.tensors, target_named(target))
    assert isinstance(plan, MmaPlan)
    verify(plan, target_named(target))
    return plan


@pytest.mark.parametrize("sizes", SM90)
def test_sm90_forms(sizes: tuple[int, int, int]) -> None:
    plan = planned(*sizes, "sm90")
    assert (plan.tile, plan.roles, plan.swap_ab) == SM90[sizes]
    assert plan.stages >= 3


def test_sm90_details() -> None:
    plan = planned(4096, 4096, 4096, "sm90")
    assert (plan.stages, plan.consumers, plan.warp_tile) == (4, 2, (64, 256))
    assert (plan.registers, plan.deferred_epilogue) == ((40, 232), True)
    assert plan.operand_layouts == ("row", "row")
    gelu = planned(4096, 4096, 4096, "sm90", "gelu")
    assert (gelu.epilogue, gelu.tile) == (("bias", "gelu"), plan.tile)
    assert (gelu.registers, gelu.deferred_epilogue) == ((24, 240), True)
    assert not planned(8192, 8192, 64, "sm90").deferred_epilogue
    small = planned(512, 512, 512, "sm90")
    assert (small.consumers, small.registers) == (1, (0, 0))


def test_what_the_copy_engine_cannot_read_gets_the_older_form() -> None:
    assert planned(512, 512, 517, "sm90").arch == "sm80"
    assert planned(512, 512, 520, "sm90").arch == "sm90"


def test_sm80_form_is_the_documents() -> None:
    plan = planned(1024, 768, 512, "sm80", "relu")
    assert (plan.tile, plan.stages, plan.warp_tile) == ((128, 64, 64), 2, (64, 64))
    assert plan.bind == {"m.o": "block.y", "n.o": "block.x", "m.i.o": "warp.y", "n.i.o": "warp.x"}
    assert plan.predicate_tail == ()
    assert planned(1000, 768, 500, "sm80").predicate_tail == ("m.i.i", "k.i.i")
    wide = planned(8192, 3072, 768, "sm80")
    assert (wide.tile, wide.stages) == ((128, 128, 32), 4)


def test_tiles_that_all_run_at_once_share_both_operands_with_their_neighbours() -> None:
    assert planned(1024, 1024, 8192, "sm90").order == "grouped:4"
    assert planned(4096, 4096, 4096, "sm90").order == "grouped:8"


def test_of_equal_forms_the_one_with_the_least_beyond_the_result() -> None:
    """One step of k: storing decides, and 192 columns would reach an eighth beyond 1024."""
    module = kernels.linear(1024, 1024, 64, dtype=BF16, batch=192)
    plan = plan_kernel(module.kernels[0], module.tensors, target_named("sm90"))
    assert isinstance(plan, MmaPlan)
    assert 1024 % plan.tile[1] == 0


def test_the_problem_of_a_kernel() -> None:
    module = kernels.linear(24, 40, 16, dtype=F16, batch=3)
    problem = problem_of(module.kernels[0])
    axes = MatrixAxes(("b",), ("m",), ("n",), ("k",))
    assert problem == Problem(3, 24, 40, 16, F16, ("row", "row"), True, (32, 16), axes)
    assert problem.tiles(16, 16) == 3 * 2 * 3


def test_convolutions() -> None:
    given, y = convolution(filters=16)
    module = lowered(graph_of(tuple(given), y=y), "sm80").module
    plan = plan_kernel(module.kernels[0], module.tensors, target_named("sm80"))
    assert isinstance(plan, MmaPlan)
    assert (plan.arch, plan.algo_choice) == ("fma", {"conv": "implicit_gemm"})
    on_cpu = plan_kernel(module.kernels[0], module.tensors, target_named("cpu"))
    assert isinstance(on_cpu, MmaPlan)
    assert on_cpu.algo_choice == {"conv": "implicit_gemm"}


TYPES = {
    ("si8", "si32", "NT"): {"sm80": ("sm80", "full"), "sm90": ("sm90", "full")},
    ("si8", "si8", "NT"): {"sm80": ("sm80", "full"), "sm90": ("sm90", "full")},
    ("ui8", "ui32", "NN"): {"sm80": ("sm80", "full"), "sm90": ("sm90", "full")},
    ("fp8_e4m3", "bf16", "NT"): {"sm80": ("sm80", "full"), "sm90": ("sm90", "promoted")},
    ("fp8_e4m3", "f32", "NT"): {"sm80": ("sm80", "full"), "sm90": ("sm90", "full")},
    ("f64", "f64", "NN"): {"sm80": ("sm80", "full"), "sm90": ("sm80", "full")},
    ("f32", "f32", "NT"): {"sm80": ("fma", "full"), "sm90": ("fma", "full")},
}


@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize("case", TYPES, ids=" ".join)
def test_dtypes_of_contractions(case: tuple[str, str, str], target: str) -> None:
    """Every dtype has its instruction; f32 is never split unless a plan says so."""
    dtype, result, layout = case
    b = Builder()
    x, w = b.param(dtype, [256, 512]), b.param(dtype, [256, 512] if layout == "NT" else [512, 256])
    contract = ([1], [1] if layout == "NT" else [0])
    program = b.build(b.dot_general(x, w, contract=contract, out_dtype=result))
    plans = through_stages(program, target)["plan"]
    plan = plans.of("matmul0")
    assert (plan.arch, plan.precision) == TYPES[case][target]
    assert plans.notes == ()


def test_sums_of_8_bit_floats_that_might_cancel_keep_their_digits() -> None:
    """Scaled and rounded sums do not show what they lack; the difference with another may."""
    for scaled, wanted in ((True, "promoted"), (False, "full")):
        b = Builder()
        x, w = b.param("fp8_e4m3", [256, 512]), b.param("fp8_e4m3", [256, 512])
        other = b.param("f32", [256, 256])
        y = b.dot_general(x, w, contract=([1], [1]), out_dtype="f32")
        y = y * 0.125 if scaled else y - other
        plans = through_stages(b.build(b.cast(y, "bf16")), "sm90")["plan"]
        assert plans.of("matmul0").precision == wanted


# -- the CPU -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "lanes", "registers"),
    [(1024, 1024, 4, 32), (1024, 1024, 8, 16), (1024, 1024, 16, 32), (3, 7, 4, 32), (1, 1, 1, 16)],
)
def test_register_tiles_fit(m: int, n: int, lanes: int, registers: int) -> None:
    rows, vectors = register_tile(m, n, lanes, registers)
    assert 1 <= rows <= m
    assert rows * vectors + vectors + 1 <= registers


def test_register_tiles_are_large_where_there_is_room() -> None:
    rows, vectors = register_tile(1024, 1024, 4, 32)
    assert rows * vectors >= 20
    rows, vectors = register_tile(1024, 1024, 8, 16)
    assert rows * vectors >= 10


def test_lanes_follow_the_machine() -> None:
    module = kernels.elementwise(64, 64)
    machines = {
        4: describe("aarch64", frozenset({"asimd"}), 2, ()),
        8: describe("x86_64", frozenset({"avx2", "fma"}), 2, ()),
        16: describe("x86_64", frozenset({"avx512f"}), 2, ()),
    }
    for lanes, machine in machines.items():
        plan = plan_kernel(module.kernels[0], module.tensors, machine)
        assert isinstance(plan, MapPlan)
        assert plan.vector == lanes


@pytest.mark.parametrize(
    ("dtype", "width", "lanes"),
    [("si8", 1000, 16), ("ui16", 1000, 8), ("si32", 1000, 4), ("bf16", 1000, 4), ("si8", 100, 4)],
)
def test_long_rows_of_narrow_integers_have_more_lanes(dtype: str, width: int, lanes: int) -> None:
    b = Builder()
    x = b.param(dtype, [3, width])
    module = lowered(lower_program(b.build(b.maximum(x, x + x)))).module
    machine = describe("aarch64", frozenset({"asimd"}), 2, ())
    plan = plan_kernel(module.kernels[0], module.tensors, machine)
    assert isinstance(plan, MapPlan)
    assert plan.vector == lanes


@pytest.mark.parametrize(("dtype", "form"), [("si8", (16, 1)), ("si32", (4, 4)), ("f32", (4, 4))])
def test_narrow_integers_are_added_up_in_wide_vectors(dtype: str, form: tuple[int, int]) -> None:
    b = Builder()
    wide = "f32" if dtype == "f32" else "si32"
    total = b.reduce_sum(b.param(dtype, [1000]), [0], accum_dtype=wide, out_dtype=wide)
    module = lowered(lower_program(b.build(total))).module
    machine = describe("aarch64", frozenset({"asimd"}), 2, ())
    plan = plan_kernel(module.kernels[0], module.tensors, machine)
    assert isinstance(plan, RowPlan)
    assert (plan.vector, plan.accumulators) == form


@pytest.mark.parametrize(("rows", "turns"), [(1 << 20, 2), (64, 1)])
def test_gathers_of_many_rows_have_two_vectors_of_a_thread_on_their_way(
    rows: int, turns: int
) -> None:
    b = Builder()
    program = b.build(b.take(b.param("f32", [1000, 768]), b.param("si32", [rows])))
    (plan,) = through_stages(program, "sm90")["plan"].plans.values()
    assert isinstance(plan, MapPlan)
    assert (plan.unroll, plan.grain) == (turns, turns * 128 * 4)


@pytest.mark.parametrize(("operands", "threads"), [(1, 128), (2, 256)])
def test_blocks_of_one_operand_have_fewer_threads(operands: int, threads: int) -> None:
    b = Builder()
    x, *others = (b.param("f32", [256, 256]) for _ in range(operands))
    result = b.transpose(x, [1, 0])
    for other in others:
        result = result + other
    (plan,) = through_stages(b.build(result), "sm90")["plan"].plans.values()
    assert isinstance(plan, MapPlan)
    assert (plan.block, plan.threads) == (64, threads)


def test_gpu_rows() -> None:
    long = kernels.softmax(64, 8192)
    plan = plan_kernel(long.kernels[0], long.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.vector, plan.threads, plan.rows_per_block, plan.keep_row) == (4, 512, 1, True)
    # The threads of a row ask for whole lines of memory: 8 vectors of 16 bytes.
    short = kernels.softmax(1 << 20, 64)
    plan = plan_kernel(short.kernels[0], short.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.rows_per_block) == (16, 8)
    line = kernels.softmax(1 << 20, 32)
    plan = plan_kernel(line.kernels[0], line.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.rows_per_block) == (8, 16)
    few = kernels.softmax(64, 768)
    plan = plan_kernel(few.kernels[0], few.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.rows_per_block) == (64, 1)
    shared = kernels.softmax(4096, 65_536)
    plan = plan_kernel(shared.kernels[0], shared.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.blocks_per_row, plan.ring, plan.keep_row) == (512, 2, 16, True)
    # Weights stay in registers beside a row: so many blocks share it that they do.
    weighted = kernels.layer_norm(4096, 65_536)
    plan = plan_kernel(weighted.kernels[0], weighted.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.blocks_per_row, plan.ring, plan.keep_row) == (512, 8, 12, True)
    heavy = kernels.layer_norm(4096, 262_144)
    plan = plan_kernel(heavy.kernels[0], heavy.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.blocks_per_row, plan.ring, plan.keep_row) == (16, 16, True)
    # Where no cluster is that large, a ring would read them again for every row.
    few = kernels.layer_norm(16, 262_144)
    plan = plan_kernel(few.kernels[0], few.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.ring, plan.keep_row) == (0, True)
    plan = plan_kernel(shared.kernels[0], shared.tensors, target_named("sm80"))
    assert isinstance(plan, RowPlan)
    assert (plan.blocks_per_row, plan.keep_row) == (1, False)
    # Too few rows for a ring; 264 of 128 KB are still in the cache when they are read again.
    cached = kernels.softmax(100, 65_536, BF16)
    plan = plan_kernel(cached.kernels[0], cached.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert (plan.threads, plan.blocks_per_row, plan.keep_row) == (1024, 1, False)
    huge = kernels.softmax(2, 1 << 20)
    plan = plan_kernel(huge.kernels[0], huge.tensors, target_named("sm90"))
    assert isinstance(plan, RowPlan)
    assert not plan.keep_row


# -- epilogues -----------------------------------------------------------------------------------

EPILOGUES = {
    "gelu": ("bias", "gelu"),
    "relu": ("bias", "relu"),
    "tanh": ("bias", "tanh"),
    "none": ("bias",),
}


@pytest.mark.parametrize("activation", EPILOGUES)
def test_epilogues_are_named(activation: str) -> None:
    kernel = kernels.linear(activation=activation).kernels[0]
    assert find_epilogue(kernel) == EPILOGUES[activation]


def with_end(end: str) -> Kernel:
    """`x @ w` followed by something else."""
    kernel = kernels.linear(activation="none").kernels[0]
    known = {let.name: (let.dtype, let.axes) for let in kernel.body}
    body = kernels.Rows([found.name for found in kernel.axes], lets=list(kernel.body), known=known)
    total = kernel.roles.contraction if kernel.roles else ""
    one = body.const(1.0, F32)
    match end:
        case "silu":
            power = body.unary("exp", body.unary("neg", total))
            value = body.binary("div", total, body.binary("add", one, power))
        case "residual":
            value = body.binary("add", body.plain("y0", F32, "m", "n"), total)
        case "scale":
            value = body.binary("mul", total, one)
        case "relu":
            value = body.binary("max", body.const(0.0, F32), total)
        case "where":
            lower = body.binary("lt", body.index(axis("n"), F32), one)
            value = body.select(lower, total, one)
        case _:
            value = body.binary("mul", total, total)
    output = replace(kernel.outputs[0], value=value)
    return replace(kernel, body=tuple(body.lets), outputs=(output,))


@pytest.mark.parametrize("end", ["silu", "residual", "scale", "relu", "where", "ewise"])
def test_other_ends(end: str) -> None:
    assert find_epilogue(with_end(end)) == (end,)


def test_local_edges_lead_from_the_contraction_to_the_result() -> None:
    kernel = replace(kernels.linear().kernels[0], labels={"v3": "sum_k"})
    assert local_edges(kernel) == (LocalEdge("sum_k", "v6", "reg"),)
    assert local_edges(kernels.softmax().kernels[0]) == ()
    assert find_epilogue(kernels.softmax().kernels[0]) == ()


def test_axes_are_plain_records() -> None:
    assert KernelAxis("m", 4) == KernelAxis("m", 4, reduce=False)


# -- the templates take what is chosen -------------------------------------------------------------


@each("activation", ["none", "gelu"])
@each("batch", [0, 3])
@each("sizes", [*SM90, (100, 200, 128), (16, 4096, 4096), (1536, 1536, 1536)])
def test_the_sm90_template_accepts_its_plans(
    sizes: tuple[int, int, int], batch: int, activation: str
) -> None:
    module = kernels.linear(*sizes, dtype=BF16, activation=activation, batch=batch)
    (kernel,) = module.kernels
    target = target_named("sm90")
    plan = plan_kernel(kernel, module.tensors, target)
    assert isinstance(plan, MmaPlan)
    assert sm90.accepts(kernel, assign_buffers(module).refs, plan, target) == []


@pytest.mark.parametrize("name", kernels.ALL)
def test_the_cpu_accepts_its_plans(name: str) -> None:
    module = kernels.ALL[name]()
    for kernel in module.kernels:
        plan = plan_kernel(kernel, module.tensors, target_named("cpu"))
        assert cpu_compile.accepts(kernel, module.tensors, plan) == []


def test_few_elements_with_many_operations_have_a_thread_each() -> None:
    """In vectors of eight, a step of an optimiser for ten small tensors took 100 us."""

    def stepped(*tensors: Any) -> Any:
        return [weft.sin(x) / y for x in tensors for y in tensors if x is not y]

    def vectors(size: int) -> set[int]:
        given = [weft.ones((size,), dtype=weft.bfloat16) for _ in range(5)]
        plans = through_stages(weft.jit(stepped).program(*given), "sm90")["plan"].plans.values()
        return {plan.vector for plan in plans}

    assert max(vectors(64)) <= 4
    assert vectors(1 << 20) == {8}


@pytest.mark.parametrize(("features", "most"), [("asimd", 4), ("avx2", 2), ("avx512f", 1)])
@pytest.mark.parametrize("summed", [0, 1])
def test_few_lanes_that_lie_apart_are_gathered_at_a_time(
    features: str, most: int, summed: int
) -> None:
    """The sum of products of a matrix with a transposed one: code for every lane is long."""
    b = Builder()
    x, y = b.param("f32", [512, 256]), b.param("f32", [256, 512])
    total = b.reduce_sum(x * b.transpose(y, [1, 0]), [summed])
    module = lowered(lower_program(b.build(total))).module
    isa = "aarch64" if features == "asimd" else "x86_64"
    machine = describe(isa, frozenset({features, "fma"}), 2, ())
    plan = plan_kernel(module.kernels[0], module.tensors, machine)
    assert isinstance(plan, RowPlan)
    assert not plan.across
    assert plan.accumulators <= most
    assert most < 4 or plan.accumulators == 4
