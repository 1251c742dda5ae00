"""Updates of tensors of different sizes as one launch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import weft
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.artifact.assembler import Unit, build_artifact
from weft.driver.code import gpu_kernels, gpu_together
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.opaque import host_call
from weft.foundation.errors import SpecViolation
from weft.memory.ir import Space
from weft.plan.text import dumps
from weft.ptir import Builder, Program, TensorType, Value
from weft.runtime.artifact import Launch
from weft.target.known import target_named

Step = Callable[[Builder, Sequence[Value], Value], tuple[Value, ...]]
SHAPES = [[40, 24], [1056], [24, 40], [8], [2, 3, 8], [1024], [3, 5], [7], [1]]
"""In vectors of eight, four and one; of one block and of two; with a block that is not full."""


def adamw(b: Builder, given: Sequence[Value], rate: Value) -> tuple[Value, ...]:
    x, slope, m, v = given
    grad = b.cast(slope, "f32")
    m = m * 0.9 + grad * 0.1
    v = v * 0.99 + grad * grad * 0.01
    rates = b.broadcast_to(rate, list(x.shape))
    return b.cast(b.cast(x, "f32") * 0.99 - rates * m / (b.sqrt(v) + 1e-3), x.dtype), m, v


def lion(b: Builder, given: Sequence[Value], rate: Value) -> tuple[Value, ...]:
    x, slope, m, _ = given
    grad = b.cast(slope, "f32")
    rates = b.broadcast_to(rate, list(x.shape))
    way = b.tanh(m * 0.9 + grad * 0.1)
    return b.cast(b.cast(x, "f32") - rates * way, x.dtype), m * 0.99 + grad * 0.01


def own_update(b: Builder, given: Sequence[Value], rate: Value) -> tuple[Value, ...]:
    """No optimiser's: a limit on every element, and how often it was reached."""
    x, slope, m, _ = given
    grad = b.cast(slope, "f32")
    over = grad * grad > 1.0
    return b.cast(b.select(over, m, grad), x.dtype), b.select(over, m + 1.0, m)


def updates(step: Step, shapes: Sequence[list[int]], dtype: str = "bf16") -> Program:
    """A step for every tensor, all by one rate."""
    b = Builder("updates")
    rate = b.param("f32", [])
    kinds = (dtype, dtype, "f32", "f32")
    given = [[b.param(kind, shape) for kind in kinds] for shape in shapes]
    made = [step(b, tensors, rate) for tensors in given]
    return b.build(*(value for results in made for value in results))


def arrays_for(program: Program) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    parameters = [k for k in program.main.parameters if isinstance(k, TensorType)]
    kinds = [(kind.static_shape, kind.dtype.numpy) for kind in parameters]
    return [np.abs(rng.standard_normal(shape)).astype(dtype) for shape, dtype in kinds]


@pytest.mark.parametrize(
    ("step", "target", "dtype"),
    [(adamw, "sm90", "bf16"), (lion, "sm80", "f32"), (own_update, "sm90", "f16")],
)
def test_tensors_of_all_sizes_are_a_few_launches(step: Step, target: str, dtype: str) -> None:
    program = updates(step, SHAPES, dtype)
    made = InterpretedGpu(target).compile(program)
    code: GpuModule = made.compilation["gpu"]
    # What vectors divide, what they do not, and the tensor of one element.
    assert len(code.kernels) <= 3 < len(code.launches) == len(SHAPES)
    assert max(kernel.sets for kernel in code.kernels.values()) >= 6
    given = arrays_for(program)
    expected = weft.run(program, given, backend="reference")
    for got, wanted in zip(made.execute(given), expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float32), wanted.astype(np.float32), rtol=1e-2, atol=1e-3
        )


def donated(program: Program) -> Compilation:
    signature = make_signature(program, donate=tuple(range(1, len(program.main.parameters))))
    return run_pipeline(Compilation(program, target_named("sm90"), signature))


def test_state_that_is_donated_stays_in_place() -> None:
    """Weights and moments are written where they were, and the launch has one table for all."""
    made = donated(updates(adamw, [[64, 48], [96], [48, 64]]))
    module, memory, code = made["region"], made["memory"], made["gpu"]
    homes = [memory.refs[name].buffer for name in module.outputs]
    assert all(home.space is Space.INPUT for home in homes)
    assert len({home.number for home in homes}) == len(homes) == 9
    (kernel,) = code.kernels.values()
    assert kernel.sets == 3
    cubin = compile_cuda(made["cu"].sources[kernel.name], "sm_90a")
    assert not cubin.report.spilled_bytes
    cubins = gpu_kernels.Cubins("", {kernel.name: cubin})
    taken = gpu_kernels.estimated_seconds(module, made.target)
    codes = gpu_kernels.kernel_codes(code, module, cubins, taken)
    unit = Unit(module, memory, gpu_kernels.natives(code, module), codes, {})
    artifact = build_artifact(unit, "sm90", host_call)
    (step,) = artifact.steps
    assert isinstance(step, Launch)
    slots = [artifact.buffers[n] for n in step.buffers]
    assert len(slots) == 3 * len(kernel.buffers)
    assert {slot.number for slot in slots if slot.space == "input"} == set(range(13))


def test_a_launch_holds_nothing_that_another_kernel_of_it_reads_or_writes() -> None:
    """The second tensor's update reads the first one's result; the third lies across its own."""
    b = Builder("order")
    x, y, z, t = (b.param("f32", [64, 64]) for _ in range(4))
    first = x * 2.0 + y
    program = b.build(first, first * 2.0 + z, b.transpose(t, [1, 0]) * 2.0 + z)
    made = donated(program)
    assert gpu_together.alike(made["region"], made["memory"]) == []
    assert all(kernel.sets == 1 for kernel in made["gpu"].kernels.values())


def test_kernels_with_plans_of_their_own_are_launched_alone() -> None:
    """A plan that somebody gives is carried out, and the others are still one launch."""
    program = updates(adamw, [[64, 48], [64, 96], [96, 96], [8, 8]], "f32")
    plans = json.loads(dumps(through_stages(program, "sm90")["plan"]))
    plan = plans["plans"][1]
    plan |= {"threads": 64, "grain": 64 * plan["vector"], "unroll": 1}
    code = through_stages(program, "sm90", plan=json.dumps(plans))["gpu"]
    assert sorted(kernel.sets for kernel in code.kernels.values()) == [1, 3]
    (alone,) = (kernel for kernel in code.kernels.values() if kernel.sets == 1)
    assert alone.threads == 64


def test_sets_of_buffers_are_written_and_read() -> None:
    code = through_stages(updates(lion, [[64], [96]]), "sm90")["gpu"]
    (kernel,) = code.kernels.values()
    text = print_module(code)
    assert f"sets={kernel.sets}" in text
    assert parse_module(text) == code


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (" sets=2", " sets=3", "carries out 3 kernels, and 2 name it"),
        (" sets=2", "", "one set of buffers"),
        ("take_set(number=", "let n = (", "takes a set of buffers once"),
    ],
)
def test_what_is_wrong_with_sets_is_said(old: str, new: str, why: str) -> None:
    compilation = through_stages(updates(lion, [[64], [96]]), "sm90")
    text = print_module(compilation["gpu"])
    assert old in text
    with pytest.raises(SpecViolation, match=why):
        gpu_kernels.check_module(
            parse_module(text.replace(old, new)), compilation["region"], compilation.target
        )
