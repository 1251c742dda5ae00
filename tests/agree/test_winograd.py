"""Convolutions by Winograd's algorithm, which a plan has to ask for: results, bound, refusals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.driver.compile import Executable
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.plan import text
from weft.plan.ir import MmaPlan, PlanSet, Vectorize
from weft.plan.winograd import winograd_plan
from weft.ptir import Builder, Program
from weft.region.ir import Module
from weft.target.known import target_named

Array = NDArray[Any]


@dataclass(frozen=True)
class Conv:
    """A convolution, channels last; with `bias`, what usually follows it."""

    images: int = 1
    rows: int = 8
    columns: int = 8
    channels: int = 4
    results: int = 8
    pad: int = 1
    window: int = 3
    stride: int = 1
    dtype: str = "f32"
    bias: bool = False

    def program(self) -> Program:
        b = Builder("conv")
        x = b.param(self.dtype, [self.images, self.rows, self.columns, self.channels])
        w = b.param(self.dtype, [self.window**2 * self.channels, self.results])
        bias = b.param(self.dtype, [self.results])
        patches = b.extract_patches(
            x,
            window=[self.window] * 2,
            strides=[self.stride] * 2,
            dilation=[1, 1],
            padding=[(self.pad, self.pad)] * 2,
            pad_value=0.0,
        )
        y = b.dot_general(patches, w, contract=([3], [0]))
        return b.build(b.tanh(y + b.broadcast_to(bias, y.shape)) if self.bias else y)

    def data(self, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        dtype = np.float64 if self.dtype == "f64" else np.float32
        shapes = (
            (self.images, self.rows, self.columns, self.channels),
            (self.window**2 * self.channels, self.results),
            (self.results,),
        )
        return [rng.standard_normal(shape).astype(dtype) for shape in shapes]

    def exact(self, data: list[Array]) -> Array:
        """Window by window, in higher precision."""
        x, w, bias = (array.astype(np.longdouble) for array in data)
        p = self.pad
        padded = np.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        rows, columns = (n + 2 * p - 2 for n in (self.rows, self.columns))
        filters = w.reshape(3, 3, self.channels, self.results)
        y = sum(
            padded[:, i : i + rows, j : j + columns] @ filters[i, j]
            for i in range(3)
            for j in range(3)
        )
        return np.tanh(y + bias) if self.bias else np.asarray(y)


def planned(program: Program) -> tuple[Module, PlanSet]:
    start = Compilation(program, target_named("cpu"), make_signature(program))
    made = run_pipeline(start, "plan")
    return made["region"], made["plan"]


def by_winograd(program: Program, **changes: Any) -> Executable:
    """The program with the plan of its convolution changed to Winograd's algorithm."""
    module, plans = planned(program)
    ((key, first),) = plans.plans.items()
    assert isinstance(first, MmaPlan)
    plan = replace(winograd_plan(module.kernels[0], first, target_named("cpu")), **changes)
    return weft.compile(program, overrides={"plan": text.dumps(replace(plans, plans={key: plan}))})


CASES = [
    Conv(),
    Conv(rows=2, columns=2, channels=2, results=3),
    Conv(rows=6, columns=10, channels=5, results=7),
    Conv(images=3, rows=4, columns=12, channels=19, results=21),
    Conv(rows=10, columns=6, channels=130, results=70, bias=True),
    Conv(rows=12, columns=8, pad=0, channels=6, results=16),
    Conv(images=2, rows=14, columns=14, channels=32, results=48, bias=True),
    Conv(rows=8, columns=8, channels=12, results=20, dtype="f64"),
]


@pytest.mark.parametrize("case", one_in(2, CASES), ids=str)
def test_results_are_within_the_documented_bound(case: Conv) -> None:
    executable, data = by_winograd(case.program()), case.data()
    exact = case.exact(data)
    one, two = (executable.run(data, threads=threads)[0] for threads in (1, 2))
    assert one.tobytes() == two.tobytes()
    unit = np.finfo(one.dtype).eps / 2
    scale = np.abs(data[0]).max() * np.abs(data[1]).max()
    bound = 81 * case.channels * (case.channels + 13) * unit * scale
    error = float(np.abs(one.astype(np.longdouble) - exact).max())
    assert error <= bound
    # The bound is for the worst numbers there are; these are random.
    plain = weft.compile(case.program()).run(data)[0]
    usual = float(np.abs(plain.astype(np.longdouble) - exact).max())
    assert error <= 8 * usual + 8 * unit * float(np.abs(exact).max())


