"""Parameters that are laid out in panels for products: results, where it is done, what is
refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.images import Conv, wide
from weft import functional as F
from weft import nn
from weft.driver.compile import Executable, compile_program
from weft.driver.cpu import CpuExecutable
from weft.driver.signature import Role
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program

Array = NDArray[Any]


def places(made: Executable) -> set[tuple[str, str]]:
    """Where plans have which operands."""
    plans = json.loads(made.stages["plan"])["plans"]
    return {(read["tensor"], read["where"]) for plan in plans for read in plan.get("cache", ())}


CONVS = [
    (Conv(sizes=(7, 7), channels=24, results=40, images=2), "A"),
    (Conv(sizes=(14, 14), channels=16, results=52), "A"),
    (Conv(sizes=(9, 11), channels=16, results=30, pad=0), "A"),
    (Conv(sizes=(15, 20), channels=16, results=32, stride=2), "A"),
    (Conv(sizes=(25, 25), channels=12, results=40, stride=4, dilation=2, window=(5, 5)), "A"),
    (Conv(sizes=(13, 13), channels=16, results=36, dilation=2, pad=2), "A"),
    (Conv(sizes=(50,), window=(5,), channels=32, results=40, stride=2, pad=2), "A"),
    (Conv(sizes=(5, 6, 8), window=(3, 3, 3), channels=8, results=24), "A"),
    (Conv(sizes=(6, 20), channels=16, results=32, fill=0.25), "A"),
    (Conv(sizes=(8, 8), channels=32, results=48, last=True), "B"),
    (Conv(sizes=(6, 6), channels=64, results=80, window=(1, 1), pad=0), "A"),
    (Conv(sizes=(2, 2), channels=32, results=50, images=3), "B"),
    (Conv(sizes=(1, 1), channels=96, results=70, images=2), "B"),
    (Conv(sizes=(2, 2), channels=32, results=33, stride=2, images=5), "B"),
    (Conv(sizes=(3, 3), channels=64, results=64, window=(1, 1), pad=0), "B"),
]


@pytest.mark.parametrize(
    ("conv", "side"),
    one_in(3, CONVS, unpack=True),
    ids=[str(number) for number in range(len(CONVS))],
)
def test_filters_that_stay_lie_in_panels(conv: Conv, side: str) -> None:
    made = compile_program(conv.program(), wide(), params=(1,))
    assert (side, "panels") in places(made)
    data = conv.data()
    (got,) = made.run(data)
    np.testing.assert_allclose(got, conv.exact(data).astype(np.float32), rtol=2e-5, atol=2e-5)
    assert not {where for _, where in places(compile_program(conv.program(), wide()))} & {"panels"}


IDLE = [
    Conv(sizes=(1, 1), channels=96, results=70, images=2),
    Conv(sizes=(2, 2), channels=96, results=70, images=3, stride=2),
    Conv(sizes=(1, 9), channels=96, results=70, window=(5, 3), pad=2),
    Conv(sizes=(1, 30), channels=96, results=70, window=(3, 3)),
    Conv(sizes=(2,), images=3, channels=96, results=70, window=(9,), stride=8, pad=4),
]


@pytest.mark.parametrize("conv", IDLE, ids=[str(number) for number in range(len(IDLE))])
def test_taps_that_no_result_sees_are_summed_up_once(conv: Conv) -> None:
    made = compile_program(conv.program(), wide(), params=(1,))
    assert "_idle_sum" in made.stages["region"]
    data = conv.data()
    np.testing.assert_allclose(
        made.run(data)[0], conv.exact(data).astype(np.float32), rtol=2e-5, atol=2e-5
    )


def test_sums_without_an_epilogue_have_idle_taps_as_well() -> None:
    rng = np.random.default_rng(0)
    shapes = ((2, 96, 1, 1), (70, 96, 3, 3))
    data = [(0.1 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]
    program = weft.jit(partial(F.conv2d, padding=1)).program(*map(weft.tensor, data))
    made = compile_program(program, wide(), params=(1,))
    assert "_idle_sum" in made.stages["region"]
    (want,) = weft.run(program, data, backend="reference")
    np.testing.assert_allclose(made.run(data)[0], want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("weight", [np.inf, -np.inf, np.nan])
def test_weights_that_are_no_numbers_are_seen_where_they_multiply_zeros(weight: float) -> None:
    conv = Conv(sizes=(1, 1), channels=96, results=70, images=2)
    made = compile_program(conv.program(), wide(), params=(1,))
    for tap in ((0, 2), (1, 1)):
        x, w, bias = conv.data()
        w[3, 5, *tap] = weight
        (want,) = weft.run(conv.program(), [x, w, bias], backend="reference")
        np.testing.assert_allclose(made.run([x, w, bias])[0], want, rtol=2e-5, atol=2e-5)
        assert np.isfinite(want[:, :3]).all()
        assert np.isnan(want[:, 3]).all() == (tap == (0, 2) or np.isnan(weight))


@pytest.mark.parametrize(
    "conv",
    [
        Conv(sizes=(40, 40), channels=16, results=32),
        Conv(sizes=(7, 7), channels=4, results=8),
        Conv(sizes=(7, 7), channels=32, results=32, groups=2),
        Conv(sizes=(7, 7), channels=32, results=32, dtype="f64"),
    ],
    ids=["many results", "few weights", "groups", "f64"],
)
def test_other_filters_are_packed_in_every_run(conv: Conv) -> None:
    assert ("A", "panels") not in places(compile_program(conv.program(), wide(), params=(1,)))


def test_filters_of_phases_lie_in_panels() -> None:
    """Each phase of a transposed convolution reads every second tap of its filters, turned."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 24, 9, 9)).astype(np.float32)
    w = rng.standard_normal((24, 64, 4, 4)).astype(np.float32)
    upward = weft.jit(partial(F.conv_transpose2d, stride=2, padding=1))
    program = upward.program(weft.tensor(x), weft.tensor(w))
    made = compile_program(program, wide(), params=(1,))
    assert ("A", "panels") in places(made)
    (want,) = weft.run(program, [x, w], backend="reference")
    np.testing.assert_allclose(made.run([x, w])[0], want, rtol=2e-5, atol=2e-4)


