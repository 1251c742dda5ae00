"""Quotients and roots of bf16, of the prelude: the text itself, run by the host's compiler with
instructions as inexact as the machine's; and what kernels make of them.

Numbers are skipped where there is no C++ compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.support.gpu_programs import through_stages
from tests.support.host_prelude import COMPILER, RECIPROCAL, SHIM, Array, apply
from weft.codegen.gpu import sass
from weft.codegen.gpu.spelling.prelude import instructions
from weft.driver.code.gpu_kernels import compile_sources
from weft.ptir import Builder

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
needs_disassembler = pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")

ROOT = r"""
INLINE float root(float x) {
  const float r = sqrtf(x);
  if (r == 0.0f || !isfinite(r)) return r;
  return same_bits<float>(same_bits<u32>(r) + same_bits<u32>(x) / 65536 % 3 - 1);
}
"""
FUNCTIONS = {
    "INLINE float bf16_quotient(": (
        'asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b * scale));',
        "r = reciprocal(b * scale);",
    ),
    "INLINE float bf16_root(": (
        'asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));',
        "r = root(x);",
    ),
}
RUNS = r"""
extern "C" {
void run_quotient(const float* x, const float* z, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = bf16_quotient(x[i], z[i]);
}
void run_root(const float* x, float* y, long n) {
  for (long i = 0; i < n; ++i) y[i] = bf16_root(x[i]);
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("bf16")
    source, made = folder / "bf16.cc", folder / "bf16.so"
    bodies = []
    for head, (instruction, plain) in FUNCTIONS.items():
        body = instructions.COMMON.partition(head)[2].partition("\n}\n")[0]
        assert instruction in body
        bodies.append(f"{head}{body.replace(instruction, plain)}\n}}")
    lines = (SHIM, "using namespace std;", RECIPROCAL, ROOT, *bodies, RUNS)
    source.write_text("\n".join(lines))
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


def of_bits(bits: Array) -> Array:
    found: Array = np.asarray(bits, np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    return found


def rounded(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quotients(library: ctypes.CDLL, above: Array, below: Array) -> tuple[Array, Array]:
    """As kernels have them, and right."""
    got = rounded(apply(library, "quotient", np.float32, above, below))
    with np.errstate(all="ignore"):
        return got, rounded(above / below)


@needs_compiler
@pytest.mark.parametrize("power", [-126, -64, -1, 0, 63, 126])
def test_every_quotient_of_two_mantissas_is_rounded_right(library: ctypes.CDLL, power: int) -> None:
    one, digits = 127 << 7, np.arange(128)
    above, below = (
        of_bits(x.reshape(-1)) for x in np.meshgrid(one + digits, one + (power << 7) + digits)
    )
    got, want = quotients(library, above, below)
    usual = np.abs(want) >= 2.0**-126
    assert usual.any()
    assert (got[usual] == want[usual]).all()


@needs_compiler
def test_quotients_of_any_numbers_are_right_but_for_the_smallest(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    above, below = (of_bits(rng.integers(0, 1 << 16, 1 << 20)) for _ in range(2))
    got, want = quotients(library, above, below)
    small = np.abs(want) < 2.0**-126
    np.testing.assert_array_equal(got[~small], want[~small])
    assert np.abs(got[small] - want[small]).max() <= 2.0**-133


@needs_compiler
def test_every_root_is_right(library: ctypes.CDLL) -> None:
    x = of_bits(np.arange(1 << 16))
    with np.errstate(invalid="ignore"):
        want = rounded(np.sqrt(x))
    np.testing.assert_array_equal(rounded(apply(library, "root", np.float32, x)), want)


@needs_disassembler
def test_optimisers_of_bf16_neither_branch_nor_round_one_by_one() -> None:
    """Where a division has a way of its own for 0, most gradients of an embedding take it."""
    b = Builder("step")
    weight, mean, square = (b.param("bf16", [1000, 64]) for _ in range(3))
    program = b.build(weight - mean / (b.sqrt(square / 0.3) + 0.001))
    cubins = compile_sources(through_stages(program, "sm90")["cu"], "sm_90a").cubins
    (code,) = (sass.disassemble(cubin.code) for cubin in cubins.values())
    roots = {instruction.root for instruction in code}
    assert roots >= {"F2FP", "MUFU"}
    assert roots.isdisjoint({"F2F", "FCHK", "CALL"})
