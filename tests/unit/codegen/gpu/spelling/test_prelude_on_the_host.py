"""The functions of the prelude that are plain C++, run by the host's compiler: the text itself, and
not what it is meant to say, against ml_dtypes, whole numbers of Python and known answers.

Skipped where there is no C++ compiler.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.support.host_prelude import COMPILER, SHIM, apply
from weft.codegen.gpu.spelling.prelude.elements import ELEMENTS, FORMATS, philox
from weft.codegen.gpu.spelling.prelude.instructions import ACROSS
from weft.codegen.gpu.spelling.prelude.sorting import KEYS
from weft.foundation.dtypes import ALL, DType
from weft.foundation.radix_sort import sort_keys

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")

INTEGERS: dict[str, Any] = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u32": np.uint32, "i64": np.int64,
    "u64": np.uint64,
}  # fmt: skip
BINARY = ("divide", "modulo", "power", "shift_left", "shift_right")
UNARY = {
    "narrow_fp8_e4m3": ("float", "u8"),
    "narrow_fp8_e5m2": ("float", "u8"),
    "widen_fp8_e4m3": ("u8", "float"),
    "widen_fp8_e5m2": ("u8", "float"),
    "widen_si4": ("u8", "i8"),
    "widen_ui4": ("u8", "u8"),
    "round_si4": ("i8", "i8"),
    "narrow_si4": ("i8", "u8"),
}


NUMBERS = [dtype for dtype in ALL if dtype.is_float or dtype.is_signed]


def _keys(dtype: DType, suffix: str, form: str) -> str:
    """Keys of elements that are given by their bits, and whether each is a NaN."""
    kind = "u64" if dtype.bits == 64 else "u32"
    call = "float_key<{bits}>(x[i], nan[i])" if dtype.is_float else "integer_key<{bits}>(x[i])"
    value = form.format(call, bits="{bits}").format(bits=dtype.bits)
    loop = f"for (long i = 0; i < n; ++i) y[i] = {value};"
    head = f"void run_key_{dtype}{suffix}(const {kind}* x, const bool* nan, {kind}* y, long n)"
    return f"{head} {{ {loop} }}"


def _exports() -> str:
    lines = []
    for name, (source, target) in UNARY.items():
        loop = f"for (long i = 0; i < n; ++i) y[i] = {name}(x[i]);"
        lines.append(f"void run_{name}(const {source}* x, {target}* y, long n) {{ {loop} }}")
    for name in BINARY:
        for kind in INTEGERS:
            lines.append(_pairwise(f"{name}_{kind}", kind, f"{name}(x[i], z[i])"))
    for kind in ("float", "double"):
        lines.append(_pairwise(f"log_add_exp_{kind}", kind, "log_add_exp(x[i], z[i])"))
        bits = "next_bits(bits(x[i]), bits(z[i]), x[i], z[i])"
        lines.append(_pairwise(f"next_{kind}", kind, f"Held<{kind}>::from({bits})"))
    for dtype in NUMBERS:
        lines += [_keys(dtype, "", "{}"), _keys(dtype, "_reversed", "reversed_key<{bits}>({})")]
    lines.append(
        "void run_philox(u32* y, u64 seed, u64 offset, u64 block)"
        " { u32 w[4]; philox_block(w, seed, offset, block); memcpy(y, w, 16); }"
    )
    lines.append(
        "void run_across(u32* y, const char* x, i64 start, int count)"
        " { u32 w[4]; fetch_across(w, x, start, count, true); memcpy(y, w, 16); }"
    )
    return 'extern "C" {\n' + "\n".join(lines) + "\n}\n"


def _pairwise(name: str, kind: str, value: str) -> str:
    loop = f"for (long i = 0; i < n; ++i) y[i] = {value};"
    return f"void run_{name}(const {kind}* x, const {kind}* z, {kind}* y, long n) {{ {loop} }}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("prelude")
    source, made = folder / "prelude.cc", folder / "prelude.so"
    source.write_text(SHIM + ELEMENTS + FORMATS + ACROSS + KEYS + philox() + _exports())
    options = ["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([str(COMPILER), *options, str(source), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


# -- narrow formats --------------------------------------------------------------------------------

FORMAT = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("name", FORMAT)
def test_narrow_floats_round_to_nearest_even(library: ctypes.CDLL, name: str) -> None:
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    x = (upper[:, None] | lower).reshape(-1).view(np.float32)
    got = apply(library, f"narrow_{name}", np.uint8, x)
    with np.errstate(all="ignore"):
        want = x.astype(FORMAT[name])
    same = (got == want.view(np.uint8)) | (np.isnan(want) & np.isnan(got.view(FORMAT[name])))
    assert same.all(), x[~same][:5]


@pytest.mark.parametrize("name", FORMAT)
def test_narrow_floats_widen_exactly(library: ctypes.CDLL, name: str) -> None:
    x = np.arange(256, dtype=np.uint8)
    got = apply(library, f"widen_{name}", np.float32, x)
    want = x.view(FORMAT[name]).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    assert (np.signbit(got) == (x >= 128)).all()


def test_nibbles_lie_in_the_lower_half_of_a_byte(library: ctypes.CDLL) -> None:
    x = np.arange(256, dtype=np.uint8)
    signed = np.where(x % 16 < 8, x % 16, x % 16 - np.int16(16))
    assert (apply(library, "widen_si4", np.int8, x) == signed).all()
    assert (apply(library, "widen_ui4", np.uint8, x) == x % 16).all()
    assert (apply(library, "round_si4", np.int8, x.view(np.int8)) == signed).all()
    assert (apply(library, "narrow_si4", np.uint8, x.view(np.int8)) == x % 16).all()


# -- integers --------------------------------------------------------------------------------------


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


MEANING: dict[str, Callable[[int, int, int], int]] = {
    "divide": lambda a, b, bits: toward_zero(a, b),
    "modulo": lambda a, b, bits: a - toward_zero(a, b) * b,
    "power": lambda a, b, bits: pow(a, b, 1 << bits),
    "shift_left": lambda a, b, bits: a << b if b < bits else 0,
    "shift_right": lambda a, b, bits: a >> min(b, bits),
}


def wrapped(number: int, kind: np.dtype[Any]) -> int:
    bits = 8 * kind.itemsize
    rest = number % (1 << bits)
    return rest - (1 << bits) if kind.kind == "i" and rest >> (bits - 1) else rest


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", BINARY)
def test_integers_are_those_of_python(library: ctypes.CDLL, name: str, kind: str) -> None:
    dtype = np.dtype(INTEGERS[kind])
    ends, rng = np.iinfo(dtype), np.random.default_rng(3)
    x = rng.integers(ends.min, ends.max, 400, dtype, endpoint=True)
    x[:6] = [ends.min, ends.min, ends.max, 0, 1, ends.min + 1]
    y = rng.integers(ends.min, ends.max, 400, dtype, endpoint=True)
    if name in ("divide", "modulo"):
        y[:3] = [ends.max, wrapped(-1, dtype), 2]
        y[y == 0] = 3
    else:
        y = np.abs(rng.integers(0, 70, 400)).astype(dtype)
    got = apply(library, f"{name}_{kind}", dtype, x, y)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    want = [wrapped(MEANING[name](a, b, 8 * dtype.itemsize), dtype) for a, b in pairs]
    assert got.tolist() == want


# -- floats ----------------------------------------------------------------------------------------

VALUES = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-30, 5e-324, 3e38, 88.0, -700.0, np.inf, -np.inf, np.nan, 0.1, -2.5]
)


@pytest.mark.parametrize(("kind", "dtype"), [("float", np.float32), ("double", np.float64)])
def test_neighbours_and_sums_of_powers(library: ctypes.CDLL, kind: str, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        x, y = (side.reshape(-1).astype(dtype) for side in np.meshgrid(VALUES, VALUES))
        np.testing.assert_array_equal(
            apply(library, f"next_{kind}", dtype, x, y), np.nextafter(x, y)
        )
        got = apply(library, f"log_add_exp_{kind}", dtype, x, y)
        want = np.logaddexp(x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(got, want.astype(dtype), 4 * np.finfo(dtype).eps, 1e-30)


# Known answers of the authors of the generator, for ten rounds.
ANSWERS = [
    (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "offset", "block", "words"), ANSWERS)
def test_random_words(library: ctypes.CDLL, seed: int, offset: int, block: int, words: str) -> None:
    got = np.zeros(4, np.uint32)
    numbers = [ctypes.c_uint64(number) for number in (seed, offset, block)]
    library.run_philox(ctypes.c_void_p(got.ctypes.data), *numbers)
    assert " ".join(f"{word:08x}" for word in got) == words


# -- lines that begin anywhere ---------------------------------------------------------------------


def test_bytes_come_from_the_lines_they_lie_in(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    room = rng.integers(1, 256, 96, np.uint8)
    x = room[-room.ctypes.data % 16 :][:64]
    got = np.empty(16, np.uint8)
    for start in range(48):
        for count in range(-1, min(17, 64 - start)):
            want = np.zeros(16, np.uint8)
            want[: max(count, 0)] = x[start : start + max(count, 0)]
            places = [ctypes.c_void_p(array.ctypes.data) for array in (got, x)]
            library.run_across(*places, ctypes.c_longlong(start), ctypes.c_int(count))
            assert (got == want).all(), (start, count)


@pytest.mark.parametrize("suffix", ["", "_reversed"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_keys_are_those_of_the_reference(library: ctypes.CDLL, dtype: DType, suffix: str) -> None:
    rng = np.random.default_rng(dtype.index)
    raw = rng.integers(0, 1 << 63, 5000, np.uint64) << np.uint64(1) >> np.uint64(64 - dtype.bits)
    top = np.uint64(1 << (dtype.bits - 1))
    raw = np.concatenate([raw, np.array([0, 1], np.uint64), top + np.array([0, 1], np.uint64)])
    x = raw.astype(f"u{dtype.storage_bytes}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        nan = np.isnan(x.astype(np.float64)) if dtype.is_float else np.zeros(len(x), bool)
    kind = np.uint64 if dtype.bits == 64 else np.uint32
    got = apply(library, f"key_{dtype}{suffix}", kind, raw.astype(kind), nan)
    assert (got == sort_keys(x, bool(suffix))).all()
