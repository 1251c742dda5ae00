"""Functions for whole tensors on simulated meshes: what users write, and what they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft import functional as F
from weft import nn, optim
from weft.ptir import Builder
from weft.ptir.split import split_program

MESH = weft.mesh(data=2, model=2, simulated=True)
TOKENS = np.random.default_rng(0).integers(0, 6, (4, 3)).astype(np.int32)
BATCH: dict[str, Any] = {"x": {0: "data"}}
LAYERS: dict[str, Any] = {
    "model.block.attention.query": {0: "model"},
    "model.block.attention.key": {0: "model"},
    "model.block.attention.value": {0: "model"},
    "model.block.attention.out.weight": {1: "model"},
    "model.block.up": {0: "model"},
    "model.block.down.weight": {1: "model"},
}


class Words(nn.Module):
    """A transformer with one block."""

    def __init__(self) -> None:
        self.words = nn.Embedding(6, 4)
        self.block = nn.TransformerBlock(4, 2, hidden=8)
        self.head = nn.Linear(4, 6)

    def __call__(self, x: Any) -> Any:
        return self.head(self.block(self.words(x)))


def trained(mesh: weft.Mesh | None, split: dict[str, Any]) -> tuple[list[float], Any, Any]:
    """The losses of two steps, the model, and the function of a step."""
    nn.manual_seed(0)
    model: Any = Words()
    optimiser = optim.AdamW(1e-2)
    state = optimiser.init(model)

    def step(model: Any, state: Any, x: Any) -> Any:
        def loss_of(m: Any) -> Any:
            return F.cross_entropy(m(x).reshape((-1, 6)), x.reshape((-1,)))

        loss, slopes = weft.value_and_grad(loss_of)(model)
        return *optimiser.update(slopes, state, model), loss

    run = step if mesh is None else weft.parallel(mesh, split=split)(step)
    losses = []
    for _ in range(2):
        model, state, loss = run(model, state, TOKENS)
        losses.append(float(loss))
    return losses, model, run


@pytest.mark.parametrize(("split", "count"), one_in(2, [
    (BATCH, 21), (LAYERS, 4), ({**BATCH, **LAYERS}, 25),
], unpack=True), ids=["batches", "layers", "both"])  # fmt: skip
def test_a_model_that_is_split_learns_the_same(split: dict[str, Any], count: int) -> None:
    alone, whole, _ = trained(None, {})
    losses, model, run = trained(MESH, split)
    assert losses == pytest.approx(alone, rel=1e-5)
    up = model.block.up.weight
    assert isinstance(up, weft.Sharded) is ("model.block.up" in split)
    assert np.allclose(up.numpy(), whole.block.up.weight.numpy(), atol=1e-5)
    told = weft.explain(run).splitlines()
    first = told[1 : next((at for at, line in enumerate(told) if at and line[0] != " "), None)]
    assert len(first) == count
    assert all("bytes, in groups of 2 ranks, for test_parallel.py:" in line for line in first)


def test_every_exchange_has_a_line() -> None:
    mesh = weft.mesh(data=2, simulated=True)

    @weft.parallel(mesh, split={"x": {1: "data"}, "w": {0: "data"}})
    def product(x: Any, w: Any) -> Any:
        return x @ w

    product(np.ones((3, 4), np.float32), np.ones((4, 2), np.float32))
    (line,) = weft.explain(product).splitlines()[1:]
    said = "all_reduce (sum) of f32[3, 2], 24 bytes, in groups of 2 ranks, for test_parallel.py:"
    assert line.startswith(f"  {said}")
    b = Builder("product")
    program = b.build(b.param("f32", [3, 4]) @ b.param("f32", [4, 2]))
    own = split_program(program, mesh, [{1: "data"}, {0: "data"}]).program
    assert [line for line in weft.compile(own, "cpu").report() if line.startswith(said)]


def test_reshard_says_which_exchange_is_meant() -> None:
    mesh = weft.mesh(data=2, simulated=True)
    x = np.arange(8.0).reshape(4, 2)

    def summed(x: Any) -> Any:
        return weft.cumulative_sum(x, axis=0)

    split = {"x": {0: "data"}}
    with pytest.raises(weft.UserError) as caught:
        weft.parallel(mesh, split=split)(summed)(x)
    assert "NoSplit at test_parallel.py:" in str(caught.value)
    why = "[parallel] cumulative_sum is not split over the mesh: it works along axis 0 of x"
    assert why in str(caught.value)

    @weft.parallel(mesh, split=split)
    def gathered(x: Any) -> Any:
        return summed(weft.reshard(x, {})), summed(weft.reshard(x, {1: "data"}))

    whole, turned = gathered(x)
    assert np.array_equal(whole.numpy(), np.cumsum(x, 0))
    assert np.array_equal(turned.numpy(), np.cumsum(x, 0))
    assert turned.split == {1: "data"}
    told = weft.explain(gathered)
    assert "all_gather of" in told
    assert "all_to_all of" in told
    assert weft.reshard(x, {}) is x


def test_gradients_and_vmap_go_through_reshard() -> None:
    mesh = weft.mesh(data=2, simulated=True)
    x = np.arange(8.0).reshape(4, 2)

    @weft.parallel(mesh, split={"x": {0: "data"}})
    def slopes(x: Any) -> Any:
        def loss(x: Any) -> Any:
            rows = weft.vmap(lambda row: weft.reshard(row, {}) ** 2)(weft.reshard(x, {}))
            return (rows * weft.cumulative_sum(rows, axis=0)).sum()

        return weft.grad(loss)(x)

    def plain(x: Any) -> Any:
        return (x**2 * weft.cumulative_sum(x**2, axis=0)).sum()

    assert np.allclose(slopes(x).numpy(), weft.grad(plain)(x).numpy())


def test_statistics_of_a_batch_are_those_of_all_ranks() -> None:
    def run(mesh: weft.Mesh | None) -> tuple[Any, Any]:
        norm = nn.BatchNorm(3)

        def call(norm: Any, x: Any) -> Any:
            return norm(x, training=True)

        split = {"x": {0: "data"}}
        step = call if mesh is None else weft.parallel(mesh, split=split)(call)
        x = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
        return step(norm, x).numpy(), norm

    alone, own = run(None)
    split, other = run(weft.mesh(data=2, simulated=True))
    assert np.allclose(split, alone, atol=1e-5)
    for name, value in vars(own).items():
        if isinstance(value, weft.Tensor):
            assert np.allclose(getattr(other, name).numpy(), value.numpy(), atol=1e-6), name


def test_mistakes_are_told() -> None:
    wrong: Any = 3
    with pytest.raises(weft.UserError, match="parallel takes a mesh, not an int"):
        weft.parallel(wrong)
    x = np.ones((4, 2), np.float32)

    def called(function: Any, **split: Any) -> str:
        with pytest.raises(weft.WeftError) as caught:
            weft.parallel(MESH, split=split or {"x": {0: "data"}})(function)(x)
        return str(caught.value)

    assert "no axis 'rows'" in called(lambda x: weft.reshard(x, {0: "rows"}))
    assert "is not a multiple of the 2 ranks" in called(lambda x: weft.reshard(x[:3], {0: "data"}))
    assert "without ranks" in called(lambda x: weft.all_reduce(x, over="data"))
    assert "no argument is called that" in called(lambda x: x, y={0: "data"})
    with pytest.raises(weft.UserError, match=r"reshard is for functions with @weft\.parallel"):
        weft.spmd(MESH)(lambda x: weft.reshard(x, {}))(x)
