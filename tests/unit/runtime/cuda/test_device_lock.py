"""Losses of large products in turns, on a GPU made of the dialect's interpreter, against the
reference; and what they take of its memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.gpu_machine import Machine, MachineBackend
from weft import functional as F
from weft.driver import legalise
from weft.foundation.errors import SpecViolation
from weft.ptir import Program
from weft.ptir.products_in_turns import TurnSizes
from weft.region.fitting import join_row_folds
from weft.testing.compare import compare

ROWS, DEPTH, CLASSES = 192, 16, 80


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = TurnSizes(least=2 * ROWS * CLASSES, piece=2 * 16 * CLASSES, summing=64)
    monkeypatch.setattr(legalise, "TURN_SIZES", sizes)


def loss(x: Any, w: Any, y: Any) -> weft.Tensor:
    return F.cross_entropy(F.linear(x, w), y, ignore_index=3)


def program(dtype: str, *, both: bool, classes: int = CLASSES) -> Program:
    given = weft.value_and_grad(loss, (0, 1)) if both else loss
    x, w = (weft.zeros((n, DEPTH), dtype=dtype) for n in (ROWS, classes))
    found: Program = weft.jit(given).program(x, w, np.zeros(ROWS, np.int32))
    return found


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "bf16"]))
@pytest.mark.parametrize("both", one_in(2, [True, False]))
def test_a_loss_in_turns_agrees(
    gpu: Machine, backend: MachineBackend, dtype: str, both: bool
) -> None:
    made, rng = program(dtype, both=both), np.random.default_rng(3)
    kinds = [kind.dtype.numpy for kind in made.main.parameters]  # type: ignore[union-attr]
    x, w = (rng.standard_normal((n, DEPTH)).astype(kinds[0]) for n in (ROWS, CLASSES))
    inputs = [x, w, rng.integers(0, 9, ROWS).astype(np.int32)]
    report = compare(made, inputs, backend)
    assert report.agrees, str(report)


def test_the_logits_of_a_turn_are_all_that_is_stored() -> None:
    executable = weft.compile(program("bf16", both=True), target="sm90")
    (cluster,) = executable.clusters.values()
    (body,) = cluster.compilation.bodies.values()
    sizes = [t.bytes for t in cluster.compilation["region"].tensors.values()]
    assert max(sizes) < 2 * ROWS * CLASSES
    stored = {t.shape for t in body["region"].tensors.values() if t.shape[-1:] == (CLASSES,)}
    assert stored == {(64, CLASSES), (DEPTH, CLASSES)}


def test_a_loss_alone_stores_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of rows are picked from and summed behind the product, had it many more of them."""
    monkeypatch.setattr(join_row_folds, "_seconds_apart", lambda *_: math.inf)
    executable = weft.compile(program("bf16", both=False, classes=384), target="sm90")
    (cluster,) = executable.clusters.values()
    (body,) = cluster.compilation.bodies.values()
    assert not [t for t in body["region"].tensors.values() if t.shape[1:] == (384,)]


def test_a_target_that_is_no_class_stops_the_run(gpu: Machine, backend: MachineBackend) -> None:
    made = program("f32", both=True)
    x, w = (np.zeros((n, DEPTH), np.float32) for n in (ROWS, CLASSES))
    labels = np.zeros(ROWS, np.int32)
    labels[100] = CLASSES
    with pytest.raises(SpecViolation, match="GatherIndexOutOfBounds"):
        weft.run(made, [x, w, labels], backend=backend)
