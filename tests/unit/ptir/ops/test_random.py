"""Random numbers against Philox4x32-10 written out for one counter in plain integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.one_op import Array, apply, assert_ulp, bits
from tests.support.random_oracle import (
    PRECISION,
    scalar_normal,
    scalar_philox,
    scalar_uniform,
    scalar_word,
)
from weft.foundation import philox
from weft.foundation.dtypes import F32, F64, DType
from weft.ptir import Builder
from weft.ptir.op import EvalContext
from weft.ptir.ops.random import RngNormal, RngUniform
from weft.ptir.types import Symbol, TensorType

DTYPES = list(PRECISION)

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN = [
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Counter, key and output of the test vectors that the generator's authors publish."""


@each(("counter", "key", "output"), KNOWN)
def test_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], output: tuple[int, ...]
) -> None:
    assert scalar_philox(counter, key) == output
    columns = np.tile(np.asarray(counter, np.uint64)[:, None], (1, 3))
    got = philox.philox4x32(columns, key)
    assert got.dtype == np.uint32
    assert [tuple(int(w) for w in column) for column in got.T] == [output] * 3


def test_counters_carry_into_the_second_word() -> None:
    got = philox.counters(2**32 - 1, 2**32 + 1, 5, 6)
    assert got.tolist() == [[2**32 - 1, 0], [0, 1], [5, 5], [6, 6]]


SEEDS = [
    (0, 0, 0),
    (1, 0, 0),
    (2**32, 0, 0),
    (2**64 - 1, 2**32 - 1, 2**32 - 1),
    (0x299F31D0A4093822, 7, 0),
    (0x299F31D0A4093822, 0, 7),
]


@each(("seed", "stream", "execution"), SEEDS)
def test_words_follow_the_scalar_definition(seed: int, stream: int, execution: int) -> None:
    got = philox.words(seed, stream, execution, 11)
    assert got.tolist() == [scalar_word(seed, stream, execution, i) for i in range(11)]


def test_words_at_places_follow_the_scalar_definition() -> None:
    seeds, streams, executions = (
        np.array(column, np.uint64) for column in zip(*SEEDS, strict=True)
    )
    places = np.arange(11)[:, None] * 3
    got = philox.words_at(places, seeds, streams | executions << np.uint64(32))
    wanted = [[scalar_word(*state, place) for state in SEEDS] for place in range(0, 33, 3)]
    assert got.tolist() == wanted


def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = philox.words(3, 1, 4, 50)
    monkeypatch.setattr(philox, "_CHUNK", 3)
    assert bits(philox.words(3, 1, 4, 50)) == bits(whole)


@each("dtype", DTYPES)
@each(("seed", "stream", "execution"), SEEDS)
@each("shape", [(), (9,), (3, 5), (2, 0)])
def test_uniform_bits(
    dtype: DType, seed: int, stream: int, execution: int, shape: tuple[int, ...]
) -> None:
    count = math.prod(shape)
    values = [scalar_uniform(seed, stream, execution, i, dtype) for i in range(count)]
    want = np.asarray(values, np.float64).astype(dtype.numpy).reshape(shape)
    assert (want.astype(np.float64).reshape(-1) == values).all()
    out = apply(RngUniform(shape, dtype, stream), seed=seed, execution=execution)
    assert bits(out) == bits(np.asarray(want))
    flat = philox.uniform_values(seed, stream, execution, count, dtype)
    assert bits(flat) == bits(np.asarray(want))


def test_first_uniforms_of_seed_zero() -> None:
    """Seed, stream and execution 0 are the first published vector, so these can be read off."""
    want = np.asarray([0x6627E8, 0xE169C5, 0xBC57AC, 0x9B00DB], np.float64) / 2**24
    assert apply(RngUniform((4,), F32)).tolist() == want.tolist()
    double = [0x6627E8D5E169C58D >> 11, 0xBC57AC4C9B00DBD8 >> 11]
    assert apply(RngUniform((2,), F64)).tolist() == [v / 2**53 for v in double]


