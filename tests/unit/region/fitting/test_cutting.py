"""Reductions in parts and few long rows in levels, as GPU kernels by their meaning, against the
reference: lengths without divisors, several axes, folds, and integers to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import TARGETS, through_stages
from tests.support.long_rows import argmax, layer_norm, softmax, summed
from weft.ptir import Builder, Program
from weft.region.fitting import cutting, levels
from weft.region.interp import run_module
from weft.region.ir import Fold, Kernel, Let, Pattern, Unary
from weft.testing.compare import compare

PRIME = 10007


def extremes(dtype: str) -> Program:
    b = Builder()
    x = b.param(dtype, [2, PRIME])
    return b.build(b.reduce_max(x, [1]), b.reduce_min(x, [1]))


def reduced_by(op: str, dtype: str) -> Program:
    b = Builder()
    return b.build(getattr(b, op)(b.param(dtype, [PRIME]), axes=[0]))


def of_products() -> Program:
    """What is reduced is computed, and so is what is left over."""
    b = Builder()
    x, y = b.param("f32", [PRIME]), b.param("f32", [PRIME])
    return b.build(b.reduce_sum(b.exp(b.add(b.mul(x, y), x)), [0]))


LEFT_OVER: dict[str, Callable[[], Program]] = {
    "f32": lambda: summed("f32", (PRIME,), 0),
    "bf16": lambda: summed("bf16", (PRIME,), 0),
    "si32": lambda: summed("si32", (PRIME,), 0),
    "rows": lambda: summed("f32", (3, PRIME), 1),
    "columns": lambda: summed("bf16", (PRIME, 3), 0),
    "both axes": lambda: summed("f32", (1009, 3), 0, 1),
    "behind a whole axis": lambda: summed("si32", (2, 5003, 3), 0, 1, 2),
    "largest and smallest": lambda: extremes("f32"),
    "largest and smallest integers": lambda: extremes("si16"),
    "product": lambda: reduced_by("reduce_prod", "si64"),
    "any": lambda: reduced_by("reduce_any", "i1"),
    "all": lambda: reduced_by("reduce_all", "i1"),
    "computed": of_products,
}


def kernels(program: Program, target: str) -> tuple[Kernel, ...]:
    made: tuple[Kernel, ...] = through_stages(program, target)["region"].kernels
    return made


def agree(program: Program, target: str) -> None:
    report = compare(program, inputs_for(program, 1), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", one_in(3, TARGETS))
@pytest.mark.parametrize("name", one_in(2, LEFT_OVER))
def test_lengths_without_divisors(name: str, target: str) -> None:
    program = LEFT_OVER[name]()
    first, second = kernels(program, target)
    assert "part" in first.sizes
    assert "is_part" in {let.name for let in second.body}
    agree(program, target)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_few_rows(target: str) -> None:
    b = Builder()
    program = b.build(b.matmul(b.param("f32", [3, PRIME]), b.param("f32", [PRIME, 130])))
    module = through_stages(program, target)["region"]
    first, second = module.kernels
    left = second.sizes["part"] - first.sizes["part"]
    assert first.sizes["part"] * first.sizes["k"] + left == PRIME
    assert 0 < left < 256
    x, y = inputs_for(program, 1)
    found = run_module(module, dict(zip(module.inputs, (x, y), strict=True)))[module.outputs[0]]
    np.testing.assert_allclose(found, x.astype(np.float64) @ y, rtol=1e-4, atol=1e-5)


# -- levels --------------------------------------------------------------------------------------


LEVELS: dict[str, tuple[Callable[[], Program], list[Pattern]]] = {
    "argmax": (lambda: argmax(2, 4096), [Pattern.ROW] * 4),
    "argmax of a prime": (lambda: argmax(PRIME), [Pattern.ROW] * 4),
    "layer norm": (lambda: layer_norm(2, 5003), [*[Pattern.ROW] * 4, Pattern.MAP]),
    "softmax": (lambda: softmax(3, 5003), [*[Pattern.ROW] * 4, Pattern.MAP]),
}


@pytest.mark.parametrize("target", one_in(2, TARGETS))
@pytest.mark.parametrize("name", LEVELS)
def test_few_long_rows(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_KEPT", 1000)
    make, patterns = LEVELS[name]
    program = make()
    assert [kernel.pattern for kernel in kernels(program, target)] == patterns
    agree(program, target)


def test_the_first_of_equal_numbers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both stand in different parts, and where one is left over."""
    monkeypatch.setattr(levels, "_KEPT", 1000)
    executable = InterpretedGpu("sm90").compile(argmax(PRIME))
    for places in ([77, 5000], [PRIME - 1], [5000, PRIME - 1]):
        x = np.zeros(PRIME, np.float32)
        x[places] = 1
        assert executable.execute([x])[0] == places[0]
    x[6000] = np.nan
    assert executable.execute([x])[0] == 6000


