"""Files of weights are mapped, found in folders and in shards, and nothing outside is read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support import gguf_files
from weft.foundation.errors import UserError
from weft.interop.weights.safetensors import read_safetensors

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def saved(folder: Path, shard_bytes: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {"a": weft.asarray(X), "b": weft.asarray(X + 1)}
    weft.save(folder / "model.safetensors", tensors, shard_bytes=shard_bytes)
    return folder


def test_a_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    """Elements are those of the file itself: written through another handle, they change."""
    path = saved(tmp_path) / "model.safetensors"
    arrays, _ = read_safetensors(path)
    assert not arrays["a"].flags.writeable
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(np.float32(99).tobytes())
    assert arrays["b"][-1, -1] == 99


@pytest.mark.parametrize("shard_bytes", [None, 24])
def test_a_folder_has_one_model(shard_bytes: int | None, tmp_path: Path) -> None:
    found = weft.load(saved(tmp_path, shard_bytes))
    np.testing.assert_array_equal(found["b"].numpy(), X + 1)
    assert weft.load(tmp_path, dtype="bf16")["a"].dtype is weft.bfloat16


def test_a_folder_with_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(gguf_files.file({"a": X}))
    np.testing.assert_array_equal(weft.load(tmp_path)["a"].numpy(), X)
    (tmp_path / "n.gguf").write_bytes(gguf_files.file({"a": X}))
    why = r"has 2 files of weights \(m.gguf, n.gguf\); name one of them"
    with pytest.raises(UserError, match=why):
        weft.load(tmp_path)


def test_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[load\] .* is a folder without a file of weights"):
        weft.load(tmp_path)


def test_floats_are_cast_and_other_dtypes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weft.save(path, {"x": weft.asarray(X), "n": weft.asarray(np.arange(3))})
    found = weft.load(path, dtype=weft.float16)
    assert (found["x"].dtype, found["n"].dtype) == (weft.float16, weft.int64)
    with pytest.raises(UserError, match=r"\[load\] dtype is si32; floats are cast to it, so it"):
        weft.load(path, dtype=weft.int32)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.safetensors"])
def test_pickles_are_refused_with_the_way_to_convert_them(name: str, tmp_path: Path) -> None:
    for content in (b"PK\x03\x04" + bytes(60), pickle.dumps({"a": 1})):
        (tmp_path / name).write_bytes(content)
        for path in (tmp_path / name, tmp_path):
            with pytest.raises(UserError, match=r"is a pickle, .* reads none. Convert .*save_file"):
                weft.load(path)


def test_arrays_of_numpy_are_no_pickles_and_the_way_to_convert_them_works(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", a=X)
    np.save(tmp_path / "one.npy", X)
    for name in ("many.npz", "one.npy"):
        told = r"holds arrays of NumPy.*numpy\.load\('.*'\), then weft\.save\('.*\.safetensors', "
        with pytest.raises(UserError, match=told):
            weft.load(tmp_path / name)
    weft.save(tmp_path / "many.safetensors", dict(np.load(tmp_path / "many.npz")))
    np.testing.assert_array_equal(weft.load(tmp_path / "many.safetensors")["a"].numpy(), X)


def test_an_index_through_links_into_one_folder_is_read(tmp_path: Path) -> None:
    """As in the caches of hubs: a folder of links into a folder of files."""
    blobs = saved(tmp_path / "blobs", 24)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    np.testing.assert_array_equal(weft.load(snapshot)["a"].numpy(), X)


def test_a_shard_that_links_elsewhere_is_refused(tmp_path: Path) -> None:
    inside = saved(tmp_path / "inside", 24)
    (tmp_path / "outside").mkdir()
    shard = next(inside.glob("*-of-*.safetensors"))
    shard.rename(tmp_path / "outside" / shard.name)
    shard.symlink_to(tmp_path / "outside" / shard.name)
    with pytest.raises(UserError, match="a link that leads out of its folder"):
        weft.load(inside)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/passwd", "a/b", ".hidden", "", "a\0b"])
def test_an_index_names_files_of_its_folder(file: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(UserError, match="is not an index of safetensors files in its folder"):
        weft.load(tmp_path)
