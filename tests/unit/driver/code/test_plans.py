"""Every contraction gets a plan that a template carries out: at any sizes, layouts and epilogues,
and by the first choice wherever matrix instructions compute it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gemm_kernels import Contraction, references, region_kernel
from tests.support import kernels
from tests.support.gpu_attention import Case
from weft.codegen.gpu import templates
from weft.driver.code.plans import choose_plans
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BF16, F16, F32
from weft.memory.from_region import assign_buffers
from weft.plan.from_region import plan_kernel
from weft.plan.ir import AttentionPlan, MmaPlan, Plan, RowPlan
from weft.plan.tensor_cores import sm90_plan
from weft.region.ir import Module, Tensor, problem_of
from weft.target.known import target_named
from weft.target.matrix_tiles import Form

LAYOUTS = (("row", "col"), ("row", "row"), ("col", "col"), ("col", "row"))
EPILOGUES: tuple[tuple[str, ...], ...] = (
    (),
    ("bias",),
    ("bias", "gelu"),
    ("residual",),
    ("bias", "relu", "residual"),
    ("rows",),
)


def tensors_of(shape: Contraction) -> dict[str, Tensor]:
    kinds = {
        "a": (shape.dtype, shape.a_shape),
        "b": (shape.dtype, shape.b_shape),
        "bias": (shape.dtype, (shape.n,)),
        "rows": (F32, (shape.m,)),
        "residual": (shape.out_dtype, shape.y_shape),
        "y": (shape.out_dtype, shape.y_shape),
    }
    return {name: Tensor(name, dtype, sizes, "input") for name, (dtype, sizes) in kinds.items()}


def chosen(shape: Contraction, target: str) -> tuple[Plan, list[str]]:
    """The planner's own choice, and what the templates have against it."""
    kernel, tensors, machine = region_kernel(shape), tensors_of(shape), target_named(target)
    plan = plan_kernel(kernel, tensors, machine)
    found = templates.accepts(kernel, tensors, references(shape), plan, machine)
    return plan, [str(finding) for finding in found]


def random_shape(rng: np.random.Generator) -> Contraction:
    """Sizes from 1 up, half of them multiples of eight."""
    step = 8 if rng.random() < 0.5 else 1
    m, n, k = (int(2 ** rng.uniform(0, 12)) * step for _ in range(3))
    return Contraction(
        m,
        n,
        k,
        batch=int(rng.choice([0, 2, 5])),
        out_dtype=(BF16, F16, F32)[rng.integers(3)],
        layouts=LAYOUTS[rng.integers(4)],
        epilogue=EPILOGUES[rng.integers(len(EPILOGUES))],
    )


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_the_first_choice_is_carried_out(target: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        shape = random_shape(rng)
        plan, refusals = chosen(shape, target)
        assert isinstance(plan, MmaPlan)
        assert refusals == [], shape


@pytest.mark.parametrize(("layouts", "stages"), [(("row", "col"), 10), (("row", "row"), 8)])
def test_columns_in_panels_take_more_shared_memory(layouts: tuple[str, str], stages: int) -> None:
    """96 columns that lie along n take the room of 128."""
    shape, sm90 = Contraction(1024, 768, 3072, layouts=layouts), target_named("sm90")
    kernel, tensors = region_kernel(shape), tensors_of(shape)
    problem = problem_of(kernel)
    assert problem is not None
    header = plan_kernel(kernel, tensors, sm90).header
    plan = sm90_plan(kernel, problem, sm90, header, Form(64, 96, (64, 96)))
    assert plan.stages == stages
    assert not templates.accepts(kernel, tensors, references(shape), plan, sm90)


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_a_contraction_of_one_step_has_no_layout(layouts: tuple[str, str]) -> None:
    plan, refusals = chosen(Contraction(40, 24, 1, layouts=layouts), "sm80")
    assert isinstance(plan, MmaPlan)
    assert plan.operand_layouts == ("row", "col")
    assert refusals == []


# -- second choices --------------------------------------------------------------------------------


def settled(module: Module, target: str) -> tuple[Plan, tuple[str, ...]]:
    plans = choose_plans(module, assign_buffers(module), target_named(target))
    (plan,) = plans.plans.values()
    return plan, plans.notes


def test_what_suits_needs_no_note() -> None:
    plan, notes = settled(kernels.linear(64, 64, 64, dtype=BF16), "sm90")
    assert isinstance(plan, MmaPlan)
    assert (plan.arch, notes) == ("sm90", ())


def test_f32_contractions_are_tiles() -> None:
    plan, notes = settled(kernels.linear(64, 64, 64), "sm90")
    assert isinstance(plan, MmaPlan)
    assert plan.arch == "fma"
    assert notes == ()


@pytest.mark.parametrize(("m", "n", "across"), [(4, 64, True), (64, 4, False)])
def test_thin_contractions_are_rows(m: int, n: int, across: bool) -> None:
    """Threads go along the factor that has more elements, as it lies in memory."""
    plan, _ = settled(kernels.linear(m, n, 1024), "sm90")
    assert isinstance(plan, RowPlan)
    assert plan.across is across


def two_results(module: Module) -> Module:
    """The kernel stores its result twice, which no matrix template does."""
    (kernel,) = module.kernels
    (output,) = kernel.outputs
    more = replace(module.tensors[output.tensor], name="again")
    both = (output, replace(output, tensor="again"))
    return replace(
        module,
        kernels=(replace(kernel, outputs=both),),
        tensors={**module.tensors, "again": more},
        outputs=(*module.outputs, "again"),
    )


@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_matrix_instructions_store_two_results(target: str) -> None:
    plan, notes = settled(two_results(kernels.linear(64, 64, 64, dtype=BF16)), target)
    assert isinstance(plan, MmaPlan)
    assert (plan.arch, notes) == (target, ())


def test_empty_contractions_become_tiles() -> None:
    plan, notes = settled(kernels.linear(8, 8, 0, dtype=BF16), "sm90")
    assert isinstance(plan, MmaPlan)
    assert plan.arch == "fma"
    assert notes == (
        "linear: no sm90 plan: the contraction has an empty axis",
        "linear: no sm80 plan: the contraction has an empty axis",
    )


@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize("mask", ["bf16", "f32", "i1"])
@pytest.mark.parametrize("depth", [128, 192, 256])
def test_attention_has_room_for_masks(depth: int, mask: str, target: str) -> None:
    """Blocks of keys are smaller, where a block of a mask lies beside them in shared memory."""
    for keys in (200, 520):
        case = Case(heads=1, queries=100, keys=keys, depth=depth, width=depth, mask=mask)
        program = case.program()
        made = Compilation(program, target_named(target), make_signature(program))
        plans = run_pipeline(made, until="plan")["plan"]
        kinds = [type(plans.of(name)) for name in plans.kernels]
        assert AttentionPlan in kinds, case