def test_blocks_of_any_size_give_the_same_numbers_but_for_rounding() -> None:
    case = Conv(rows=10, columns=14, channels=20, results=24)
    data = case.data()
    exact = case.exact(data)
    for tile, registers in (((12, 16, 8), (4, 8)), ((7, 20, 20), (7, 4)), ((64, 24, 3), (2, 12))):
        rows = -(-tile[0] // registers[0]) * registers[0]
        columns = -(-tile[1] // registers[1]) * registers[1]
        cut = {"tile": (rows, columns, tile[2]), "warp_tile": registers}
        changed = by_winograd(case.program(), **cut, vectorize=Vectorize("n", 4))
        np.testing.assert_allclose(changed(*data)[0], exact, rtol=1e-4, atol=1e-4)


def test_its_loops_read_back() -> None:
    case = Conv(rows=6, columns=10, channels=5, results=7, bias=True)
    executable, data = by_winograd(case.program()), case.data()
    stages = {name: executable.stages[name] for name in ("plan", "cpu")}
    again = weft.compile(case.program(), overrides=stages)
    assert again(*data)[0].tobytes() == executable(*data)[0].tobytes()


def test_no_heuristic_takes_it() -> None:
    _, plans = planned(Conv().program())
    assert [p.algo_choice for p in plans.plans.values() if isinstance(p, MmaPlan)] == [
        {"conv": "implicit_gemm"}
    ]


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_results_are_finite_where_windows_have_finite_elements_alone(value: float) -> None:
    case = Conv(rows=6, columns=10)
    data, found = case.data(), by_winograd(case.program())
    for row in range(case.rows):
        data[0][...] = 1.0
        data[0][0, row, 4, 2] = value
        (wanted,) = weft.run(case.program(), data, backend="reference")
        np.testing.assert_array_equal(np.isfinite(found.run(data)[0]), np.isfinite(wanted))


def refusal(program: Program, **changes: Any) -> str:
    """Why the plan of a program's only kernel cannot be Winograd's."""
    _, plans = planned(program)
    ((key, first),) = plans.plans.items()
    assert isinstance(first, MmaPlan)
    plan = replace(first, algo_choice={"conv": "winograd_3x3"}, **changes)
    changed = text.dumps(replace(plans, plans={key: plan}))
    with pytest.raises(SpecViolation) as raised:
        weft.compile(program, overrides={"plan": changed})
    return str(raised.value)


@pytest.mark.parametrize(
    ("case", "changes", "why"),
    [
        (Conv(rows=9), {}, "its result has an odd number of rows or columns"),
        (Conv(window=5, pad=2, channels=16), {}, "its window is not 3 x 3 at unit steps"),
        (Conv(rows=17, columns=17, stride=2), {}, "its window is not 3 x 3 at unit steps"),
        (Conv(), {"cache": ()}, "works on packed A and B"),
        (
            Conv(rows=64, columns=64, channels=64, results=64),
            {"tile": (960, 64, 64), "warp_tile": (8, 8)},
            "bytes; 1,572,864 is the most",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(case: Conv, changes: dict[str, Any], why: str) -> None:
    assert why in refusal(case.program(), **changes)


def test_channels_first_are_refused() -> None:
    x, w = np.zeros((1, 16, 8, 8), np.float32), np.zeros((8, 16, 3, 3), np.float32)
    conv = weft.jit(lambda x, w: weft.functional.conv2d(x, w, padding=1))
    assert "its result has its channels first" in refusal(conv.program(x, w))


def test_a_product_is_no_convolution() -> None:
    b = Builder("product")
    x, w = b.param("f32", [96, 96]), b.param("f32", [96, 96])
    assert "it is not a convolution" in refusal(b.build(x @ w))
