"""Quotients whose divisor many share, of the prelude: the text itself, run by the host's compiler
with a reciprocal as inexact as the machine's; and where kernels take them.

Numbers are skipped where there is no C++ compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.gpu_programs import through_stages
from tests.support.host_prelude import COMPILER, RECIPROCAL, SHIM, Array, apply
from weft.codegen.gpu.spelling.prelude import instructions
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.ptir import Builder, Value

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

HEAD = "INLINE float shared_quotient("
KNOWN = "INLINE float known_quotient("
INSTRUCTION = 'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b * scale));'


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("quotient")
    source, made = folder / "quotient.cc", folder / "quotient.so"
    body = instructions.COMMON.partition(HEAD)[2].partition("\n}\n")[0]
    assert INSTRUCTION in body
    body = body.replace(INSTRUCTION, "r = reciprocal(b * scale);")
    known = instructions.COMMON.partition(KNOWN)[2].partition("\n}\n")[0]
    calls = {"quotient": "shared_quotient(x[i], z[i])"}
    calls["known_quotient"] = "known_quotient(x[i], z[i], (float)(1.0 / (double)z[i]))"
    run = "\n".join(
        f"void run_{name}(const float* x, const float* z, float* y, long n) "
        f"{{ for (long i = 0; i < n; ++i) y[i] = {call}; }}"
        for name, call in calls.items()
    )
    lines = (
        SHIM,
        "using namespace std;",
        RECIPROCAL,
        f"{HEAD}{body}\n}}",
        f"{KNOWN}{known.replace('__int_as_float(0x7f800000)', 'INFINITY')}\n}}",
        f'extern "C" {{ {run} }}',
    )
    source.write_text("\n".join(lines))
    # As an instruction of AArch64, a negated fma of opposite zeros has the other sign.
    exact = ["-ffp-contract=off", "-fno-builtin-fmaf"]
    options = ["-std=c++17", "-O1", "-w", *exact, "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def of_sizes(low: int, high: int, seed: int, count: int = 400_000) -> Array:
    """Numbers of both signs between two powers of two."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(1, 2, count) * 2.0 ** rng.integers(low, high, count)
    return np.asarray(size * rng.choice([-1, 1], count), np.float32)


def steps_apart(got: Array, want: Array) -> Array:
    """How many numbers lie between two, and one more."""
    places = [np.where(x.view(np.int32) < 0, -(1 << 31) - x.view(np.int32).astype(np.int64),
                       x.view(np.int32)) for x in (got, want)]  # fmt: skip
    return np.asarray(np.abs(places[0] - places[1]))


@needs_compiler
@pytest.mark.parametrize("sizes", [(-20, 20), (-99, 0), (0, 99)])
@pytest.mark.parametrize("name", ["quotient", "known_quotient"])
def test_quotients_are_rounded_correctly(
    library: ctypes.CDLL, name: str, sizes: tuple[int, int]
) -> None:
    above, below = of_sizes(-20, 20, 1), of_sizes(*sizes, 2)
    want = above / below
    usual = (np.abs(want) > 2.0**-100) & np.isfinite(want)
    assert usual.mean() > 0.7
    got = apply(library, name, np.float32, above, below)
    assert (got[usual] == want[usual]).all()


@needs_compiler
def test_quotients_of_any_numbers_are_off_by_one_at_most(library: ctypes.CDLL) -> None:
    above, below = of_sizes(-149, 128, 3), of_sizes(-149, 128, 4)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        want = above / below
    got = apply(library, "quotient", np.float32, above, below)
    assert steps_apart(got, want).max() <= 1
    assert (got[np.isinf(want)] == want[np.isinf(want)]).all()


@needs_compiler
def test_quotients_of_special_numbers(library: ctypes.CDLL) -> None:
    numbers = np.asarray([0.0, -0.0, 1.5, -3e38, 1e-45, np.inf, -np.inf, np.nan], np.float32)
    above, below = (x.reshape(-1).copy() for x in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        want = above / below
    got = apply(library, "quotient", np.float32, above, below)
    np.testing.assert_array_equal(got, want)


@needs_compiler
@pytest.mark.parametrize("name", ["quotient", "known_quotient"])
def test_zeros_by_a_positive_number_keep_their_sign(library: ctypes.CDLL, name: str) -> None:
    above = np.asarray([0.0, -0.0, -0.0, 0.0, -0.0], np.float32)
    below = np.asarray([3.0, 3.0, 1e-20, 7e20, 0.1], np.float32)
    got = apply(library, name, np.float32, above, below)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(above))


@needs_compiler
def test_quotients_of_special_numbers_by_a_known_one(library: ctypes.CDLL) -> None:
    above = np.asarray([0.0, -0.0, 1.5, -3e38, np.inf, -np.inf, np.nan], np.float32)
    for number in (3.0, -0.7, 1e-10):
        below = np.full_like(above, number)
        with np.errstate(all="ignore"):
            want = above / below
        got = apply(library, "known_quotient", np.float32, above, below)
        np.testing.assert_array_equal(got, want)


def code(build: Callable[[Builder, Value], Value], dtype: str) -> tuple[str, str]:
    """A program's kernels in the dialect and in CUDA."""
    b = Builder()
    compilation = through_stages(b.build(build(b, b.param(dtype, [64, 1000]))), "sm90")
    module = compilation["gpu"]
    assert print_module(parse_module(print_module(module))) == print_module(module)
    kernels = compilation.text("cu").split("__global__")[1:]
    return print_module(module), "".join(text.partition("\n}\n")[0] for text in kernels)


def test_rows_divide_by_what_they_have_in_common() -> None:
    dialect, cuda = code(lambda b, x: b.softmax(x), "f32")
    quotients = [line for line in dialect.splitlines() if " = div(" in line]
    assert quotients
    assert all(line.endswith(" shared") for line in quotients)
    assert cuda.count("shared_quotient(") == len(quotients)


@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_other_dtypes_divide_as_before(dtype: str) -> None:
    assert "shared_quotient(" not in code(lambda b, x: b.softmax(x), dtype)[1]


def test_divisors_of_single_elements_are_not_shared() -> None:
    def total(b: Builder, x: Value) -> Value:
        return b.reduce_sum(x / (x * x + 1.0), [1])

    assert "shared_quotient(" not in code(total, "f32")[1]
    assert "shared_quotient(" not in code(lambda b, x: x / 3.0, "f32")[1]


def test_powers_of_two_are_left_to_the_compiler() -> None:
    def mean(by: float) -> Callable[[Builder, Value], Value]:
        return lambda b, x: b.reduce_sum(x, [1]) / by

    assert "known_quotient(" in code(mean(1000.0), "f32")[1]
    assert "_quotient(" not in code(mean(1024.0), "f32")[1]
