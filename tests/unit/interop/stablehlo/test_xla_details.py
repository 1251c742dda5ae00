"""What XLA does where StableHLO's text leaves it open: random bits, orders of NaN, large shifts,
numbers of partitions. The random words were written down from jax.lax.rng_bit_generator."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.interop import stablehlo

FAR = 0xFEDCBA9876543210
WORDS = {
    ("PHILOX", (1, 2), "5xui32"): (
        [2100602697, 2847456232, 2074354647, 800269529, 1828267006],
        [1, 4],
    ),
    ("PHILOX", (1, 2), "3x2xui32"): (
        [2100602697, 2847456232, 2074354647, 800269529, 1828267006, 3135207875],
        [1, 4],
    ),
    ("PHILOX", (1, 2), "3xui64"): (
        [12229731395331991369, 3437131457114678231, 13465615291114923006],
        [1, 4],
    ),
    ("PHILOX", (1, 2), "3x3xui8"): ([73, 232, 215, 217, 254, 195, 215, 76, 99], [1, 5]),
    ("PHILOX", (FAR, (1 << 64) - 1), "5xui32"): (
        [1255621808, 366553483, 610783278, 3130296365, 2823062625],
        [18364758544493064720, 1],
    ),
    ("PHILOX", (FAR, (1 << 64) - 1), "3x2xui32"): (
        [1255621808, 366553483, 610783278, 3130296365, 2823062625, 1434603854],
        [18364758544493064720, 1],
    ),
    ("PHILOX", (FAR, (1 << 64) - 1), "3xui64"): (
        [1574335222975513776, 13444520515073462318, 6161576638468621409],
        [18364758544493064720, 1],
    ),
    ("PHILOX", (FAR, (1 << 64) - 1), "3x3xui8"): (
        [176, 139, 46, 45, 97, 78, 38, 251, 22],
        [18364758544493064720, 2],
    ),
    ("DEFAULT", (1, 2), "5xui32"): (
        [2100602697, 2847456232, 2074354647, 800269529, 1828267006],
        [1, 4],
    ),
    ("DEFAULT", (1, 2), "3x2xui32"): (
        [2100602697, 2847456232, 2074354647, 800269529, 1828267006, 3135207875],
        [1, 4],
    ),
    ("DEFAULT", (1, 2), "3xui64"): (
        [12229731395331991369, 3437131457114678231, 13465615291114923006],
        [1, 4],
    ),
    ("DEFAULT", (1, 2), "3x3xui8"): ([73, 232, 215, 217, 254, 195, 215, 76, 99], [1, 5]),
    ("DEFAULT", (FAR, (1 << 64) - 1), "5xui32"): (
        [1255621808, 366553483, 610783278, 3130296365, 2823062625],
        [18364758544493064720, 1],
    ),
    ("DEFAULT", (FAR, (1 << 64) - 1), "3x2xui32"): (
        [1255621808, 366553483, 610783278, 3130296365, 2823062625, 1434603854],
        [18364758544493064720, 1],
    ),
    ("DEFAULT", (FAR, (1 << 64) - 1), "3xui64"): (
        [1574335222975513776, 13444520515073462318, 6161576638468621409],
        [18364758544493064720, 1],
    ),
    ("DEFAULT", (FAR, (1 << 64) - 1), "3x3xui8"): (
        [176, 139, 46, 45, 97, 78, 38, 251, 22],
        [18364758544493064720, 2],
    ),
    ("THREE_FRY", (1, 2), "5xui32"): (
        [43444564, 2150618427, 3979645651, 3745730563, 1672743891],
        [1, 5],
    ),
    ("THREE_FRY", (1, 2), "3x2xui32"): (
        [43444564, 2150618427, 3979645651, 3745730563, 1672743891, 4240503393],
        [1, 5],
    ),
    ("THREE_FRY", (1, 2), "3xui64"): (
        [9236835810183407956, 16087790271692313299, 18212823393184779219],
        [1, 5],
    ),
    ("THREE_FRY", (1, 2), "3x3xui8"): ([84, 211, 211, 59, 3, 97, 96, 173, 23], [1, 8]),
    ("THREE_FRY", (FAR, (1 << 64) - 1), "5xui32"): (
        [1423963181, 577319480, 647836383, 608998394, 2744317137],
        [18364758544493064720, 2],
    ),
    ("THREE_FRY", (FAR, (1 << 64) - 1), "3x2xui32"): (
        [1423963181, 577319480, 647836383, 608998394, 2744317137, 2084375472],
        [18364758544493064720, 2],
    ),
    ("THREE_FRY", (FAR, (1 << 64) - 1), "3xui64"): (
        [2479568287367689261, 2615628186194359007, 8952324487568880849],
        [18364758544493064720, 2],
    ),
    ("THREE_FRY", (FAR, (1 << 64) - 1), "3x3xui8"): (
        [45, 223, 209, 56, 250, 176, 10, 83, 232],
        [18364758544493064720, 5],
    ),
}
"""By algorithm, state and type: the bits, flat, and the state afterwards."""


@pytest.mark.parametrize("algorithm", ["PHILOX", "DEFAULT", "THREE_FRY"])
@pytest.mark.parametrize("backend", one_in(2, ["reference", "cpu"]))
def test_random_bits_are_those_of_xla(algorithm: str, backend: str) -> None:
    for (name, state, kind), (words, after) in WORDS.items():
        if name != algorithm:
            continue
        held = f"tensor<{len(state)}xui64>"
        text = (
            f"func.func @main(%s: {held}) -> ({held}, tensor<{kind}>) {{\n"
            f"%0, %1 = stablehlo.rng_bit_generator %s, algorithm = {algorithm} "
            f": ({held}) -> ({held}, tensor<{kind}>)\nreturn %0, %1 : {held}, tensor<{kind}> }}"
        )
        found = weft.run(stablehlo.loads(text), [np.array(state, np.uint64)], backend=backend)
        assert found[0].tolist() == list(after)
        assert found[1].ravel().tolist() == list(words)


def test_a_counter_of_128_bits_carries() -> None:
    """The third word of a state goes on where the second one ends."""
    kind = "tensor<3xui64>"
    text = (
        f"func.func @main(%s: {kind}) -> ({kind}, tensor<9xui32>) {{\n"
        f"%0, %1 = stablehlo.rng_bit_generator %s, algorithm = PHILOX "
        f": ({kind}) -> ({kind}, tensor<9xui32>)\nreturn %0, %1 : {kind}, tensor<9xui32> }}"
    )
    program = stablehlo.loads(text)
    last = (1 << 64) - 1
    (after, bits) = weft.run(program, [np.array([5, last, 7], np.uint64)], backend="reference")
    (_, next_bits) = weft.run(program, [np.array([5, 0, 8], np.uint64)], backend="reference")
    assert after.tolist() == [5, 2, 8]
    assert bits[4:8].tolist() == next_bits[:4].tolist()


def test_keys_of_jax_draw_the_same_numbers() -> None:
    """jax.random.bits(jax.random.key(3, impl="rbg"), (5,)), as jax 0.10 lowers and runs it."""
    text = """func.func @main() -> tensor<5xui32> {
      %key = stablehlo.constant dense<[12884901888, 12884901888]> : tensor<2xui64>
      %0, %1 = stablehlo.rng_bit_generator %key, algorithm = DEFAULT
        : (tensor<2xui64>) -> (tensor<2xui64>, tensor<5xui32>)
      return %1 : tensor<5xui32> }"""
    (found,) = weft.run(stablehlo.loads(text), [], backend="reference")
    assert found.tolist() == [3146934739, 3391003311, 1891301882, 1478358120, 965525736]


def test_an_unsigned_number_is_shifted_by_more_than_it_has_bits() -> None:
    for width, shift in ((8, 200), (16, 65535), (32, 1 << 31), (64, 1 << 63)):
        kind = f"tensor<2xui{width}>"
        for name, filled in (("arithmetic", (1 << width) - 1), ("logical", 0)):
            text = (
                f"func.func @main(%x: {kind}, %y: {kind}) -> {kind} {{\n"
                f"%0 = stablehlo.shift_right_{name} %x, %y : {kind}\nreturn %0 : {kind} }}"
            )
            dtype = np.dtype(f"u{width // 8}")
            x = np.array([1 << (width - 1), 1], dtype)
            amount = np.array([shift, shift], dtype)
            for backend in ("reference", "cpu"):
                (found,) = weft.run(stablehlo.loads(text), [x, amount], backend=backend)
                assert found.tolist() == [filled, 0]


def test_the_largest_are_found_in_total_order() -> None:
    text = """func.func @main(%x: tensor<6xf32>) -> (tensor<6xf32>, tensor<6xi32>) {
      %0, %1 = chlo.top_k(%x, k = 6) : tensor<6xf32> -> (tensor<6xf32>, tensor<6xi32>)
      return %0, %1 : tensor<6xf32>, tensor<6xi32> }"""
    negative = np.copysign(np.float32(np.nan), np.float32(-1))
    x = np.array([negative, 1, -0.0, 0.0, np.nan, -np.inf], np.float32)
    for backend in ("reference", "cpu"):
        values, places = weft.run(stablehlo.loads(text), [x], backend=backend)
        assert places.tolist() == [4, 1, 3, 2, 5, 0]
        assert values.tobytes() == x[places].tobytes()


def test_a_window_larger_than_its_image_has_no_place() -> None:
    image, kernel, result = "tensor<1x1x2x2xf32>", "tensor<1x1x3x3xf32>", "tensor<1x1x0x0xf32>"
    text = f"""module {{ func.func @main(%x: {image}, %k: {kernel}) -> {result} {{
      %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
        window = {{stride = [1, 1]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({image}, {kernel}) -> {result}
      return %0 : {result} }} }}"""
    inputs = [np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 3, 3), np.float32)]
    for backend in ("reference", "cpu"):
        (found,) = weft.run(stablehlo.loads(text), inputs, backend=backend)
        assert found.shape == (1, 1, 0, 0)
