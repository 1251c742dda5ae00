"""GGUF files: every type of blocks is what the format's own package gives, facts come back, and
files that others wrote are read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support import gguf_files
from weft import nn
from weft.foundation.errors import UserError
from weft.interop.weights.gguf_blocks import BLOCKS

# Number, elements and bytes of a block, where its scales are, and the digest of 24 random blocks
# (`gguf_files.blocks`) as `gguf.quants.dequantize` of the package gguf 0.19 computes them.
KNOWN = {
    "Q4_0": (2, 32, 18, [0], "ca2dd584e0ce0b42"),
    "Q4_1": (3, 32, 20, [0, 2], "0956f1a1b536e67f"),
    "Q5_0": (6, 32, 22, [0], "e92397fdbf99581d"),
    "Q5_1": (7, 32, 24, [0, 2], "aaa2308aa04c7ca9"),
    "Q8_0": (8, 32, 34, [0], "ccf1c061fdf42b8f"),
    "Q2_K": (10, 256, 84, [80, 82], "21432db7c8bb3ab3"),
    "Q3_K": (11, 256, 110, [108], "d73fbc808867f9fb"),
    "Q4_K": (12, 256, 144, [0, 2], "d16c3c2773c78cc9"),
    "Q5_K": (13, 256, 176, [0, 2], "b50a5867e0db25a0"),
    "Q6_K": (14, 256, 210, [208], "96d6adf474deb0bc"),
    "IQ4_NL": (20, 32, 18, [0], "2fcb7d54ba8ca372"),
    "IQ4_XS": (23, 256, 136, [0], "06d8f990c83703fc"),
}


def test_every_type_of_blocks_is_known() -> None:
    assert {block.name for block in BLOCKS.values()} == KNOWN.keys()


@pytest.mark.parametrize("name", KNOWN)
def test_blocks_are_what_the_package_of_the_format_gives(name: str, tmp_path: Path) -> None:
    kind, elements, size, halves, digest = KNOWN[name]
    raw = gguf_files.blocks(size, 24, halves)
    shape = (3, 8 * elements)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"x": (kind, shape, raw.tobytes())}))
    found = weft.load(path)["x"]
    assert (found.shape, found.dtype) == (shape, weft.float32)
    assert hashlib.sha256(found.numpy().astype("<f4").tobytes()).hexdigest()[:16] == digest
    halved = weft.load(path, dtype=weft.float16)["x"].numpy()
    np.testing.assert_array_equal(halved, found.numpy().astype(np.float16))


def test_blocks_of_four_bits_by_hand(tmp_path: Path) -> None:
    """Sixteen bytes 0xF0 under the scale 0.5: low halves 0, high halves 15, both less 8."""
    raw = np.float16(0.5).tobytes() + b"\xf0" * 16
    (tmp_path / "x.gguf").write_bytes(gguf_files.file({"x": (2, (32,), raw)}))
    found = weft.load(tmp_path / "x.gguf")["x"].numpy()
    np.testing.assert_array_equal(found, [-4.0] * 16 + [3.5] * 16)


def test_plain_tensors_and_facts_come_back(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    given: dict[str, Any] = {"x": x, "h": x.astype(np.float16), "b": x.astype(ml_dtypes.bfloat16)}
    given |= {"i": x.astype(np.int32), "one": np.ones(1, np.int8)}
    facts = {"general.name": "étude", "n": 7, "on": True, "eps": 0.5, "tokens": ["a", "", "ü"]}
    for version in (2, 3):
        path = tmp_path / f"{version}.gguf"
        path.write_bytes(gguf_files.file(given, facts, version))
        found = weft.load(path)
        for name, array in given.items():
            assert found[name].numpy().dtype == array.dtype
            np.testing.assert_array_equal(found[name].numpy(), array)
        assert weft.load_metadata(path) == facts


def test_types_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"x": (19, (256,), bytes(50))}))
    with pytest.raises(UserError, match="'x' is IQ1_S, which Weft does not read"):
        weft.load(path)
    path.write_bytes(gguf_files.file({"x": (12, (128,), bytes(72))}))
    with pytest.raises(UserError, match="'x' has rows that are not whole blocks of 256"):
        weft.load(path)


# -- few bits that stay few ------------------------------------------------------------------------

FOUR_BITS = {"Q4_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K"}


@pytest.mark.parametrize("name", KNOWN)
def test_packed_weights_are_the_same_numbers(name: str, tmp_path: Path) -> None:
    kind, elements, size, halves, _ = KNOWN[name]
    raw = gguf_files.blocks(size, 6, halves)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"x": (kind, (3, 2 * elements), raw.tobytes())}))
    packed = weft.load(path, packed=True)["x"]
    assert isinstance(packed, nn.Packed)
    assert packed.shape == (3, 2 * elements)
    bits = 4 if name in FOUR_BITS else 8
    assert packed.codes.nbytes == 6 * elements * bits // 8
    assert f"{bits} bits" in repr(packed)
    whole = weft.load(path)["x"].numpy()
    np.testing.assert_array_equal(nn.unpacked(packed).numpy(), whole)
    halved = nn.unpacked(packed, "f16").numpy()
    np.testing.assert_array_equal(halved, whole.astype(np.float16))


@pytest.mark.usefixtures("default_backend")
def test_a_module_holds_packed_weights(tmp_path: Path) -> None:
    raw = gguf_files.blocks(18, 8, [0]).tobytes()
    bias = np.arange(8, dtype=np.float32)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"weight": (2, (8, 32), raw), "bias": bias}))
    layer = nn.Linear(32, 8)
    packed = weft.load(path, like=layer, packed=True)
    assert packed.weight.nbytes == 8 * (16 + 4)
    assert [x.shape for x in packed.parameters()] == [(8, 16), (8, 1), (8,)]
    x = np.ones((2, 32), np.float32)
    found = weft.jit(lambda layer, x: nn.unpacked(layer)(x))(packed, x)
    expected = weft.load(path, like=layer)(weft.asarray(x))
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    weft.save(tmp_path / "again.safetensors", packed)
    again = weft.load(tmp_path / "again.safetensors", like=packed)
    np.testing.assert_array_equal(again.weight.codes.numpy(), packed.weight.codes.numpy())


def test_packed_weights_of_another_shape_are_told(tmp_path: Path) -> None:
    raw = gguf_files.blocks(18, 8, [0]).tobytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"weight": (2, (8, 32), raw)}))
    with pytest.raises(weft.WeftError, match=r"weight is Packed\(shape=\(8, 32\), 4 bits\)"):
        weft.load(path, like=nn.Linear(32, 4, bias=False), packed=True)
    with pytest.raises(UserError, match="weights of few bits become floats, not si32"):
        nn.unpacked(weft.load(path, packed=True), "si32")


def test_plain_and_empty_tensors_are_not_packed(tmp_path: Path) -> None:
    plain = np.ones((2, 3), np.float32)
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf_files.file({"x": plain, "y": (2, (0, 32), b"")}))
    found = weft.load(path, packed=True)
    assert [found[name].shape for name in "xy"] == [(2, 3), (0, 32)]
    assert nn.unpacked(found) == found