@pytest.mark.parametrize(("rows", "length"), one_in(2, [(1, 45_007), (2, 45_056)], unpack=True))
def test_folds_hand_on_all_that_they_carry(rows: int, length: int) -> None:
    program = softmax(rows, length)
    first, second, last = kernels(program, "sm80")
    for kernel in (first, second):
        assert any(isinstance(let.expr, Fold) for let in kernel.body)
    assert last.pattern is Pattern.MAP
    agree(program, "sm80")


def test_rows_that_a_cluster_keeps_stay_in_one_kernel() -> None:
    assert len(kernels(argmax(2, 100_000), "sm90")) == 1


def test_many_long_rows_stay_in_one_kernel() -> None:
    assert len(kernels(argmax(132, 300_000), "sm90")) == 1


# -- channels of a batch -------------------------------------------------------------------------


def batch_norm(dtype: str, *shape: int) -> Program:
    """Over all axes but the last; mean and variance are results too."""
    b = Builder()
    x, weight = b.param(dtype, list(shape)), b.param("f32", [shape[-1]])
    wide, axes = b.cast(x, "f32"), list(range(len(shape) - 1))
    each = 1 / float(np.prod(shape[:-1]))
    mean = b.reduce_sum(wide, axes) * each
    centred = wide - b.broadcast_to(mean, shape)
    spread = b.reduce_sum(centred * centred, axes) * each
    factor = b.rsqrt(spread) * weight
    return b.build(b.cast(centred * b.broadcast_to(factor, shape), dtype), mean, spread)


def test_statistics_of_channels_are_read_once() -> None:
    program = batch_norm("bf16", 8, 150, 32)
    made = kernels(program, "sm90")
    assert [kernel.pattern for kernel in made] == [Pattern.ROW, Pattern.ROW, Pattern.MAP]
    parts, merged, last = made
    assert len(parts.outputs) == 5
    assert all(
        isinstance(let.expr, Fold) for let in map(parts.let, (o.value for o in parts.outputs))
    )
    # What is one for each channel is computed once, where the parts are merged.
    assert len(merged.outputs) == 4
    assert not any(isinstance(let.expr, Unary) for let in last.body)
    agree(program, "sm90")


def test_parts_of_folds_are_named_where_they_are_read_and_once_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not again for each of the folds that merge them."""
    asked: Counter[str] = Counter()

    def of_part(self: cutting._Cutting, total: Let) -> str:
        asked[total.name] += 1
        return self.free(f"{total.name}_part")

    monkeypatch.setattr(cutting._Cutting, "of_part", of_part)
    parts, _, _ = kernels(batch_norm("bf16", 8, 150, 32), "sm90")
    assert len(asked) == len(parts.outputs)
    assert set(asked.values()) == {2}


def test_statistics_of_wide_floats_are_taken_from_distances() -> None:
    made = kernels(batch_norm("f32", 8, 150, 32), "sm90")
    assert not any(isinstance(let.expr, Fold) for kernel in made for let in kernel.body)
    assert len(made) == 5
