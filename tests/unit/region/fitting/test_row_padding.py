"""Rows between products that begin at whole lines of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from tests.support.long_rows import softmax_between
from weft.codegen.gpu.ir import values
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program
from weft.region.fitting import aligned, row_padding
from weft.region.ir import Module, Pattern
from weft.region.text import from_json, to_json
from weft.region.verify import verify
from weft.testing.compare import compare


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_padding, "_LARGE", 1)
    monkeypatch.setattr(row_padding, "WORTH", 1)
    monkeypatch.setattr(aligned, "WORTH", 1)


def loss_of_rows(columns: int, rows: int = 16) -> Program:
    """The gradient of a loss over x @ w: rows, then a map of whole rows, then products."""
    b = Builder()
    x, w = b.param("bf16", [rows, 64]), b.param("bf16", [64, columns])
    scale = b.reduce_sum(b.param("f32", [rows, 8]), [0, 1])
    scores = b.cast(b.dot_general(x, w, contract=([1], [0])), "f32")
    shape = [rows, columns]
    total = b.reduce_sum(b.exp(scores), [1])
    slope = b.exp(scores) * b.broadcast_to(b.reshape(b.reciprocal(total), [rows, 1]), shape)
    rounded = b.cast(slope * b.broadcast_to(scale, shape), "bf16")
    loss = b.reduce_sum(b.log(total), [0])
    return b.build(
        loss,
        b.dot_general(rounded, w, contract=([1], [1])),
        b.dot_general(x, rounded, contract=([0], [0])),
    )


def regions(program: Program) -> Module:
    module = through_stages(program, "sm90")["region"]
    assert isinstance(module, Module)
    return module


@pytest.mark.parametrize("columns", [37, 129, 260])
def test_odd_rows_have_room_and_nothing_is_copied(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    small(monkeypatch)
    program = softmax_between(columns)
    module = regions(program)
    assert [k.pattern for k in module.kernels].count(Pattern.MAP) == 1, "w alone is copied"
    roomy = [t for t in module.tensors.values() if t.room]
    assert roomy
    assert all(t.shape[-1] % 8 == 0 and t.extents[-1] == columns for t in roomy)
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("columns", one_in(2, [37, 1037]))
def test_maps_of_rows_with_room_agree(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    small(monkeypatch)
    program = loss_of_rows(columns)
    assert [t for t in regions(program).tensors.values() if t.room]
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_rows_take_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    code = InterpretedGpu("sm90").compile(softmax_between(1037)).compilation["gpu"]
    (row,) = (code.kernels[found.symbol] for n, found in code.launches.items() if "row" in n)
    assert any(isinstance(s, values.LoadVector) for s in row.body)


@pytest.mark.parametrize(
    ("columns", "dtype", "handed_out"),
    [(64, "bf16", False), (37, "f32", False), (37, "bf16", True)],
)
def test_others_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, columns: int, dtype: str, handed_out: bool
) -> None:
    small(monkeypatch)
    module = regions(softmax_between(columns, dtype, handed_out=handed_out))
    assert not [t for n, t in module.tensors.items() if t.room and n in module.outputs]
    assert handed_out or not [t for t in module.tensors.values() if t.room]


def test_room_is_written_down_and_kept_from_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    module = regions(softmax_between(37))
    assert from_json(to_json(module)).tensors == module.tensors
    roomy = next(name for name, found in module.tensors.items() if found.room)
    for name, changes in (
        (module.inputs[0], {"room": 3}),
        (roomy, {"room": -3}),
        (roomy, {"room": 3, "shape": ()}),
    ):
        wrong = module.tensors | {name: replace(module.tensors[name], **changes)}
        with pytest.raises(SpecViolation, match=r"cannot have rows with room for -?3"):
            verify(replace(module, tensors=wrong))
