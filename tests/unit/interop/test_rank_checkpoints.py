"""Checkpoints of meshes: saved on some ranks, loaded on any number of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.interop import checkpoints

WHOLE = np.arange(48, dtype=np.float32).reshape(6, 8)


def _tree(mesh: weft.Mesh, split: Any, whole: Any = WHOLE) -> dict[str, Any]:
    return {
        "w": weft.shard(whole, mesh, split),
        "b": weft.asarray([1.0, 2.0]),
        "scalar": weft.asarray(2.0),
        "step": 3,
        "narrow": weft.shard(weft.asarray(whole.T, dtype="bf16"), mesh, {0: "data"}),
    }


@pytest.mark.parametrize("count", [1, 2, 4])
def test_saved_on_some_ranks_and_loaded_on_others(tmp_path: Path, count: int) -> None:
    four = weft.mesh(data=2, model=2, simulated=True)
    path = tmp_path / "step.safetensors"
    weft.save(path, _tree(four, {0: "data", 1: "model"}), mesh=four)
    assert len(list(tmp_path.glob("step-*-of-00004.safetensors"))) == 4
    mesh = weft.mesh(data=count, simulated=True)
    found = weft.load(path, _tree(mesh, {1: "data"}, 0 * WHOLE))
    assert found["w"].mesh == mesh
    assert np.array_equal(found["w"].numpy(), WHOLE)
    assert np.array_equal(found["narrow"].numpy().astype(np.float32), WHOLE.T)
    assert found["step"] == 3
    plain = weft.load(path)
    assert np.array_equal(plain["w"].numpy(), WHOLE)
    assert plain["b"].tolist() == [1.0, 2.0]
    assert plain["scalar"].shape == ()


def test_an_interruption_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = weft.mesh(data=2, simulated=True)
    path = tmp_path / "step.safetensors"
    weft.save(path, _tree(mesh, {0: "data"}), mesh=mesh)

    def killed(mesh: Any, why: str) -> None:
        raise KeyboardInterrupt(why)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "together", killed)
        with pytest.raises(KeyboardInterrupt, match="all files are written"):
            weft.save(path, _tree(mesh, {0: "data"}, -WHOLE), mesh=mesh)
    assert np.array_equal(weft.load(path)["w"].numpy(), WHOLE)
    weft.save(path, _tree(mesh, {0: "data"}, -WHOLE), mesh=mesh)
    assert np.array_equal(weft.load(path)["w"].numpy(), -WHOLE)


def test_what_a_killed_save_left_goes_with_the_next(tmp_path: Path) -> None:
    mesh = weft.mesh(data=2, simulated=True)
    path = tmp_path / "step.safetensors"
    others = ("step-00001-of-00002.safetensors", "step2-0a1b2c3d-00001-of-00002.safetensors")
    for name in others:
        (tmp_path / name).write_bytes(b"somebody else's")
    left = "step-0a1b2c3d-00001-of-00002.safetensors"
    for name in (left, f".{left}.4711"):
        (tmp_path / name).write_bytes(b"half of it")
    weft.save(path, _tree(mesh, {0: "data"}), mesh=mesh)
    kept = {entry.name for entry in tmp_path.iterdir()}
    assert left not in kept
    assert f".{left}.4711" not in kept
    assert kept >= set(others)
    assert np.array_equal(weft.load(path)["w"].numpy(), WHOLE)


def test_split_tensors_need_a_mesh(tmp_path: Path) -> None:
    mesh = weft.mesh(data=2, simulated=True)
    with pytest.raises(weft.UserError, match="save it with mesh="):
        weft.save(tmp_path / "step.safetensors", _tree(mesh, {0: "data"}))


@pytest.mark.parametrize("note", [
    '{"shape": [6, 9], "starts": [[0, 0], [3, 0]]}',
    '{"shape": [6, 8], "starts": [[0, 0], [0, 0]]}',
    '{"shape": [6000000000, 8], "starts": [[0, 0], [3, 0]]}',
    '{"shape": [6, 8], "starts": []}',
    '{"shape": 6}',
    "[",
])  # fmt: skip
def test_parts_that_make_no_whole_are_told(tmp_path: Path, note: str) -> None:
    mesh = weft.mesh(data=2, simulated=True)
    path = tmp_path / "step.safetensors"
    weft.save(path, _tree(mesh, {0: "data"}), mesh=mesh)
    index = tmp_path / "step.safetensors.index.json"
    content = json.loads(index.read_text())
    content["metadata"]["weft.parts.w"] = note
    index.write_text(json.dumps(content))
    with pytest.raises(weft.UserError, match=r"the parts of w in .* do not make a whole"):
        weft.load(path)
