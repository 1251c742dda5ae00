"""Containers in files: they come back as they were, from one file or from shards, and a file of a
stranger gets a sentence."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save

import weft
from tests.support.cases import each
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import UserError
from weft.ops.pytree import flatten


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    """A user's own container."""

    values: Any
    name: str


def same(found: Any, wanted: Any) -> None:
    """The same structure, and every leaf of the same type and bits."""
    (leaves, shape), (others, other) = flatten(found), flatten(wanted)
    assert shape == other
    for one, two in zip(leaves, others, strict=True):
        if isinstance(two, weft.Tensor):
            assert one.type == two.type
            assert one.numpy().tobytes() == two.numpy().tobytes()
        else:
            assert type(one) is type(two)
            assert repr(one) == repr(two)


def tensor(*shape: int) -> Any:
    return weft.asarray(np.arange(math.prod(shape), dtype=np.float32).reshape(shape))


PLAIN: Any = {
    "step": 7,
    "losses": [0.1, 1e-300, float("inf"), -0.0],
    "name": "a text with 'quotes' and ü",
    "nothing": None,
    "flags": (True, False, ()),
    "deep": {"a": [{"b": tensor(2, 3)}], 3: tensor(1), "a.0": {"b": tensor(4)}},
    "empty": {},
    "__metadata__": tensor(2),
    "wide": weft.asarray(np.ones(2, np.complex128)),
}


def test_dicts_keep_their_order(tmp_path: Path) -> None:
    saved = {"b": weft.asarray([1.0]), "a": {"z": 1, "y": 2}}
    weft.save(tmp_path / "x", saved)
    found = weft.load(tmp_path / "x")
    assert (list(found), list(found["a"])) == (["b", "a"], ["z", "y"])
    like = {"a": {"y": 0, "z": 0}, "b": weft.asarray([0.0])}
    found = weft.load(tmp_path / "x", like=like)
    assert (list(found), found["a"], float(found["b"][0])) == (["a", "b"], {"y": 2, "z": 1}, 1.0)


@pytest.mark.parametrize("options", [{}, {"shard_bytes": 1}, {"shard_bytes": 10_000}])
def test_a_container_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    weft.save(tmp_path / "x", PLAIN, metadata={"note": "mine"}, **options)
    same(weft.load(tmp_path / "x"), PLAIN)
    same(weft.load(tmp_path / "x", like=PLAIN), PLAIN)
    assert weft.load_metadata(tmp_path / "x") == {"note": "mine"}


def test_objects_are_dicts_unless_one_like_them_is_given(tmp_path: Path) -> None:
    tree = {
        "model": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3)),
        "pair": Pair(tensor(2), Record([tensor(1)], "x")),
        "order": OrderedDict([("b", 1), ("a", tensor(2))]),
    }
    weft.save(tmp_path / "x", tree)
    loose = weft.load(tmp_path / "x")
    assert set(loose["model"]) == set(tree["model"].state_dict())  # type: ignore[attr-defined]
    same(tree["model"].with_state(loose["model"]), tree["model"])  # type: ignore[attr-defined]
    assert loose["pair"]["second.name"] == "x"
    assert list(loose["order"]) == ["b", "a"]
    fresh = {
        "model": nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3)),
        "pair": Pair(tensor(2) + 1, Record([tensor(1) + 1], "y")),
        "order": OrderedDict([("b", 2), ("a", tensor(2) + 1)]),
    }
    same(weft.load(tmp_path / "x", like=fresh), tree)


def test_a_name_that_the_format_keeps_for_itself(tmp_path: Path) -> None:
    weft.save(tmp_path / "x", {"__metadata__": tensor(3)})
    same(weft.load(tmp_path / "x"), {"__metadata__": tensor(3)})


def test_a_lone_tensor_and_arrays(tmp_path: Path) -> None:
    weft.save(tmp_path / "x", tensor(3))
    same(weft.load(tmp_path / "x"), tensor(3))
    weft.save(tmp_path / "x", [np.arange(3), np.float32(2.5)])
    rows, number = weft.load(tmp_path / "x")
    np.testing.assert_array_equal(rows.numpy(), np.arange(3))
    assert float(number) == 2.5
    found = weft.load(tmp_path / "x", like=[np.zeros(3, np.int64), np.float32(0)])
    assert isinstance(found[0], np.ndarray)


