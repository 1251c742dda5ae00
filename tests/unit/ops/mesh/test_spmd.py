"""Functions on simulated meshes: what users write, and what they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft import nn, optim

MESH = weft.mesh(data=2, model=2, simulated=True)
NO_MESH: Any = 3
NOTHING: Any = None
NO_PAIRS: Any = [0, 1]


def _batch() -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((16, 2)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int32)


def _trained(mesh: weft.Mesh, *, jit: bool = False, inside: bool = False) -> list[float]:
    """Three steps of data parallel training; the mean is taken of slopes, or of the loss."""
    nn.manual_seed(0)
    model = weft.replicate(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), mesh)
    optimiser = optim.AdamW(1e-2)
    state = optimiser.init(model)

    @weft.spmd(mesh, split={"x": {0: "data"}, "y": {0: "data"}})
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        def loss_of(m: Any) -> Any:
            loss = F.cross_entropy(m(x), y)
            return weft.all_reduce(loss, "mean", over="data") if inside else loss

        loss, slopes = weft.value_and_grad(loss_of)(model)
        if not inside:
            slopes, loss = weft.all_reduce((slopes, loss), "mean", over="data")
        return *optimiser.update(slopes, state, model), loss

    run = weft.jit(step) if jit else step
    losses = []
    for _ in range(3):
        model, state, loss = run(model, state, *_batch())
        losses.append(float(loss))
    return losses


def test_training_on_several_ranks_is_training_on_one() -> None:
    alone = _trained(weft.mesh(data=1))
    for mesh in (weft.mesh(data=4, simulated=True), MESH, weft.mesh(data=-1, simulated=2)):
        assert _trained(mesh) == pytest.approx(alone, rel=1e-5)
    assert _trained(MESH, jit=True) == pytest.approx(alone, rel=1e-5)
    assert _trained(weft.mesh(data=1), jit=True) == pytest.approx(alone, rel=1e-6)


def test_the_loss_may_be_reduced_inside_what_is_differentiated() -> None:
    alone = _trained(weft.mesh(data=1))
    assert _trained(MESH, inside=True) == pytest.approx(alone, rel=1e-5)


def test_what_is_split_and_returned() -> None:
    @weft.spmd(MESH, split={"x": {0: "data", 1: "model"}})
    def scaled(x: Any, by: Any) -> Any:
        own = weft.rank("data") * 10 + weft.rank("model")
        return weft.Sharded(x * by + own, MESH, {0: "data", 1: "model"}), by * 2

    whole, twice = scaled(np.ones((2, 4), np.float32), np.float32(3))
    assert np.array_equal(whole.numpy(), [[3, 3, 4, 4], [13, 13, 14, 14]])
    assert float(twice) == 6
    again, _ = scaled(whole.numpy(), np.float32(1))
    assert again.shape == (2, 4)
    assert "Sharded([2, 4] of f32" in repr(whole)


def test_a_value_that_is_split_says_so_itself() -> None:
    @weft.spmd(MESH)
    def total(x: Any) -> Any:
        assert x.shape == (2,)
        return weft.all_reduce(x.sum(), over=("data", "model"))

    x = weft.shard(np.arange(8, dtype=np.float32), MESH, {0: ("data", "model")})
    assert float(total(x)) == 28


def test_parts_of_what_is_split_are_tensors_inside_modules_too() -> None:
    layer = nn.Linear(2, 4)
    wanted = layer(weft.ones((3, 2))).numpy().sum()
    for name in ("weight", "bias"):
        setattr(layer, name, weft.shard(getattr(layer, name), MESH, {0: "model"}))

    @weft.spmd(MESH)
    def total(layer: Any, x: Any) -> Any:
        return weft.all_reduce(layer(x).sum(), over="model")

    assert float(total(layer, np.ones((3, 2), np.float32))) == pytest.approx(wanted, rel=1e-5)


def test_batches_that_are_split_train_as_whole_ones_do() -> None:
    model = nn.Linear(2, 2)

    @weft.spmd(MESH, split={"x": {0: "data"}, "y": {0: "data"}})
    def loss(model: Any, x: Any, y: Any) -> Any:
        return weft.all_reduce(F.cross_entropy(model(x), y), "mean", over="data")

    ((x, y),) = weft.shard_batches(_batch(), 16, MESH)
    assert float(loss(model, x, y)) == pytest.approx(float(loss(model, *_batch())), rel=1e-6)


def test_a_split_that_contradicts_the_value_is_told() -> None:
    x = weft.shard(np.ones((2, 2), np.float32), MESH, {0: "data"})
    run = weft.spmd(MESH, split={"x": {1: "data"}})(lambda x: weft.all_reduce(x, over="data"))
    with pytest.raises(weft.UserError, match=r"split gives \{1: 'data'\} for x, but it is split"):
        run(x)


def test_every_one_of_several_arguments_is_split() -> None:
    @weft.spmd(MESH, split={"xs": {0: "data"}})
    def total(*xs: Any) -> Any:
        assert [x.shape for x in xs] == [(2, 2), (2, 2)]
        return weft.all_reduce(xs[0].sum() + xs[1].sum(), over="data")

    assert float(total(*[np.ones((4, 2), np.float32)] * 2)) == 16


def test_what_a_function_assigns_to_a_module_is_kept() -> None:
    x, _ = _batch()
    alone, norm = nn.BatchNorm(2), nn.BatchNorm(2)
    alone(x, training=True)
    for mesh in (weft.mesh(data=1), weft.mesh(data=2, simulated=True)):
        for run in (weft.spmd(mesh), weft.parallel(mesh, split={"x": {0: "data"}})):
            norm = nn.BatchNorm(2)
            run(lambda norm, x: weft.sum(norm(x, training=True)))(norm, x)
            assert np.allclose(norm.running_mean.numpy(), alone.running_mean.numpy(), atol=1e-6)


def test_an_assignment_that_differs_between_ranks_is_told() -> None:
    @weft.spmd(MESH, split={"x": {0: "data"}})
    def total(norm: Any, x: Any) -> Any:
        return weft.all_reduce(weft.sum(norm(x, training=True)), over="data")

    with pytest.raises(
        weft.UserError,
        match=r"RanksDiffer.*running_mean of a BatchNorm is assigned .* along data; all_reduce it",
    ):
        total(nn.BatchNorm(2), _batch()[0])


def test_the_mean_of_large_halves_is_no_infinity() -> None:
    @weft.spmd(MESH)
    def mean(x: Any) -> Any:
        return weft.all_reduce(x, "mean", over="data")

    assert mean(np.full(2, 40000, np.float16)).numpy().tolist() == [40000, 40000]


def test_every_exchange() -> None:
    mesh = weft.mesh(data=2, simulated=True)
    split = {0: "data"}

    @weft.spmd(mesh, split={"x": split})
    def all_of(x: Any) -> Any:
        return {
            "gather": weft.all_gather(x, over="data"),
            "scatter": weft.Sharded(weft.reduce_scatter(x, over="data"), mesh, split),
            "exchange": weft.Sharded(weft.all_to_all(x, 0, 0, over="data"), mesh, split),
            "permute": weft.Sharded(weft.collective_permute(x, [(0, 1)], over="data"), mesh, split),
            "broadcast": weft.collective_broadcast(x, over="data"),
            "max": weft.all_reduce(x, "max", over="data"),
        }

    found = {k: v.numpy().tolist() for k, v in all_of(np.arange(4, dtype=np.float32)).items()}
    assert found == {
        "gather": [0, 1, 2, 3],
        "scatter": [2, 4],
        "exchange": [0, 2, 1, 3],
        "permute": [0, 0, 0, 1],
        "broadcast": [0, 1],
        "max": [2, 3],
    }


def test_names_inside_an_argument_may_be_patterns() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))

    @weft.spmd(
        MESH, split={"model.layers.0.*": {0: "model"}, "model.layers.1.weight": {1: "model"}}
    )
    def run(model: Any, x: Any) -> Any:
        up = F.linear(x, model.layers[0].weight, model.layers[0].bias)
        down = weft.all_reduce(F.linear(up, model.layers[1].weight), over="model")
        return down + model.layers[1].bias

    x = np.ones((3, 4), np.float32)
    assert np.allclose(run(model, x).numpy(), model(x).numpy(), atol=1e-5)


def test_batches_of_which_each_rank_has_a_part() -> None:
    data: dict[str, Any] = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6)}
    mesh = weft.mesh(data=2, simulated=True)
    made: list[Any] = list(weft.shard_batches(data, 4, mesh))
    assert len(made) == 1
    assert np.array_equal(made[0]["x"].numpy(), data["x"][:4])
    with pytest.raises(weft.UserError, match="a batch of 3 cannot be split over 2 ranks"):
        weft.shard_batches(data, 3, mesh)


@pytest.mark.parametrize(("given", "why"), [
    (lambda: weft.mesh(data=3), "data=3 needs 3 ranks, and there is one; .* `weft launch -n 3"),
    (lambda: weft.mesh(data=-1, model=3), "needs a multiple of 3 ranks, .* simulated=3$"),
    (lambda: weft.mesh(data=3, simulated=2), "data=3 needs 3 ranks, but simulated=2"),
    (lambda: weft.mesh(data=3, simulated=-2), "simulated is -2; write True, or how many ranks"),
    (lambda: weft.mesh(data=-1, model=-1), "only one axis of a mesh can be -1"),
    (lambda: weft.mesh(data=-1, simulated=True), "write simulated=8"),
    (lambda: weft.mesh(data=0), "the axis data has size 0"),
    (lambda: weft.spmd(NO_MESH), "spmd takes a mesh, not an int"),
    (lambda: weft.shard(np.ones(3), MESH, {0: "data"}), "not a multiple of the 2 ranks along data"),
    (lambda: weft.shard(np.ones(4), MESH, {1: "data"}), "no axis 1 to split"),
    (lambda: weft.shard(np.ones(4), MESH, {0: "rows"}), "the mesh has no axis 'rows'"),
    (lambda: weft.shard(np.ones(4), MESH, {0: NOTHING}), "axis 0 of tree is split over None"),
    (lambda: weft.shard(np.ones((2, 2)), MESH, {0: "data", -1: "data"}),
     "axes 0 and 1 of tree are both split over data"),
    (lambda: weft.shard(np.ones(4), NO_MESH, {0: "data"}), "shard takes a mesh, not an int"),
    (lambda: weft.shard_batches(np.ones(4), 2, NO_MESH), "shard_batches takes a mesh, not an int"),
    (lambda: weft.save("x.safetensors", {}, mesh=NO_MESH), "mesh is an int; make one"),
    (lambda: weft.Sharded(np.ones(4), MESH, {0: "rows"}), "the mesh has no axis 'rows'"),
    (lambda: weft.all_reduce(np.ones(2), over="data"), "there is no mesh here"),
])  # fmt: skip
def test_mistakes_are_told(given: Any, why: str) -> None:
    with pytest.raises(weft.UserError, match=why) as caught:
        given()
    assert "test_spmd.py:" in str(caught.value)


def _called(function: Any, **split: Any) -> str:
    with pytest.raises(weft.WeftError) as caught:
        weft.spmd(MESH, split=split)(function)(np.ones(4, np.float32))
    return str(caught.value)


def test_results_that_differ_are_told_with_their_line_and_axis() -> None:
    told = _called(lambda x: x * 2, x={0: "model"})
    assert "RanksDiffer at test_spmd.py:" in told
    assert "f32[2] differs between the ranks along model; all_reduce it" in told


def test_mistakes_inside_are_told() -> None:
    assert "is one of sum, mean" in _called(lambda x: weft.all_reduce(x, "avg", over="data"))
    assert "no axis 'rows'" in _called(lambda x: weft.all_reduce(x, over="rows"))
    assert "split names 'z', and no argument is called that; there are x" in _called(
        lambda x: x, z={0: "data"}
    )
    assert "no axis None; its axes are" in _called(lambda x: weft.all_reduce(x, over=NOTHING))
    assert "who sends it to whom: [(0, 1)]" in _called(
        lambda x: weft.collective_permute(x, NO_PAIRS, over="data")
    )
    assert "a result has 1 axes, and is Sharded along axis 7" in _called(
        lambda x: weft.Sharded(x, MESH, {7: "data"}), x={0: "data"}
    )
    with pytest.raises(weft.UserError, match="called that; there are no arguments"):
        weft.spmd(MESH, split={"z": {0: "data"}})(lambda: weft.rank())()
    with pytest.raises(weft.UserError, match="x is a float, and only tensors can be split"):
        weft.spmd(MESH, split={"x": {0: "data"}})(lambda x: x)(2.0)


def test_axes_of_results_count_from_the_end_too() -> None:
    split: Any = {np.int64(-1): "data"}
    twice = weft.spmd(MESH, split={"x": split})(lambda x: weft.Sharded(2 * x, MESH, {-1: "data"}))
    found = twice(np.arange(4.0))
    assert found.split == {0: "data"}
    assert np.array_equal(found.numpy(), 2 * np.arange(4.0))


def _around(kind: str) -> tuple[Any, Any]:
    """A function around one on the mesh, and the same without ranks."""
    if kind == "a number":
        loss = weft.spmd(MESH, split={"x": {0: "data"}})(
            lambda w, x: weft.all_reduce(weft.tanh(x @ w).sum(), over="data")
        )
        return loss, lambda w, x: weft.tanh(x @ w).sum()
    if kind == "parts":
        split = weft.spmd(MESH, split={"x": {0: "data"}, "w": {1: "model"}})(
            lambda w, x: weft.Sharded(weft.tanh(x @ w), MESH, {0: "data", 1: "model"})
        )
        return lambda w, x: (split(w, x).value ** 2).sum(), (
            lambda w, x: (weft.tanh(x @ w) ** 2).sum()
        )
    several = weft.spmd(MESH, split={"x": {0: "data"}})(
        lambda w, x: (
            weft.Sharded(weft.tanh(x @ w), MESH, {0: "data"}),
            w * 2,
            weft.all_reduce(x.sum(0), "max", over="data"),
        )
    )

    def whole(w: Any, x: Any) -> Any:
        rows = weft.max(x.reshape((2, 4, 4)).sum(1), axis=0)
        return (weft.tanh(x @ w) ** 2).sum() + ((2 * w) ** 3).sum() + (rows**2).sum()

    def parts(w: Any, x: Any) -> Any:
        y, z, rows = several(w, x)
        return (y.value**2).sum() + (z**3).sum() + (rows**2).sum()

    return parts, whole


@pytest.mark.parametrize("kind", ["a number", "parts", "several"])
def test_gradients_around_a_simulated_mesh(kind: str) -> None:
    source = np.random.default_rng(0)
    w, x = source.standard_normal((4, 6)), source.standard_normal((8, 4))
    around, whole = _around(kind)
    for found, wanted in zip(
        weft.grad(around, argnums=(0, 1))(w, x),
        weft.grad(whole, argnums=(0, 1))(w, x),
        strict=True,
    ):
        assert np.allclose(found.numpy(), wanted.numpy(), atol=1e-9)
    compiled = weft.jit(weft.grad(around))(w, x)
    assert np.allclose(compiled.numpy(), weft.grad(whole)(w, x).numpy(), atol=1e-9)


def test_second_gradients_around_a_simulated_mesh() -> None:
    source = np.random.default_rng(1)
    w, x = source.standard_normal((4, 6)), source.standard_normal((8, 4))

    def squared(loss: Any) -> Any:
        return weft.grad(lambda w, x: (weft.grad(loss)(w, x) ** 2).sum())(w, x).numpy()

    around, whole = _around("a number")
    assert np.allclose(squared(around), squared(whole), atol=1e-9)


def test_a_gradient_of_complex_numbers_around_a_simulated_mesh_is_refused() -> None:
    twice = weft.spmd(MESH)(lambda x: x * 2)
    with pytest.raises(weft.Unimplemented, match="take the gradient inside of the function"):
        weft.grad(lambda x: weft.real(twice(x)).sum())(np.ones(2, np.complex64))
