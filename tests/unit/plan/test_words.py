"""Every word of the plan language on every kind of kernel and target: it changes the code that is
emitted, and the results stay right, or it is refused with the reason and what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each
from tests.support.gpu_programs import through_stages
from tests.support.staged_programs import twice
from weft import functional
from weft.codegen.cpu import compile as cpu
from weft.codegen.cpu.text import print_routine
from weft.codegen.gpu import templates
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.spelling.text import print_kernel
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.completion import completed_plans
from weft.plan.dsl import print_plan
from weft.plan.ir import Plan, PlanSet
from weft.plan.schedule import read_plans
from weft.plan.verify import findings
from weft.ptir import Program
from weft.region.interp import run_kernel
from weft.region.ir import Kernel
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")
Array = NDArray[Any]
TARGETS = ("cpu", "sm80", "sm90")
WORDS = (
    "split", "reorder", "fuse", "unroll", "vectorize", "compute_at", "store_at", "parallel",
    "slide",
)  # fmt: skip


def program_of(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any) -> Program:
    given = (weft.tensor(np.zeros(shape, dtype)) for shape in shapes)
    found: Program = weft.jit(function).program(*given)
    return found


def attended(q: Any, k: Any, v: Any) -> Any:
    return functional.attention(q, k, v)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], Any]] = {
    "map": (lambda x, y: weft.tanh(x) * y, ((64, 64), (64, 64)), np.float32),
    "transposed": (lambda x: weft.tanh(x.T), ((96, 64),), np.float32),
    "row": (lambda x: functional.softmax(x, -1), ((16, 256),), np.float32),
    "columns": (lambda x: weft.sum(x, axis=0), ((64, 128),), np.float32),
    "product": (lambda x, y: weft.tanh(x @ y), ((48, 32), (32, 64)), np.float16),
    "convolution": (
        lambda x, w: functional.conv2d(x, w, padding=1), ((1, 8, 8, 8), (8, 8, 3, 3)), np.float32,
    ),
    "attention": (attended, ((1, 1, 128, 64),) * 3, np.float16),
    "staged": (twice, ((20, 80),), np.float32),
    "whole": (lambda x: weft.sort(x), ((4, 300),), np.float32),
}  # fmt: skip
STATEMENTS: dict[str, dict[str, str]] = {
    "map": {
        "split": "split i1 4096", "reorder": "reorder i1 i0", "fuse": "fuse i0 i1 -> t",
        "unroll": "unroll i1 2", "vectorize": "vectorize i1 2", "compute_at": "compute_at s0 i0",
        "store_at": "store_at s0 i0.o", "parallel": "parallel i1 64", "slide": "slide i0",
    },
    "row": {
        "split": "split i0 2", "reorder": "reorder r0 i0", "fuse": "fuse i0 r0 -> t",
        "unroll": "unroll r0 2", "vectorize": "vectorize r0 2", "compute_at": "compute_at row r0",
        "store_at": "store_at row r0", "parallel": "parallel r0 64", "slide": "slide i0",
    },
    "columns": {
        "split": "split i0 2", "reorder": "reorder {other}", "fuse": "fuse i0 r0 -> t",
        "unroll": "unroll i0 2", "vectorize": "vectorize i0 2", "compute_at": "compute_at row i0",
        "store_at": "store_at row i0", "parallel": "parallel r0 4", "slide": "slide i0",
    },
    "product": {
        "split": "{tile}", "reorder": "reorder n.o m.o", "fuse": "fuse m.o n.o -> t",
        "unroll": "unroll k.i 4", "vectorize": "{tile}; vectorize n.i.i 4",
        "compute_at": "compute_at A k.i", "store_at": "store_at A k.i",
        "parallel": "parallel m.o", "slide": "slide m",
    },
    "attention": {
        "split": "split q 192; split kv 48", "reorder": "reorder kv q", "fuse": "fuse q kv -> t",
        "unroll": "unroll kv 4; split kv 64", "vectorize": "vectorize q 2",
        "compute_at": "compute_at scores kv", "store_at": "store_at scores q",
        "parallel": "parallel q 3", "slide": "slide kv",
    },
    "staged": {
        "split": "split i0 6", "reorder": "reorder i1 i0", "fuse": "fuse i0 i1 -> t",
        "unroll": "unroll i1 1", "vectorize": "vectorize i1 2",
        "compute_at": "compute_at s0 i0.o", "store_at": "store_at s0 i0",
        "parallel": "parallel i0", "slide": "slide i1",
    },
}  # fmt: skip
"""A statement of each word that says something else than the plan that was chosen."""
STATEMENTS["transposed"] = {**STATEMENTS["map"], "split": "split i0 32; split i1 32"}
STATEMENTS["convolution"] = STATEMENTS["product"]
STATEMENTS["whole"] = STATEMENTS["map"]
TILES = {
    "product cpu": "split m 2; split n 8; split k 32",
    "product sm80": "split m 64; split n 32; split k 32; warp_tile 32x32",
    "product sm90": "split m 64; split n 32; split k 64; warp_tile 64x32",
    "convolution cpu": "split m 2; split n 8; split k 72",
}
GPU_CONVOLUTION = "split m 32; split n 32; split k 8; warp_tile 16x16"
ACTS = {
    "map": {"cpu": "unroll vectorize", "gpu": "split unroll vectorize parallel"},
    "transposed": {"cpu": "split unroll vectorize", "gpu": "split vectorize parallel"},
    "row": {
        "cpu": "unroll vectorize compute_at",
        "gpu": "split unroll vectorize compute_at parallel",
    },
    "columns": {"cpu": "reorder unroll vectorize", "gpu": "reorder vectorize parallel"},
    "product": {"cpu": "split vectorize", "gpu": "split"},
    "convolution": {"cpu": "split vectorize", "gpu": "split"},
    "attention": {"cpu": "split unroll vectorize", "gpu": "split parallel"},
    "staged": {"cpu": "split unroll vectorize compute_at", "gpu": ""},
    "whole": {"cpu": "", "gpu": ""},
}
"""The words that have an effect; all others are refused."""
NOT_THERE = {("staged", "sm80"), ("staged", "sm90")}
"""These are several kernels of other kinds."""
CASES = [
    (kind, word, target)
    for kind in PROGRAMS
    for word in WORDS
    for target in TARGETS
    if (kind, target) not in NOT_THERE
]


@cache
def chosen(kind: str, target: str) -> Compilation:
    function, shapes, dtype = PROGRAMS[kind]
    return through_stages(program_of(function, *shapes, dtype=dtype), target)


def kernel_of(kind: str, target: str) -> Kernel:
    """The kernel of the program that is of its kind."""
    kernels: tuple[Kernel, ...] = chosen(kind, target)["region"].kernels
    return kernels[0]


def program(kind: str, word: str, target: str) -> str:
    tile = TILES.get(f"{kind} {target}", GPU_CONVOLUTION)
    other = "r0 i0" if target == "cpu" else "i0 r0"
    name = kernel_of(kind, target).name
    return f"kernel {name}; {STATEMENTS[kind][word].format(tile=tile, other=other)}"


def plans_of(kind: str, target: str, text: str) -> PlanSet:
    found = chosen(kind, target)
    module = found["region"]
    return completed_plans(read_plans(text, lambda: found["plan"], module, target), module)


def emitted(kind: str, target: str, plan: Plan) -> tuple[str, list[Finding]]:
    """The code of a kernel by a plan, or why there is none."""
    found, kernel, machine = chosen(kind, target), kernel_of(kind, target), target_named(target)
    tensors, refs = found["region"].tensors, found["memory"].refs
    reasons = [*findings(plan, machine)]
    if target == "cpu":
        reasons += cpu.accepts(kernel, tensors, plan)
        if reasons:
            return "", reasons
        return print_routine(cpu.lower(kernel, tensors, refs, plan, "k0")), []
    reasons += templates.accepts(kernel, tensors, refs, plan, machine)
    if reasons:
        return "", reasons
    return print_kernel(templates.build(kernel, tensors, refs, plan, machine, "k0")), []


def outcome(kind: str, word: str, target: str) -> tuple[str, list[Finding]]:
    """The code that a statement leads to, or why there is none."""
    try:
        plans = plans_of(kind, target, program(kind, word, target))
    except SpecViolation as error:
        return "", [Finding(error.code, error.where, error.why, error.hint)]
    return emitted(kind, target, plans.of(kernel_of(kind, target).name))


@each(("kind", "word", "target"), CASES)
def test_each_word_acts_or_is_refused(kind: str, word: str, target: str) -> None:
    code, reasons = outcome(kind, word, target)
    acts = word in ACTS[kind]["cpu" if target == "cpu" else "gpu"].split()
    assert acts is not bool(reasons), reasons
    assert all(found.why for found in reasons)
    # What the language itself refuses comes with what to write instead.
    assert all(found.hint for found in reasons if found.code in ("PlanSyntax", "PlanKernel"))
    if acts:
        plans: PlanSet = chosen(kind, target)["plan"]
        assert code != emitted(kind, target, plans.of(kernel_of(kind, target).name))[0]


ON_CPU = [(kind, word) for kind in PROGRAMS for word in ACTS[kind]["cpu"].split()]
ON_GPU = [
    (kind, word, target)
    for kind in PROGRAMS
    for word in ACTS[kind]["gpu"].split()
    for target in TARGETS[1:]
    if (kind, target) not in NOT_THERE
    and kind != "convolution"
    and (kind == "product" or target == "sm90")
]
"""Templates that both targets have are played once, and not those of many sums."""


def invented(shape: tuple[int, ...], dtype: Any) -> Array:
    """Small numbers, of which sums are exact in every order."""
    rng = np.random.default_rng(0)
    return (rng.integers(-2, 3, shape) / 2).astype(dtype)


@pytest.mark.parametrize(("kind", "word"), ON_CPU)
def test_results_stay_right(kind: str, word: str) -> None:
    _, shapes, dtype = PROGRAMS[kind]
    source, text = chosen(kind, "cpu").program, program(kind, word, "cpu")
    arrays = [invented(shape, dtype) for shape in shapes]
    made = weft.compile(source, "cpu", overrides={"plan": text})
    wanted = weft.run(source, arrays, backend="reference")
    np.testing.assert_allclose(made.run(arrays)[0], wanted[0], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("kind", "word", "target"), ON_GPU)
def test_kernels_compute_what_they_did(kind: str, word: str, target: str) -> None:
    """Played by the interpreter of the dialect, beside the kernel's own meaning."""
    found, kernel = chosen(kind, target), kernel_of(kind, target)
    tensors, refs = found["region"].tensors, found["memory"].refs
    arrays = {
        name: invented(tensors[name].shape, tensors[name].dtype.numpy) for name in kernel.inputs
    }
    plan = plans_of(kind, target, program(kind, word, target)).of(kernel.name)
    wanted = run_kernel(kernel, tensors, arrays)
    given = {name: array.reshape(-1) for name, array in arrays.items()}
    results = {name: np.zeros(array.size, array.dtype) for name, array in wanted.items()}
    made = templates.build(kernel, tensors, refs, plan, target_named(target), "k0")
    run(made, given | results)
    for name, array in wanted.items():
        np.testing.assert_allclose(results[name], array.reshape(-1), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_plans_print_as_statements(kind: str, target: str) -> None:
    plans: PlanSet = chosen(kind, target)["plan"]
    text = "".join(map(print_plan, plans.plans.values()))
    assert plans_of(kind, target, text).plans == plans.plans


MISTAKES = {
    "map split i7 4": "i7 is not an axis of this kernel: i0, i1",
    "map vectorize i0 4": r"vectors run along i1, .* not along i0 \(write i1\)",
    "map vectorize i1 4; vector 8": "vector is given twice",
    "map turn left": "'turn' is not a statement",
    "map warp_tile 8x8": "an elementwise kernel has no warp_tile; it has block, grain",
    "map threads 64": "threads=64 has no effect on the CPU",
    "row reorder i0": r"i0 is not an order of these loops \(reorder i0 r0 or r0 i0\)",
    "row keep_row maybe": "'maybe' is neither true nor false",
    "attention register_tile 8": "2 words are needed, not 1",
    "attention pipeline kv stages=3": r"a CPU loads keys when they are packed \(leave it out\)",
    "attention algo_choice conv winograd_3x3": "the kernel is an attention, not a conv",
    "staged split i0 6; split i0 7": "i0 is split twice",
    "staged slide": "1 word is needed, not 0",
    "staged compute_at s0": "2 words are needed, not 1",
    "whole split i0 4": "computed as a whole: it has no loops to plan",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_sentences(mistake: str) -> None:
    kind, _, text = mistake.partition(" ")
    kernel = kernel_of(kind, "cpu").name
    with pytest.raises(SpecViolation, match=MISTAKES[mistake]):
        through_stages(chosen(kind, "cpu").program, "cpu", plan=f"kernel {kernel}; {text}")