def product(m: int, k: int, n: int, *, turned: bool) -> Program:
    b = Builder("product")
    x, w = b.param("f32", [m, k]), b.param("f32", [n, k] if turned else [k, n])
    y = b.dot_general(x, w, contract=([1], [1 if turned else 0]))
    return b.build(b.tanh(y))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(9, 100, 130), (64, 300, 96), (129, 513, 70), (97, 64, 144)]
)
def test_weights_of_some_rows_lie_in_panels(m: int, k: int, n: int, turned: bool) -> None:
    program = product(m, k, n, turned=turned)
    made = compile_program(program, wide(), params=(1,))
    assert ("B", "panels") in places(made)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((m, k)), rng.standard_normal((n, k) if turned else (k, n))
    data = [(0.2 * each).astype(np.float32) for each in (x, w)]
    want = np.tanh(0.04 * x @ (w.T if turned else w))
    np.testing.assert_allclose(made.run(data)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turned", [False, True])
def test_many_rows_read_weights_where_they_lie(turned: bool) -> None:
    made = compile_program(product(512, 300, 96, turned=turned), wide(), params=(1,))
    assert not {where for _, where in places(made)} & {"panels"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"warp_tile": "12x32", "tile": [132, 49, 216]}, "in panels of 6"),
        ({"tile": [39, 49, 216]}, "no whole panels"),
        ({"cache": [{"tensor": "A", "where": "image"}, {"tensor": "B", "where": "panels"}]}, "B"),
    ],
)
def test_plans_that_do_not_fit_the_panels_are_refused(changes: dict[str, Any], why: str) -> None:
    conv = Conv(sizes=(7, 7), channels=24, results=40)
    document = json.loads(compile_program(conv.program(), wide(), params=(1,)).stages["plan"])
    (plan,) = [plan for plan in document["plans"] if "panels" in json.dumps(plan.get("cache"))]
    for read in changes.get("cache", ()):
        read |= {"at": "k", "pingpong": False}
    plan.update(changes)
    overrides = {"plan": json.dumps(document)}
    with pytest.raises(SpecViolation, match=why):
        compile_program(conv.program(), wide(), params=(1,), overrides=overrides)