@each("dtype", DTYPES)
@each(("seed", "stream", "execution"), SEEDS)
@each("shape", [(), (9,), (3, 4), (0, 2)])
def test_normal_values(
    dtype: DType, seed: int, stream: int, execution: int, shape: tuple[int, ...]
) -> None:
    count = math.prod(shape)
    values = [scalar_normal(seed, stream, execution, i, dtype) for i in range(count)]
    exact = np.asarray(values, np.float64).reshape(shape)
    out = apply(RngNormal(shape, dtype, stream), seed=seed, execution=execution)
    assert_ulp(out, exact, 4.0 if dtype is F64 else 0.51)
    assert bits(philox.normal_values(seed, stream, execution, count, dtype)) == bits(out)


def draws(dtype: DType) -> tuple[Array, Array]:
    uniform = apply(RngUniform((1 << 16,), dtype), seed=5).astype(np.float64)
    return uniform, apply(RngNormal((1 << 16,), dtype), seed=5).astype(np.float64)


@each("dtype", DTYPES)
def test_distributions(dtype: DType) -> None:
    uniform, normal = draws(dtype)
    assert uniform.min() >= 0.0
    assert uniform.max() < 1.0
    counts = np.bincount((uniform * 16).astype(int), minlength=16)
    assert np.abs(counts - 4096).max() < 5 * math.sqrt(4096)
    assert np.isfinite(normal).all()
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1.0) < 0.02
    assert abs(np.corrcoef(normal[::2], normal[1::2])[0, 1]) < 0.03


def test_a_uniform_of_zero_gives_a_normal_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "words", lambda *args: np.zeros(args[3], np.uint32))
    assert bits(philox.normal_values(0, 0, 0, 2, F32)) == bits(np.zeros(2, np.float32))
    monkeypatch.setattr(philox, "words", lambda *args: np.full(args[3], 2**32 - 1, np.uint32))
    assert np.isfinite(philox.normal_values(0, 0, 0, 4, F64)).all()


def test_the_stream_asks_how_often_it_was_drawn() -> None:
    asked: list[int] = []

    def execution(stream: int) -> int:
        asked.append(stream)
        return 2

    output = TensorType(F32, (3,))
    out = RngUniform((3,), F32, 9).evaluate(EvalContext(output, 4, execution))
    assert asked == [9]
    assert bits(out) == bits(philox.uniform_values(4, 9, 2, 3, F32))
    RngNormal((3,), F32).evaluate(EvalContext(output, 4, execution))
    assert asked == [9, 0]


def test_the_stream_is_not_part_of_the_wire_form() -> None:
    assert list(RngUniform.schema()) == ["shape", "dtype"]
    assert list(RngNormal.schema()) == ["shape", "dtype"]
    assert RngUniform.random
    assert RngNormal.random


def test_symbols_in_the_shape_are_replaced() -> None:
    op = RngUniform((Symbol("B"), 2), F32, 3)
    fixed = op.with_dims(lambda dim: 4 if isinstance(dim, Symbol) else dim)
    assert fixed == RngUniform((4, 2), F32, 3)


@each("dtype", DTYPES)
@each("kind", ["uniform", "normal"])
def test_a_stream_is_what_its_state_makes(dtype: DType, kind: str) -> None:
    """The same numbers, whether an op draws them or a state is taken in its place."""
    b = Builder()
    drawn = b.emit(f"rng_{kind}", shape=[7, 3], dtype=dtype, stream=4)
    states = [b.emit("rng_state", stream=4) for _ in range(2)]
    made = [b.emit(f"philox_{kind}", state, shape=[7, 3], dtype=dtype) for state in states]
    seed = 2**64 - 3
    found = weft.run(b.build(states[0], drawn, *made, made[0]), [], seed=seed)
    assert found[0].tolist() == [-3, 4 | 1 << 32]
    distribution = {"uniform": philox.uniform_values, "normal": philox.normal_values}[kind]
    for execution, array in zip((0, 1, 2, 1), found[1:], strict=True):
        wanted = distribution(seed, 4, execution, 21, dtype).reshape(7, 3)
        np.testing.assert_array_equal(array, wanted)
