"""Bundles compute what the programs do that they are built of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import gpt2_generate
from tests.support.cases import one_in
from tests.unit.bundles import models
from weft import nn
from weft.foundation.errors import Unimplemented, UserError
from weft.ptir import Builder, Program

SHOWN = [models.mixture, models.halving, models.noise, models.same]


@pytest.mark.parametrize("threads", one_in(2, [1, 3]))
@pytest.mark.parametrize("program", SHOWN)
def test_a_program_computes_the_same(
    folder: Path, program: Callable[[], Program], threads: int
) -> None:
    made = program()
    bundle = weft.load_bundle(weft.build(made, out=folder / f"{made.entry}_same"), threads=threads)
    executable = weft.compile(made)
    for seed in (0, 7):
        inputs = models.inputs_of(made, seed)
        got, want = bundle(*inputs, seed=seed), executable.run(inputs, seed=seed)
        assert [a.dtype for a in got] == [a.dtype for a in want]
        assert [a.shape for a in got] == [a.shape for a in want]
        assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


def test_open_sizes_share_programs(classify: Path) -> None:
    bundle, function = weft.load_bundle(classify), models.classifier()
    programs = bundle._manifest.content["targets"][0]["programs"]
    assert [p["sizes"]["B"] for p in programs] == [0, 4, 16, 20]
    assert bundle.sizes == {"B": (0, 20)}
    for count in (0, 1, 3, 4, 5, 16, 17, 20):
        x = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
        got, want = bundle(x), [t.numpy() for t in function(x)]
        assert [a.shape for a in got] == [a.shape for a in want]
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        np.testing.assert_array_equal(got[1], want[1])


def test_sizes_of_results_may_follow_from_others(folder: Path) -> None:
    b = Builder("joined")
    x, y = b.param("f32", ["?A", 3]), b.param("f32", ["?B", 3])
    both = b.concat([x, y, x], axis=0)
    flat = b.reshape(both, [-1])
    program = b.build(flat, b.broadcast_to(b.reduce_sum(x, [0], keepdims=True), ["?B", 3]))
    made = weft.build(program, out=folder / "joined", sizes={"A": (1, 3), "B": (2, 4)})
    bundle = weft.load_bundle(made)
    for a, c in ((1, 2), (3, 3), (2, 4)):
        inputs = [np.random.default_rng(n).random((n, 3)).astype(np.float32) for n in (a, c)]
        got, want = bundle(*inputs), weft.run(program, inputs)
        assert [r.shape for r in got] == [r.shape for r in want] == [(3 * (2 * a + c),), (c, 3)]
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_weights_are_named_by_their_way(classify: Path) -> None:
    tensors = weft.load(classify / "weights.safetensors")
    names = [name for name in tensors if not name.startswith("constant.")]
    assert sorted(names) == [
        "model.layers[0].bias", "model.layers[0].weight", "model.layers[2].bias",
        "model.layers[2].weight",
    ]  # fmt: skip
    assert tensors["model.layers[0].weight"].shape == (16, 4)


def test_a_module_is_built_as_it_is(folder: Path) -> None:
    nn.manual_seed(1)
    model = nn.Linear(4, 2)
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    bundle = weft.load_bundle(weft.build(model, x, out=folder / "linear"))
    assert bundle.name == "linear"
    assert sorted(weft.load(folder / "linear" / "weights.safetensors")) == ["bias", "weight"]
    np.testing.assert_allclose(bundle(x)[0], model(weft.asarray(x)).numpy(), rtol=1e-6)


def test_a_model_of_onnx_is_built(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, proto = onnx.helper, onnx.TensorProto
    weight = onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float32) * 2, "w")
    nodes = [
        helper.make_node("MatMul", ["pixels", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("pixels", proto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", proto.FLOAT, [2, 3])],
        [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = weft.onnx.load(made.SerializeToString())
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    bundle = weft.load_bundle(weft.build(model, x, out=folder / "net", name="net"))
    assert [entry.name for entry in bundle.inputs] == ["pixels"]
    assert [entry.name for entry in bundle.results] == ["y"]
    assert bundle(x)[0].tolist() == np.maximum(x[:, :3] * 2, 0).tolist()


class Counter(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        self.scale = weft.asarray(np.full(2, 3, np.float32))
        self.total = weft.asarray(np.full(2, 5, np.float32))

    def __call__(self, x: Any) -> Any:
        self.total = self.total + x
        return self.total * self.scale


def test_what_modules_are_assigned_is_state(folder: Path) -> None:
    counter = weft.jit(lambda model, x: model(x))
    x = np.array([1, 2], np.float32)
    bundle = weft.load_bundle(
        weft.build(counter, Counter(), x, out=folder / "counter", name="counter")
    )
    assert [state.name for state in bundle.states] == ["model.total"]
    one, other = bundle.instance(), bundle.instance()
    assert one(x)[0].tolist() == [18, 21]
    assert one(x)[0].tolist() == [21, 27]
    assert one.states["model.total"].tolist() == [7, 9]
    assert other(x)[0].tolist() == [18, 21]
    one.reset()
    assert one(x)[0].tolist() == [18, 21]


def test_arguments_may_be_state(folder: Path) -> None:
    @weft.jit
    def remember(x: Any, memory: Any) -> Any:
        old, seen = memory["old"], memory["seen"]
        return x - old, {"old": x, "seen": seen + 1}

    memory = {"old": np.zeros(3, np.float32), "seen": np.zeros((), np.int32)}
    x = np.array([1, 2, 3], np.float32)
    made = weft.build(remember, x, memory, out=folder / "remember", state="memory")
    instance = weft.load_bundle(made).instance()
    for turn in range(1, 4):
        (difference,) = instance(x * turn)
        assert difference.tolist() == x.tolist()
        assert instance.states["memory['seen']"] == turn


def test_a_generator_keeps_its_caches(folder: Path) -> None:
    """Tokens one by one, with keys and values as state, are those that Python makes."""
    nn.manual_seed(0)
    config = gpt2_generate.Config(layers=2, width=32, heads=2, vocabulary=64, context=12)
    model = gpt2_generate.GPT2(config)
    want = list(gpt2_generate.generate(model, [3], 8, temperature=0))

    def step(model: Any, tokens: Any, position: Any, caches: Any) -> Any:
        return model.step(tokens, position, caches)

    example = model, np.zeros((1, 1), np.int32), np.zeros((), np.int32), model.empty_caches(9)
    made = weft.build(weft.jit(step), *example, out=folder / "step", state="caches")
    bundle = weft.load_bundle(made, threads=2)
    assert [entry.name for entry in bundle.inputs] == ["tokens", "position"]
    assert len(bundle.states) == 4
    source = (made / "step.c").read_text()
    steps = source.partition("results_0[] = {")[2].partition("}")[0].split(",")
    slots = source.partition("slots_0[] = {")[2].partition("};")[0].split("},")
    assert all("weft_in_state" in slots[int(n)] for n in steps[1:5])  # They are updated in place.
    for instance in (bundle.instance(), bundle.instance()):
        token, got = 3, []
        for position in range(8):
            (scores,) = instance(np.array([[token]], np.int32), np.asarray(position, np.int32))
            token = int(scores[0].argmax())
            got.append(token)
        assert got == want


def test_states_may_change_places(folder: Path) -> None:
    program = models.swapped()
    made = weft.build(program, out=folder / "swapped", state={0: 1, 1: 2})
    instance = weft.load_bundle(made).instance()
    x, y = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for turn in range(1, 5):
        step = np.full(2, turn, np.float32)
        assert instance(step)[0].tolist() == (x + y).tolist()
        x, y = y, x + step
        assert [s.tolist() for s in instance.states.values()] == [x.tolist(), y.tolist()]


def test_a_state_is_updated_in_place(folder: Path) -> None:
    made = weft.build(models.updated(), out=folder / "updated", state={0: 0})
    source = (made / "updated.c").read_text()
    assert "weft_in_state" in source
    instance = weft.load_bundle(made).instance()
    for turn in range(3):
        assert instance(np.ones((1, 3), np.float32), np.array([turn, 0], np.int32)) == []
    assert instance.states["in0"].sum() == 9


def test_the_same_model_gives_the_same_bytes(folder: Path, mixture: Path) -> None:
    again = weft.build(models.mixture(), out=folder / "again" / "mixture", target=models.PORTABLE)
    for path in sorted(mixture.iterdir()):
        content = path.read_bytes()
        assert content == (again / path.name).read_bytes(), path.name
        assert str(folder).encode() not in content
        assert str(Path(__file__).parent).encode() not in content


def test_a_bundle_takes_the_place_of_a_bundle_only(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a bundle"):
        weft.build(models.same(), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    out = folder / "replaced"
    weft.build(models.same(), out=out)
    weft.build(models.noise(), out=out)
    assert weft.load_bundle(out).name == "noise"


def test_what_runs_on_the_host_is_refused_by_its_line(folder: Path) -> None:
    b = Builder("factor")
    x = b.param("f32", [3, 3])
    program = b.build(b.emit("cholesky", x))
    with pytest.raises(Unimplemented, match=r"cholesky.*test_build.py:\d+.*no NumPy"):
        weft.build(program, out=folder / "factor")
    assert not (folder / "factor").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, r"the size B of classify is open.*sizes=\{'B': \(1, 64\)\}"),
        ({"sizes": {"C": (1, 2)}}, "there is no size 'C'; the open sizes are B"),
        ({"sizes": {"B": (5, 2)}}, "5 to 2, is empty"),
        ({"sizes": {"B": 5}}, r"the range of B is 5; give \(smallest, largest\)"),
        ({"sizes": {"B": (1, 2)}, "name": "2x"}, "'2x' cannot be the prefix of C functions"),
        ({"sizes": {"B": (1, 2)}, "name": "weft_x"}, "cannot be the prefix"),
        ({"sizes": {"B": (1, 2)}, "target": "vax"}, "there is no target 'vax'"),
        ({"sizes": {"B": (1, 2)}, "cc": "no-such-compiler"}, "'no-such-compiler' was not found"),
        ({"sizes": {"B": (1, 2)}, "state": "y"}, "state names 'y'; classify takes x"),
    ],
)
def test_mistakes_are_told(folder: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(weft.WeftError, match=why):
        weft.build(models.classifier(), np.zeros((5, 4), np.float32), out=folder / "no", **options)
    assert not (folder / "no").exists()


def test_too_many_sizes_that_cannot_be_filled_are_told(folder: Path) -> None:
    function = weft.jit(
        lambda x: x.sum(), dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"B": "exact"})
    )
    x = np.zeros(3, np.float32)
    with pytest.raises(UserError, match="a program for each of 100 sets of sizes"):
        weft.build(function, x, out=folder / "no", name="total", sizes={"B": (1, 100)})


def test_only_functions_and_programs_are_built(folder: Path) -> None:
    with pytest.raises(UserError, match="a function, a module or a program, not an int"):
        weft.build(3, out=folder / "no")