def test_what_memory_holds_beside_the_copy_of_an_image_is_never_multiplied() -> None:
    """Phases of a strided window need less than their planes have room for: the rest is zeros, for
    numbers that happen to be denormal take very long."""
    conv = Conv(sizes=(14, 14), channels=16, results=32, stride=2)
    text = compile_program(conv.program(), wide()).stages["cpu"]
    assert text.count("serial z_") > text.count("serial cb_")


class Layer(nn.Module):
    """A product with a parameter and a captured tensor."""

    def __init__(self, weight: Array) -> None:
        self.weight = weft.tensor(weight).to("cpu")

    def __call__(self, x: weft.Tensor) -> weft.Tensor:
        made: weft.Tensor = x @ self.weight
        return made


def roles(function: Any) -> tuple[Role, ...]:
    (version,) = function.versions.values()
    executable = version.compiled.executable
    assert isinstance(executable, CpuExecutable)
    return executable.executable.signature.roles


def test_tensors_of_modules_and_captured_ones_are_parameters() -> None:
    rng = np.random.default_rng(0)
    weight, image = (rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (3, 5)))
    layer, x, scale = Layer(weight), weft.tensor(image).to("cpu"), weft.tensor(weight[0]).to("cpu")
    by_module = weft.jit(lambda layer, x: layer(x) * scale)
    want = image @ weight * weight[0]
    np.testing.assert_allclose(by_module(layer, x).numpy(), want, rtol=1e-5, atol=1e-5)
    assert roles(by_module) == (Role.PARAM, Role.DATA, Role.PARAM)
    plain = weft.jit(lambda weight, x: x @ weight)
    plain(layer.weight, x)
    assert roles(plain) == (Role.DATA, Role.DATA)


def test_a_module_that_is_given_away_or_assigned_to_has_no_parameters() -> None:
    def changed(layer: Layer, x: weft.Tensor) -> weft.Tensor:
        y = layer(x)
        layer.weight = layer.weight * 2.0
        return y

    rng = np.random.default_rng(0)
    weight, image = (rng.standard_normal(s).astype(np.float32) for s in ((5, 6), (3, 5)))
    x = weft.tensor(image).to("cpu")
    assigning = weft.jit(changed)
    assigning(Layer(weight), x)
    donating = weft.jit(lambda layer, x: layer.weight + (x.T @ layer(x)), donate=("layer",))
    donating(Layer(weight), x)
    for function in (assigning, donating):
        assert set(roles(function)) == {Role.DATA}


@pytest.mark.parametrize(
    ("m", "k", "n", "turned", "laid"),
    [(4, 20, 312, True, True), (8, 513, 64, True, True), (4, 513, 64, False, False),
     (4, 513, 20, True, False)],
    ids=["short sums", "long sums", "columns side by side", "panels mostly empty"],
)  # fmt: skip
def test_weights_of_a_few_rows_lie_in_panels_if_columns_lie_apart(
    m: int, k: int, n: int, turned: bool, laid: bool
) -> None:
    """Panels that were much larger than the weights would be made in every run."""
    program = product(m, k, n, turned=turned)
    made = compile_program(program, wide(), params=(1,))
    assert (("B", "panels") in places(made)) == laid
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((m, k)), rng.standard_normal((n, k) if turned else (k, n))
    data = [0.1 * each.astype(np.float32) for each in (x, w)]
    (want,) = weft.run(program, data, backend="reference")
    np.testing.assert_allclose(made.run(data)[0], want, rtol=2e-5, atol=2e-5)
