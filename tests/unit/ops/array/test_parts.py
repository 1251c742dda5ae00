"""Many tensors that are put together: parts of one tensor, and data that was computed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation
from weft.ops.graph.cache import PROGRAMS

X = np.arange(480, dtype=np.float32).reshape(10, 12, 4)

# What is read of X, place by place, and along which axis it is put together.
READS: list[tuple[str, Callable[[Any, int], Any], int]] = [
    ("rows", lambda x, i: x[i], 0),
    ("rows from the end", lambda x, i: x[-1 - i], 1),
    ("the same row", lambda x, i: x[3], 0),
    ("elements", lambda x, i: x[i, i + 1, 3 - i % 4], 0),
    ("middle axis", lambda x, i: x[:, 11 - i], -1),
    ("two axes apart", lambda x, i: x[i, :, i % 4], 1),
    ("with the axis kept", lambda x, i: x[i : i + 1, None, :, 2], 2),
    ("wider windows", lambda x, i: x[i : i + 2], 0),
    ("every second", lambda x, i: x[i, ::2], 0),
    ("not all alike", lambda x, i: x[i] if i else x[0] * 2, 0),
]


def put_together(x: Any, read: Callable[[Any, int], Any], axis: int, stack: Any) -> Any:
    return stack([read(x, i) for i in range(9)], axis=axis)


@pytest.mark.parametrize(("read", "axis"), [case[1:] for case in READS], ids=[c[0] for c in READS])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_parts_of_one_tensor_are_stacked(
    backend: str, read: Callable[[Any, int], Any], axis: int
) -> None:
    wanted = put_together(X, read, axis, np.stack)
    with weft.graph(backend=backend):
        x = weft.asarray(X)
        assert np.array_equal(put_together(x, read, axis, weft.stack).numpy(), wanted)
        traced = weft.jit(lambda x: put_together(x, read, axis, weft.stack))
        assert np.array_equal(traced(x).numpy(), wanted)


def test_parts_are_taken_by_one_instruction_and_other_places_are_the_same_program() -> None:
    x = weft.asarray(X)
    with weft.graph():
        first = weft.asarray([[x[i, j, 0] for j in range(4)] for i in range(8)])
        assert [i.op.mnemonic for i in first.program().main.body].count("take") == 1
        assert len(first.program().main.body) < 6
        weft.eval(first, weft.asarray([[x[j, i, 1] for j in range(4)] for i in range(8)]))
        before = PROGRAMS.statistics.compiled
        again = weft.asarray([[x[9 - j, i, 2] for j in range(4)] for i in range(8)])
        assert np.array_equal(again.numpy(), X[9:5:-1, :8, 2].T)
        assert PROGRAMS.statistics.compiled <= before + 1


def test_gradients_of_parts_add_up_and_batches_have_them() -> None:
    weights = np.arange(9, dtype=np.float32)

    def loss(x: Any) -> Any:
        return (weft.stack([x[i // 2, 1] for i in range(9)])[:, 0] * weights).sum()

    wanted = np.zeros_like(X)
    for i, weight in enumerate(weights):
        wanted[i // 2, 1, 0] += weight
    assert np.array_equal(weft.grad(loss)(weft.asarray(X)).numpy(), wanted)
    several = weft.vmap(loss)(weft.asarray(np.stack([X, -X])))
    assert np.allclose(
        several.numpy(), [(X[np.arange(9) // 2, 1, 0] * weights).sum() * s for s in (1, -1)]
    )


def test_what_is_computed_is_copied_and_nothing_is_compiled() -> None:
    losses = [weft.asarray(np.float32(i)) for i in range(300)]
    weft.eval(losses)
    before = PROGRAMS.statistics.compiled
    assert np.array_equal(weft.stack(losses).numpy(), np.arange(300))
    pieces = [weft.asarray(X[:, : i % 3]) for i in range(20)]
    joined = weft.concat(pieces, axis=1)
    assert np.array_equal(joined.numpy(), np.concatenate([X[:, : i % 3] for i in range(20)], 1))
    assert weft.concat(pieces, axis=None).shape == (joined.size,)
    assert PROGRAMS.statistics.compiled == before
    assert np.array_equal(weft.asarray([losses[:3]] * 4).numpy(), [[0, 1, 2]] * 4)


def test_what_is_copied_is_no_view_and_a_traced_function_keeps_its_captures() -> None:
    rows = [weft.asarray(X[0, i]) for i in range(8)]
    whole = weft.stack(rows)
    rows[0][0] = 7.0
    assert np.array_equal(whole.numpy(), X[0, :8])
    step = weft.jit(lambda x: weft.stack(rows) + x)
    assert step(weft.zeros(4)).numpy()[0, 0] == 7.0
    rows[0][0] = 9.0
    assert step(weft.zeros(4)).numpy()[0, 0] == 9.0


def test_mistakes_with_many_are_those_with_few() -> None:
    rows = [weft.zeros((2, 3))] * 8
    with pytest.raises(SpecViolation, match=r"tensor 0 \(2, 3\) and tensor 8 \(3,\) differ"):
        weft.stack([*rows, weft.zeros(3)])
    with pytest.raises(SpecViolation, match="axis"):
        weft.stack(rows, axis=5)
    x = weft.asarray(X)
    with pytest.raises(SpecViolation, match="axis"):
        weft.stack([x[i] for i in range(9)], axis=5)
    mixed = weft.stack([*rows, weft.ones((2, 3), dtype=weft.float64)])
    assert mixed.dtype is weft.float64
    with pytest.raises(weft.WeftError, match="tensor 0"):
        weft.asarray([[x[0, 0], x[0]]] * 8)
