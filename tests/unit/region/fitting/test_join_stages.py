"""Kernels as stages of the one that reads them: when, how far they reach, and what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.staged_programs import blur, image, twice
from weft import functional
from weft.foundation.errors import SpecViolation
from weft.region import text
from weft.region.cost import kernel_seconds
from weft.region.form import Ring, Staged
from weft.region.interp import run_module
from weft.region.interp_rows import run_rows
from weft.region.ir import Kernel, Module, Read, Stage
from weft.region.structure import structure_key
from weft.region.verify import verify
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")


def module_of(function: Any, shape: tuple[int, ...] = (20, 80)) -> Module:
    program = weft.jit(function).program(weft.tensor(np.zeros(shape, np.float32)))
    (cluster,) = weft.compile(program, "cpu").clusters.values()
    module: Module = cluster.compilation["region"]
    return module


def staged(function: Any, shape: tuple[int, ...] = (20, 80)) -> tuple[Module, Kernel, Staged]:
    module = module_of(function, shape)
    (kernel,) = module.kernels
    assert isinstance(kernel.form, Staged)
    return module, kernel, kernel.form


def test_two_blurs_are_one_kernel() -> None:
    _, kernel, form = staged(twice)
    assert (form.slide, form.batch, form.warm_up) == (kernel.axes[0].name, (), 4)
    reach = [(ring.low, ring.high, ring.depth) for ring in form.rings]
    assert reach == [(0, 4, 3), (0, 2, 1), (0, 2, 3)]


def test_a_stage_is_read_by_its_kernel_alone() -> None:
    """What is a result as well, or what two kernels read, is stored."""

    def both(x: Any) -> Any:
        h = x[:-1] * x[1:]
        return h, h[:-1] + h[1:]

    kernels = module_of(both).kernels
    assert not any(stage.name in ("out0", "out1") for k in kernels for stage in k.stages)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: (weft.tanh(x) * x)[:, :1] + x, (20, 80)),
        (lambda x: weft.sum(blur(x), axis=1), (20, 80)),
        (blur, (20, 40)),
    ],
    ids=["no rows", "a sum", "short rows"],
)
def test_what_has_no_stages(function: Any, shape: tuple[int, ...]) -> None:
    assert not any(kernel.stages for kernel in module_of(function, shape).kernels)


def test_a_batch_stays_outside() -> None:
    def images(x: Any) -> Any:
        h = weft.tanh(x[:, :, :-2] + x[:, :, 1:-1] * x[:, :, 2:])
        return h[:, :-2] * h[:, 2:]

    _, kernel, form = staged(images, (3, 20, 80))
    assert form.batch == (kernel.axes[0].name,)
    assert [ring.batch for ring in form.rings] == [(kernel.stages[0].axes[0].name,)]


def pooled(x: Any) -> Any:
    return functional.avg_pool2d(
        functional.max_pool2d(weft.tanh(x), 3, stride=1, padding=1), (2, 3), stride=1
    )


def test_windows_are_stages() -> None:
    """The hull of a window is Poly Core's; axes of one element are in no local."""
    _, kernel, form = staged(pooled, (1, 2, 20, 80))
    reach = [(ring.low, ring.high, ring.depth) for ring in form.rings]
    assert reach == [(-1, 2, 3), (0, 1, 2)]
    assert [stage.local.shape for stage in kernel.stages] == [(2, 20, 80), (2, 20, 80)]
    assert [len(stage.axes) for stage in kernel.stages] == [3, 5]


def test_windows_mean_what_they_mean_apart() -> None:
    module, kernel, form = staged(pooled, (1, 2, 20, 80))
    values = image(1, 2, 20, 80)
    arrays = {module.inputs[0]: values}
    depths = [ring.depth for ring in form.rings]
    played = run_rows(kernel, module.tensors, arrays, 7, depths)[module.outputs[0]]
    wanted = pooled(weft.tensor(values)).numpy()
    np.testing.assert_allclose(played, wanted, rtol=1e-6, atol=1e-6)
    assert text.loads(text.dumps(module)) == module


@pytest.mark.parametrize(
    "function",
    [
        lambda x: weft.sum(weft.tanh(x[:, 1:] * x[:, :-1]), axis=2)[:, :70] * 2.0,
        lambda x: functional.softmax(x[:, 1:] + weft.tanh(x[:, :-1]), axis=-1)[:, 1:],
        lambda x: functional.max_pool2d(weft.tanh(x[:, 1:] * x[:, :-1]), 2),
    ],
    ids=["a sum of neighbours", "a softmax", "a stride"],
)
def test_reductions_that_are_no_windows_are_kernels(function: Any) -> None:
    assert not any(kernel.stages for kernel in module_of(function, (3, 90, 80)).kernels)