def test_a_module_is_loaded_into_one_like_it(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    weft.save(tmp_path / "x", model)
    same(weft.load(tmp_path / "x", like=nn.Linear(2, 3)), model)
    with pytest.raises(UserError, match="the file holds tensors by name"):
        weft.load(tmp_path / "x", like=[1])


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": 1}, r"the whole is a dict with a, b in .*, and a dict with a in what is wanted"),
        ({"a": 1, "b": [1]}, r"b is a list of 2 in .*, and a list of 1 in what is wanted"),
        ({"a": 1, "b": [1, 2]}, r"b.1 is a tensor in .*, and a number or text in what is"),
        ({"a": None, "b": [1, tensor(2)]}, r"a is a number or text in .*, and None in what"),
        ({"a": 1, "b": [1, tensor(3)]}, r"b.1 is f32\[2\] in .*, not f32\[3\]"),
        (nn.Linear(1, 1), r"and Linear with weight, bias in what is wanted"),
    ],
)
def test_another_structure_is_told(like: Any, message: str, tmp_path: Path) -> None:
    weft.save(tmp_path / "x", {"a": 1, "b": [2, tensor(2)]})
    with pytest.raises(UserError, match=message):
        weft.load(tmp_path / "x", like=like)


# -- shards --------------------------------------------------------------------------------------


def test_shards_are_as_others_write_them(tmp_path: Path) -> None:
    state = {f"layer.{n}": tensor(4, 4) + n for n in range(5)}
    file = tmp_path / "model.safetensors"
    weft.save(file, state, shard_bytes=150)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 5 * 64}
    assert len(set(index["weight_map"].values())) == 3
    for name, shard in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(tmp_path / shard)[name], state[name].numpy())
    same(weft.load(file), state)
    same(weft.load(tmp_path / "model.safetensors.index.json"), state)


KINDS: list[dict[str, Any]] = [{}, {"shard_bytes": 1}, {"shard_bytes": 1}, {}]


def test_the_last_save_is_the_one_that_is_loaded(tmp_path: Path) -> None:
    """Whatever kind the one before was; nothing of that stays."""
    file = tmp_path / "x"
    for number, options in enumerate(KINDS):
        weft.save(file, {"a": tensor(2), "b": tensor(2), "n": number}, **options)
        assert weft.load(file)["n"] == number
        assert len(list(tmp_path.iterdir())) == (3 if options else 1)


