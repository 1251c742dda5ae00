"""`weft.save` and `weft.load`: every dtype comes back, other programs can read the file, and bad
files get a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import weft
from tests.support.cases import each
from tests.support.one_op import random_array
from weft import nn
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import UserError

NAMES = [
    "i1", "si8", "ui8", "si16", "ui16", "si32", "ui32", "si64", "ui64", "fp8_e4m3", "fp8_e5m2",
    "bf16", "f16", "f32", "f64", "cf32",
]  # fmt: skip


@each("name", NAMES)
@each("shape", [(), (3, 2), (0, 4)])
def test_every_dtype_comes_back(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = random_array(BY_NAME[name], shape)
    weft.save(tmp_path / "x.safetensors", {"x": weft.asarray(array)})
    found = weft.load(tmp_path / "x.safetensors")["x"]
    assert found.dtype.name == name
    assert found.shape == shape
    assert found.numpy().tobytes() == array.tobytes()


def test_another_reader_sees_the_same(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    file = tmp_path / "model.safetensors"
    weft.save(file, model, metadata={"step": "7"})
    found = load_file(file)
    assert sorted(found) == sorted(model.state_dict())
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(found[name], tensor.numpy())
    size = int.from_bytes(file.read_bytes()[:8], "little")
    assert json.loads(file.read_bytes()[8 : 8 + size])["__metadata__"] == {"step": "7"}
    assert weft.load_metadata(file) == {"step": "7"}
    weft.save(file, model)
    assert weft.load_metadata(file) == {}


def test_a_model_goes_on_where_it_was(tmp_path: Path) -> None:
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    weft.save(tmp_path / "model", first)
    again = second.with_state(weft.load(tmp_path / "model"))
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(again(weft.asarray(x)).numpy(), first(weft.asarray(x)).numpy())


def test_what_was_loaded_can_be_donated_twice(tmp_path: Path) -> None:
    """Its memory belongs to nobody else, and the file is read once."""
    weft.save(tmp_path / "x", {"x": weft.asarray(np.ones(4, np.float32))})
    step = weft.jit(lambda x: x + 1.0, donate="x")
    x = weft.load(tmp_path / "x")["x"]
    np.testing.assert_array_equal(step(step(x)).numpy(), np.full(4, 3.0))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.safetensors"
    weft.save(file, {"x": weft.asarray(1.0)})

    def interrupted(self: Path, target: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        weft.save(file, {"x": weft.asarray(2.0)})
    assert float(weft.load(file)["x"]) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


BROKEN = {
    "empty": b"",
    "short": b"\x08\x00\x00",
    "no header": (8).to_bytes(8, "little") + b"nonsense",
    "huge header": (2**62).to_bytes(8, "little") + b"{}",
    "out of bounds": (64).to_bytes(8, "little")
    + b'{"x":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'.ljust(64),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=r"\[load\] .*x is not a safetensors file"):
        weft.load(tmp_path / "x")


def test_other_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[load\] cannot read .*: No such file"):
        weft.load(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"\[save\] cannot write .*: No such file"):
        weft.save(tmp_path / "no" / "folder", {"x": weft.asarray(1.0)})
    odd: Any = [1, 2]
    with pytest.raises(UserError, match=r"\[save\] a.1 is a set; tensors, arrays, numbers, texts"):
        weft.save(tmp_path / "x", {"a": [1, {2}]})
    with pytest.raises(UserError, match=r"\[save\] a has the key 1.5; texts and whole numbers"):
        weft.save(tmp_path / "x", {"a": {1.5: 1}})
    with pytest.raises(UserError, match=r"\[save\] shard_bytes is 0; it must be a number of byt"):
        weft.save(tmp_path / "x", {"a": 1}, shard_bytes=0)
    with pytest.raises(UserError, match=r"\[save\] metadata maps texts to texts, but has 'a': \["):
        weft.save(tmp_path / "x", {"x": weft.asarray(1.0)}, metadata={"a": odd})


def test_metadata_of_what_is_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"")
    (tmp_path / "wrong").write_bytes(b"no safetensors file, but long enough")
    for name, message in (
        ("missing", r"\[load_metadata\] cannot read .*missing: No such file or directory"),
        (".", r"\[load_metadata\] .* is a folder without a file of weights"),
        ("short", r"short is not a safetensors file"),
        ("wrong", r"wrong is not a safetensors file"),
    ):
        with pytest.raises(UserError, match=message):
            weft.load_metadata(tmp_path / name)
