"""Mixed precision: which ops compute in what, f32 master weights, and loss scaling."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.draws import generator
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import UserError
from weft.ops.autocast import NARROW, WIDE

RNG = generator()
X = weft.asarray(RNG.standard_normal((2, 4, 6, 8)).astype(np.float32))
ROWS = weft.asarray(RNG.standard_normal((4, 8)).astype(np.float32))
HALF = ROWS.astype("f16")


def test_the_tables_name_functional_ops() -> None:
    assert set(F.__all__) >= NARROW | WIDE
    assert not NARROW & WIDE


def test_the_tables_are_those_of_the_page() -> None:
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `attention`"))
    narrow, wide = (set(re.findall(r"`(\w+)`", cell)) for cell in row.split("|")[1:3])
    assert narrow == set(NARROW)
    assert wide == set(WIDE)


CASES: list[tuple[str, Callable[[], weft.Tensor], Any]] = [
    ("linear", lambda: F.linear(ROWS, ROWS), weft.float16),
    ("matmul", lambda: F.matmul(ROWS, ROWS.T), weft.float16),
    ("operator", lambda: ROWS @ ROWS.T, weft.float16),
    ("array on the left", lambda: ROWS.numpy() @ ROWS.T, weft.float16),
    ("method", lambda: ROWS.matmul(ROWS.T), weft.float16),
    ("linalg", lambda: weft.linalg.matmul(ROWS, ROWS.T), weft.float16),
    ("mixed", lambda: HALF @ ROWS.T, weft.float16),
    ("einsum", lambda: F.einsum("ij,kj->ik", ROWS, ROWS), weft.float16),
    ("attention", lambda: F.attention(X, X, X), weft.float16),
    ("conv2d", lambda: F.conv2d(X, X[:, :, :3, :3]), weft.float16),
    ("softmax", lambda: F.softmax(HALF, -1), weft.float32),
    ("layer_norm", lambda: F.layer_norm(HALF), weft.float32),
    ("mse_loss", lambda: F.mse_loss(HALF, HALF), weft.float32),
    ("relu of f16", lambda: F.relu(HALF), weft.float16),
    ("relu of f32", lambda: F.relu(ROWS), weft.float32),
    ("sum of both", lambda: HALF + ROWS, weft.float32),
    ("f64 stays", lambda: ROWS.astype("f64") @ ROWS.astype("f64").T, weft.float64),
]


@pytest.mark.parametrize(("name", "call", "dtype"), CASES, ids=[c[0] for c in CASES])
def test_what_an_op_computes_in(name: str, call: Callable[[], weft.Tensor], dtype: Any) -> None:
    outside = call().dtype
    with weft.autocast("f16"):
        assert call().dtype is dtype
        with weft.autocast("f16", enabled=False):
            assert call().dtype is outside
    assert call().dtype is outside


def test_the_block_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), weft.autocast("bf16"):
        raise KeyError
    assert (ROWS @ ROWS.T).dtype is weft.float32


@pytest.mark.parametrize(("dtype", "said"), [("f32", "f32"), ("bfloat16", "'bfloat16'"), (3, "3")])
def test_another_dtype_is_refused(dtype: Any, said: str) -> None:
    with pytest.raises(UserError, match=f'is f16 or bf16, not {said}; write "bf16" or weft.bfloat'):
        weft.autocast(dtype).__enter__()


def test_jit_compiles_for_each_precision() -> None:
    call = weft.jit(lambda x: x @ x.T)
    assert call(ROWS).dtype is weft.float32
    with weft.autocast("bf16"):
        assert call(ROWS).dtype is weft.bfloat16
    assert call(ROWS).dtype is weft.float32
    assert len(call.versions) == 2
    assert "autocast is bf16, not off" in call.explain()


def test_master_weights_and_their_gradients_stay_wide() -> None:
    model = nn.Sequential(nn.Linear(8, 16), F.relu, nn.Linear(16, 1))
    wide = weft.grad(lambda m: weft.mean(m(ROWS) ** 2))(model)

    def loss(m: Any) -> Any:
        with weft.autocast("bf16"):
            return weft.mean(m(ROWS).astype("f32") ** 2)

    narrow = weft.grad(loss)(model)
    # Of all of them: a single one may be a sum that nearly cancels.
    bound = 0.03 * max(np.abs(each.numpy()).max() for each in wide.parameters())
    for mine, right in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert mine.dtype is weft.float32
        np.testing.assert_allclose(mine.numpy(), right.numpy(), atol=bound)
        assert (mine.numpy() != right.numpy()).any()


# -- loss scaling --------------------------------------------------------------------------------


def test_a_gradient_too_small_for_f16_survives() -> None:
    scaling = optim.LossScale(2.0**12)
    scale, x = scaling.init(), weft.asarray(np.full(3, 1e-5, np.float16))

    def loss(w: Any) -> Any:
        return weft.sum((w * x) * 1e-4).astype("f32")

    w = weft.asarray(np.ones(3, np.float16))
    assert not weft.grad(loss)(w).numpy().any()
    slopes = weft.grad(lambda w: scaling.scaled(loss(w), scale))(w)
    found, finite = scaling.unscaled(slopes.astype("f32"), scale)
    np.testing.assert_allclose(found.numpy(), np.full(3, 1e-9), rtol=0.05)
    assert bool(finite)


def test_the_scale_follows_the_gradients() -> None:
    scaling = optim.LossScale(8.0, interval=2, largest=16.0)
    state, seen = scaling.init(), []
    for finite in (True, True, True, True, False, False, False, False, False, True, True):
        state = scaling.after(weft.asarray(finite), state)
        seen.append(float(state["scale"]))
    assert seen == [8, 16, 16, 16, 8, 4, 2, 1, 1, 1, 2]


def test_a_step_with_an_infinite_gradient_is_left_out() -> None:
    scaling, optimiser = optim.LossScale(4.0), optim.Adam(0.1)
    params = {"w": weft.asarray(np.ones(2, np.float32))}
    state, scale = optimiser.init(params), scaling.init()
    step = weft.jit(lambda g, s, p, c: scaling.update(optimiser, g, s, p, c))
    bad = {"w": weft.asarray(np.array([1.0, np.inf], np.float32))}
    same, kept, less = step(bad, state, params, scale)
    np.testing.assert_array_equal(same["w"].numpy(), [1.0, 1.0])
    assert (float(kept["step"]), float(less["scale"])) == (0.0, 2.0)
    good = {"w": weft.asarray(np.array([4.0, -4.0], np.float32))}
    moved, after, _ = step(good, kept, same, less)
    np.testing.assert_allclose(moved["w"].numpy(), [0.9, 1.1], rtol=1e-5)
    assert float(after["step"]) == 1.0
    np.testing.assert_allclose(after["mean"][0].numpy(), [0.2, -0.2], rtol=1e-5)


def test_a_wrong_setting_is_told() -> None:
    wrong: Any = "x"
    for settings, message in (
        ({"backoff": 2.0}, r"backoff is 2\.0; it must be between 0 and 1"),
        ({"growth": 1.0}, r"growth is 1\.0; it must be a number over 1"),
        ({"initial": wrong}, "initial is 'x'; it must be a number, at least 1"),
        ({"interval": 0}, "interval is 0; it must be a whole number, at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            optim.LossScale(**settings)


def test_a_state_that_is_none_is_told() -> None:
    params = {"w": weft.ones(2)}
    optimiser, scaling = optim.SGD(0.1), optim.LossScale()
    state = optimiser.init(params)
    with pytest.raises(UserError, match=r"has scale, good, but this is w; begin with init"):
        scaling.update(optimiser, params, state, scaling.init(), params)
    with pytest.raises(UserError, match="but this is empty"):
        scaling.scaled(weft.ones(()), {})