def test_fewer_bytes_are_fewer_microseconds() -> None:
    """Where no row is computed again by many pieces, a stage takes less than storing it."""
    module, kernel, _ = staged(twice, (600, 600))
    target, known = target_named("cpu"), kernel.with_locals(module.tensors)
    apart = sum(kernel_seconds(part, known, target) for part in kernel.parts)
    assert kernel_seconds(kernel, module.tensors, target) < apart


def test_it_is_known_what_the_other_choice_would_take() -> None:
    module = module_of(twice)
    names = {stage.name for kernel in module.kernels for stage in kernel.stages}
    weighed = [found for found in module.weighed if found.stage]
    assert {found.value for found in weighed} == names
    assert len(weighed) == 3
    assert all(found.together < found.apart for found in weighed)
    (note,) = module.notes
    assert "µs as chosen" in note
    assert "µs if nothing is computed twice" in note


def test_why_a_kernel_is_no_stage_stands_with_why_it_is_no_part() -> None:
    """Every second row does not slide; the sums at three places are dearer than a kernel more."""

    def coarser(x: Any) -> Any:
        h = weft.tanh(x[:-2] + x[1:-1]) + weft.tanh(x[2:])
        return h[:-2:2] * h[1:-1:2] + h[2::2]

    module = module_of(coarser, (601, 600))
    assert not any(kernel.stages for kernel in module.kernels)
    (why,) = (why for why in module.stored.values() if "as a stage" in why)
    before, _, after = why.partition("; ")
    assert before
    assert after.startswith("as a stage it would not slide: ")


# -- meaning, text, keys -------------------------------------------------------------------------


@pytest.mark.parametrize("strip", [1, 3, 7, 16, 99])
def test_rows_mean_what_stages_mean(strip: int) -> None:
    module, kernel, form = staged(twice)
    arrays = {module.inputs[0]: image(20, 80)}
    whole = run_module(module, arrays)[module.outputs[0]]
    depths = [ring.depth for ring in form.rings]
    played = run_rows(kernel, module.tensors, arrays, strip, depths)[module.outputs[0]]
    np.testing.assert_array_equal(played, whole)


def test_a_ring_that_is_too_short_is_seen() -> None:
    module, kernel, form = staged(twice)
    arrays = {module.inputs[0]: image(20, 80)}
    whole = run_module(module, arrays)[module.outputs[0]]
    depths = [max(1, ring.depth - 1) for ring in form.rings]
    played = run_rows(kernel, module.tensors, arrays, 16, depths)[module.outputs[0]]
    assert not np.allclose(played, whole, equal_nan=True)


def test_text_both_ways() -> None:
    module = module_of(twice)
    again = text.loads(text.dumps(module))
    assert again == module
    assert again.kernels[0].form == module.kernels[0].form
    verify(again)


def test_keys_know_stages() -> None:
    """Names do not matter, what a stage computes does."""
    module, kernel, _ = staged(twice)
    key = structure_key(kernel, module.tensors)
    first, *rest = kernel.stages
    other = replace(first, value=first.body[0].name)
    changed = replace(kernel, stages=(other, *rest))
    assert structure_key(replace(kernel, name="x"), module.tensors) == key
    assert structure_key(changed, module.tensors) != key


def flat_read(stage: Stage) -> Stage:
    """A stage that reads its first operand with one index too few."""
    let, *rest = stage.body
    assert isinstance(let.expr, Read)
    short = replace(let, expr=replace(let.expr, index=let.expr.index[:1]))
    return replace(stage, body=(short, *rest))


def test_what_is_wrong_with_stages_is_told() -> None:
    module, kernel, _ = staged(twice)
    first, second, *rest = kernel.stages
    wide = replace(first, local=replace(first.local, shape=(20, 77)))
    for stages, why in (
        ((second, first, *rest), "is read before it is made"),
        ((first, first, second, *rest), "its local has the name of another tensor"),
        ((wide, second, *rest), "its axes are not those of its local"),
        ((replace(first, value="x"), second, *rest), "x does not live over all its axes"),
        ((first, flat_read(second), *rest), "with 1 indices"),
    ):
        wrong = replace(module, kernels=(replace(kernel, stages=stages),))
        with pytest.raises(SpecViolation, match=why):
            verify(wrong)


def test_a_form_that_is_not_so_is_refused() -> None:
    module, kernel, form = staged(twice)
    less: tuple[Ring, ...] = (replace(form.rings[0], depth=2), *form.rings[1:])
    wrong = replace(kernel, form=replace(form, rings=less))
    with pytest.raises(SpecViolation, match="its form says"):
        verify(replace(module, kernels=(wrong,)))
