"""Hostile ONNX models: each works or is a clear error, in bounded time and memory; and so are
damaged ones, and data outside of a model's folder is not read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import weft
from tests.hostile import mutations
from tests.hostile.onnx_files import FILES, SLOW, doubling, looping, nested, single
from tests.hostile.worker import LIMITS, judged
from tests.support import onnx_models as m
from tests.support.cases import one_in
from weft.foundation.errors import InternalError, WeftError
from weft.interop.onnx import load

NAMES = sorted(FILES.keys() - SLOW)
STEPS = 6_000
"""Of a loop: more than the longest that ends has."""


@pytest.mark.parametrize(
    "names", [NAMES, pytest.param(sorted(SLOW), marks=pytest.mark.slow)], ids=["quick", "slow"]
)
def test_a_model_is_what_it_is_expected_to_be(names: list[str]) -> None:
    limits = {**LIMITS, "WEFT_MAX_LOOP_STEPS": str(STEPS)}
    outcomes = judged([f"onnx {name}" for name in names], limits)
    assert len(outcomes) == len(names)
    wrong = []
    for outcome, name in zip(outcomes, names, strict=True):
        wanted = FILES[name][0]
        fits = (
            outcome.verdict not in ("ok", "CRASH") if wanted == "*" else outcome.verdict == wanted
        )
        if not fits:
            wrong.append(f"{name}: {outcome.verdict}, expected {wanted}\n{outcome.crash}")
    assert not wrong, "\n".join(wrong)


def test_there_are_a_hundred_of_them() -> None:
    assert len(NAMES) >= 100


# -- data in other files ---------------------------------------------------------------------------


def stored(folder: Path, location: str, offset: int = 0, length: int = 48) -> Path:
    made = m.perceptron()
    weight = made.graph.initializer[0]
    content = weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, said in (("location", location), ("offset", str(offset)), ("length", str(length))):
        weight.external_data.add(key=key, value=said)
    (folder / "weights.bin").write_bytes(content)
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_data_inside_of_the_folder_is_read(tmp_path: Path) -> None:
    assert load(stored(tmp_path, "weights.bin")).constants["w1"].shape == (3, 4)


@pytest.mark.parametrize(
    ("location", "offset", "length", "why"),
    [
        ("../weights.bin", 0, 48, "data must be inside the model's folder"),
        ("/etc/hostname", 0, 48, "data must be inside the model's folder"),
        ("a/../../weights.bin", 0, 48, "data must be inside the model's folder"),
        ("..\\weights.bin", 0, 48, "data must be inside the model's folder"),
        ("", 0, 48, "data must be inside the model's folder"),
        ("missing.bin", 0, 48, "No such file"),
        ("link.bin", 0, 48, "is or goes through a link"),
        ("linked/weights.bin", 0, 48, "is or goes through a link"),
        ("hard.bin", 0, 48, "it is a file of another name, too; the data of 'w1'"),
        ("pipe", 0, 48, "it is not a plain file; the data of 'w1'"),
        ("folder", 0, 48, "it is not a plain file; the data of 'w1'"),
        ("weights.bin", 4, 48, "it ends at byte 52 of a file of 48 bytes"),
        ("weights.bin", 0, 4, "its shape needs 48 bytes, and 4 are stored"),
        ("weights.bin", -4, 48, "the offset of its data is '-4'"),
    ],
)
def test_data_outside_is_not_read(
    tmp_path: Path, location: str, offset: int, length: int, why: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.bin").write_bytes(b"0" * 48)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "other" / "weights.bin")
    (folder / "linked").symlink_to(tmp_path / "other")
    os.link(tmp_path / "other" / "weights.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe")  # nobody writes to it: whoever opens it and waits, waits for ever
    (folder / "folder").mkdir()
    path = stored(folder, location, offset, length)
    with pytest.raises(WeftError, match=why):
        load(path)


# -- work that a few bytes stand for ---------------------------------------------------------------


@pytest.mark.parametrize("levels", [40, 3_000])
def test_functions_that_stand_for_too_much_are_refused_before_they_are_expanded(
    levels: int,
) -> None:
    """Running them would take minutes to reach the limit of steps, or for ever."""
    with pytest.raises(
        weft.ResourceExceeded, match=r"functions stand for .* over the limit of 200"
    ):
        load(doubling(levels))
    assert load(doubling(6))(np.ones((2, 3), np.float32))["y"].shape == (2, 3)


def test_a_loop_that_cannot_end_is_refused_before_its_first_step() -> None:
    model = load(looping(0, counted=False))
    with pytest.raises(weft.ResourceExceeded, match=r"the loop never ends: it has no count"):
        model(np.ones((2, 3), np.float32))


# -- damage ----------------------------------------------------------------------------------------


def originals() -> list[bytes]:
    made: list[Any] = [m.perceptron(), single("Softmax"), single("Pad", "x pad4")]
    made += [single("ReduceSum", "x zeros"), single("Resize", "x - half", mode="linear")]
    return [each.SerializeToString() for each in made] + [nested(2), looping(3)]


def _renamed(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = rng.choice(proto.graph.node)
    names = [name for each in proto.graph.node for name in (*each.input, *each.output)]
    if node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def _exchanged(rng: random.Random, proto: onnx.ModelProto) -> None:
    ops = ["Relu", "MatMul", "Transpose", "Gather", "Concat", "Conv", "If", "Loop", "TopK", "Shape"]
    rng.choice(proto.graph.node).op_type = rng.choice(ops)


def _resized(rng: random.Random, proto: onnx.ModelProto) -> None:
    if proto.graph.initializer:
        weight = rng.choice(proto.graph.initializer)
        weight.dims.append(rng.choice([0, 1, 2, -1, 1 << 40]))
        weight.data_type = rng.choice([weight.data_type, 1, 6, 7, 9, 10, 16, 22])


def _attributed(rng: random.Random, proto: onnx.ModelProto) -> None:
    node = rng.choice(proto.graph.node)
    values: list[Any] = [0, -1, 1 << 62, [1, 2], "x", 0.5, [-1, -1], [0.5]]
    names = ["axis", "axes", "perm", "keepdims", "transA", "mode", "to", "k"]
    node.attribute.append(onnx.helper.make_attribute(rng.choice(names), rng.choice(values)))


def _dropped(rng: random.Random, proto: onnx.ModelProto) -> None:
    del proto.graph.node[rng.randrange(len(proto.graph.node))]


EDITS: list[Callable[[random.Random, onnx.ModelProto], None]] = [
    _renamed, _exchanged, _resized, _attributed, _dropped,
]  # fmt: skip


def mutant(seed: int) -> bytes:
    """A model with damage, to its bytes or to what they say."""
    rng = random.Random(seed)
    data = rng.choice(originals())
    if rng.random() < 0.4:
        return rng.choice(mutations._ANY)(rng, data)
    proto = onnx.ModelProto.FromString(data)
    for _ in range(rng.randrange(1, 3)):
        if proto.graph.node:
            rng.choice(EDITS)(rng, proto)
    return bytes(proto.SerializeToString())


@pytest.mark.filterwarnings("ignore:.*attributes that operators do not have:weft.WeftWarning")
@pytest.mark.parametrize("start", one_in(3, range(0, 300, 100)))
def test_damaged_models_are_rejected_or_work(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", str(1 << 20))
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "2000")
    counts: dict[str, int] = {}
    for seed in range(start, start + 100):
        found = _outcome(seed)
        counts[found] = counts.get(found, 0) + 1
    assert min(counts.get("ok", 0), counts.get("refused", 0)) > 3


def _outcome(seed: int) -> str:
    try:
        with weft.graph(backend="reference"), np.errstate(all="ignore"):
            made = load(mutant(seed))(np.ones((2, 3), np.float32))
            weft.eval([each for each in made.values() if each is not None])
    except InternalError as error:
        pytest.fail(f"mutant({seed}): {error}")
    except WeftError:
        return "refused"
    except Exception as error:
        pytest.fail(f"mutant({seed}) made {type(error).__name__}: {str(error)[:500]}")
    return "ok"