@pytest.mark.parametrize("broken", range(4))
def test_an_interrupted_save_leaves_what_was_there(
    broken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x"
    weft.save(file, {"a": tensor(2), "b": tensor(2)}, shard_bytes=1)
    moves, move = [0], Path.replace

    def interrupted(self: Path, target: Any) -> Any:
        moves[0] += 1
        if moves[0] > broken:
            raise KeyboardInterrupt
        return move(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    after = {"a": tensor(2) + 1, "b": tensor(2) + 1}
    try:
        weft.save(file, after, shard_bytes=1)
    except KeyboardInterrupt:
        assert broken < 3  # two shards and the index
    monkeypatch.undo()
    same(weft.load(file), after if broken == 3 else {"a": tensor(2), "b": tensor(2)})


# -- files of strangers --------------------------------------------------------------------------


def written(folder: Path, structure: Any) -> Path:
    """A file with this structure in its metadata."""
    text = structure if isinstance(structure, str) else json.dumps(structure)
    file = folder / "x"
    file.write_bytes(save({"t": np.ones(2, np.float32)}, {"weft.tree": text}))
    return file


DEEP: Any = {"value": 1}
for _ in range(300):
    DEEP = {"list": 1, "of": [DEEP]}
HOSTILE: dict[str, Any] = {
    "no JSON": "{",
    "very deep JSON": "[" * 100_000,
    "deep": DEEP,
    "a number": 3,
    "a list": [],
    "an unknown kind": {"code": "import os"},
    "a pickled class": {"object": ["os", "system"], "names": [], "of": []},
    "too few names": {"dict": ["a"], "of": []},
    "a name twice": {"dict": ["a", "a"], "of": [{"value": 1}, {"value": 2}]},
    "a list as a name": {"dict": [["a"]], "of": [{"value": 1}]},
    "a wrong count": {"list": 2, "of": [{"value": 1}]},
    "a boolean count": {"tuple": True, "of": [{"value": 1}]},
    "parts that are none": {"list": 1, "of": "x"},
    "a part that is none": {"list": 1, "of": ["x"]},
    "a tensor that is not there": {"tensor": "u"},
    "no number": {"float": "x"},
    "a nested value": {"value": [1]},
    "a large number": '{"value": ' + "9" * 100_000 + "}",
}


@each("structure", HOSTILE.values())
@each("like", [None, {"a": 1}])
def test_a_strange_structure_is_told(structure: Any, like: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[load\]"):
        weft.load(written(tmp_path, structure), like=like)


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": []}',
        '{"weight_map": {"a": "../x"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "missing.safetensors"}}',
        '{"weight_map": {"a": "x-1.safetensors"}}',
        '{"weight_map": {"t": "x-1.safetensors"}, "metadata": 3}',
        '{"weight_map": {"t": "x-1.safetensors"}, "metadata": {"weft.type.t": "[1]"}}',
    ],
)
def test_a_strange_index_is_told(index: str, tmp_path: Path) -> None:
    (tmp_path / "x-1.safetensors").write_bytes(save({"t": np.ones(2, np.float32)}))
    (tmp_path / "x.index.json").write_text(index)
    with pytest.raises(UserError, match=r"\[load\]"):
        weft.load(tmp_path / "x")


# -- a run that is resumed -----------------------------------------------------------------------

IMAGES = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)
LABELS = (IMAGES.sum(1) > 0).astype(np.int32)


def fresh() -> tuple[Any, Any, Any]:
    """A model with state and randomness, an optimiser with averages, and a step."""
    nn.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm(8), F.relu, nn.Dropout(0.3), nn.Linear(8, 2)
    )
    optimiser = optim.chain(
        optim.clip(norm=1.0), optim.AdamW(optim.warmup_cosine(0.1, 20, 3)), optim.average(0.9)
    )

    def step(run: Any, x: Any, y: Any) -> Any:
        key = weft.random.fold_in(run["key"], run["step"])
        with nn.training(key):
            loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(run["model"])
        model, state = optimiser.update(slopes, run["state"], run["model"])
        return {"model": model, "state": state, "key": run["key"], "step": run["step"] + 1}, loss

    run = {
        "model": model,
        "state": optimiser.init(model),
        "key": weft.random.key(5),
        "step": weft.asarray(np.int32(0)),
    }
    return run, weft.jit(step, donate="run"), optimiser


def train(run: Any, step: Any, first: int, last: int) -> tuple[Any, list[float]]:
    losses = []
    source = weft.data.batches(
        (IMAGES, LABELS), 8, key=weft.random.key(1), epochs=None, start=first
    )
    with weft.data.prefetch(source) as batches:
        for _ in range(first, last):
            run, loss = step(run, *next(batches))
            losses.append(float(loss))
    return run, losses


@pytest.mark.parametrize("options", [{}, {"shard_bytes": 100}])
def test_a_resumed_run_is_the_run_that_went_on(options: dict[str, Any], tmp_path: Path) -> None:
    """Bit for bit: parameters, statistics, averages, and every loss."""
    run, step, _ = fresh()
    half, losses = train(run, step, 0, 5)
    weft.save(tmp_path / "run", half, **options)
    whole, rest = train(half, step, 5, 12)
    again, step, _ = fresh()
    resumed, found = train(weft.load(tmp_path / "run", like=again), step, 5, 12)
    assert found == rest
    same(resumed, whole)
    assert losses[0] > rest[-1]
