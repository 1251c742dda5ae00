"""Windows of single channels are summed over a copy of the lines that they see."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.driver.compile import compile_program
from weft.plan import line_windows
from weft.ptir import Program
from weft.region.fitting import phases
from weft.target.cpu import host
from weft.target.target import Target
from weft.testing.compare import compare

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a line of a vector": ((2, 3, 14, 14), (3, 3), {"padding": 1}),
    "whole vectors": ((1, 2, 9, 32), (5, 5), {"padding": 2}),
    "short lines": ((1, 5, 9, 7), (5, 5), {"padding": 2}),
    "steps of two": ((2, 3, 13, 18), (3, 3), {"stride": 2, "padding": 1}),
    "steps of three": ((1, 3, 13, 22), (3, 3), {"stride": 3}),
    "steps and distant taps": ((1, 2, 11, 17), (2, 2), {"stride": 3, "dilation": 2, "padding": 2}),
    "distant taps": ((1, 3, 11, 12), (3, 3), {"dilation": 2, "padding": 2}),
    "more beside than inside": ((1, 2, 3, 5), (3, 4), {"padding": (2, 3)}),
    "taps across lines alone": ((1, 3, 9, 20), (3, 1), {"padding": (1, 0)}),
    "taps along lines alone": ((1, 3, 4, 20), (1, 3), {}),
    "one axis": ((2, 3, 50), (4,), {"stride": 3}),
    "a long line": ((1, 2, 500), (5,), {"padding": 2}),
    "three axes": ((1, 2, 4, 5, 6), (2, 3, 2), {"padding": 1}),
}


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")


def depthwise(name: str, dtype: str = "f32") -> tuple[Program, list[Any]]:
    """A layer with what is behind it, some of which reads as many elements as it has results."""
    shape, window, options = CASES[name]
    channels = shape[1]
    conv = getattr(F, f"conv{len(window)}d")

    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return F.relu(conv(x, w, b, groups=channels, **options)) + r

    source = np.random.default_rng(0)
    x, w, b = (
        weft.tensor(source.standard_normal(s), dtype=dtype)
        for s in (shape, (channels, 1, *window), (channels,))
    )
    like = conv(x, w, b, groups=channels, **options)
    r = weft.tensor(source.standard_normal(like.shape), dtype=dtype)
    given = (x, w, b, r)
    return weft.jit(layer).program(*given), [np.asarray(each) for each in given]


def of_width(bits: int, registers: int, *features: str) -> Target:
    """This machine, said to have other vectors."""
    limits = replace(host().limits, vector_bits=bits, vector_registers=registers)
    return replace(host(), features=host().features | set(features), limits=limits)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_lines_of_windows_agree(name: str, dtype: str) -> None:
    program, given = depthwise(name, dtype)
    assert '"lines": 0' not in weft.compile(program, "cpu").stages["plan"]
    report = compare(program, given, "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", CASES)
def test_bands_of_lines_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for few lines a plane is several pieces, the last of them smaller."""
    monkeypatch.setattr(line_windows, "BOARD_BYTES", 256)
    monkeypatch.setattr(line_windows, "_LINES", 2)
    program, given = depthwise(name)
    report = compare(program, given, "cpu")
    assert report.agrees, str(report)


def test_planes_of_few_channels_are_several_pieces() -> None:
    x, w = weft.zeros((1, 2, 112, 20)), weft.zeros((2, 1, 3, 3))
    layer = weft.jit(lambda x, w: F.conv2d(x, w, padding=1, groups=2))
    source = compile_program(layer.program(x, w), of_width(512, 32)).stages["cpu"]
    assert " pieces=16\n" in source


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bits", [128, 256])
def test_narrower_vectors_agree(name: str, bits: int) -> None:
    program, given = depthwise(name)
    (found,) = compile_program(program, of_width(bits, 16)).run(given)
    (wanted,) = weft.run(program, given, backend="reference")
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("first", "last"), [(False, True), (True, False), (False, False)])
def test_images_and_results_may_have_their_channels_last(first: bool, last: bool) -> None:
    """Lines are copied and stored element by element where they do not lie side by side."""
    back, front = (0, 2, 3, 1), (0, 3, 1, 2)

    def layer(x: Any, w: Any) -> Any:
        image = x if first else weft.permute_dims(x, front)
        y = F.conv2d(image, w, padding=2, groups=6)
        return weft.permute_dims(y, back) if last else y

    source = np.random.default_rng(1)
    shape = (2, 6, 9, 11) if first else (2, 9, 11, 6)
    given = [weft.tensor(source.standard_normal(s), dtype="f32") for s in (shape, (6, 1, 5, 5))]
    program = weft.jit(layer).program(*given)
    assert '"lines": 0' not in weft.compile(program, "cpu").stages["plan"]
    report = compare(program, [np.asarray(each) for each in given], "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    ("shape", "window"),
    [((1, 4, 8, 2), (3, 3)), ((1, 4, 8, 9), (1, 1)), ((1, 1, 2, 300_000), (1, 3))],
    ids=["short lines", "a single tap", "lines that no cache holds"],
)
def test_other_windows_are_left_alone(shape: tuple[int, ...], window: tuple[int, ...]) -> None:
    channels = shape[1]
    given = (weft.zeros(shape), weft.zeros((channels, 1, *window)))
    layer = weft.jit(lambda x, w: F.conv2d(x, w, padding="same", groups=channels))
    plans = json.loads(weft.compile(layer.program(*given), "cpu").stages["plan"])["plans"]
    assert not any(plan.get("lines") for plan in plans)


GRADIENTS: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "unit steps": ((3, 4, 9, 11), 3, {"padding": 1}),
    "steps of two": ((2, 4, 12, 18), 5, {"padding": 2, "stride": 2}),
    "many lines": ((1, 2, 40, 40), 3, {"padding": 1}),
    "as long as lines": ((2, 3, 7, 7), 7, {"padding": 3}),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of filters are windows as large as results, with an image for each of a batch; by
    steps of two an image's are windows whose results lie apart."""
    monkeypatch.setattr(phases, "_WORTH_OF_ROWS", 1)
    shape, window, options = GRADIENTS[name]
    channels = shape[1]
    source = np.random.default_rng(2)
    x, w = (source.standard_normal(s) for s in (shape, (channels, 1, window, window)))
    given = [weft.tensor(each, dtype="f32") for each in (x, w)]

    def loss(x: Any, w: Any) -> Any:
        return weft.sum(weft.tanh(F.conv2d(x, w, groups=channels, **options)))

    program = weft.jit(weft.grad(loss, (0, 1))).program(*given)
    document = json.loads(weft.compile(program, "cpu").stages["plan"])
    lines = {plan["kernel"]: plan.get("lines") for plan in document["plans"]}
    assert sum(bool(lines[key]) for key in document["kernels"].values()) >= 3
    report = compare(program, [np.asarray(each) for each in given], "cpu")
    assert report.agrees, str(report)


def test_what_is_no_number_stays_in_its_windows() -> None:
    program, (x, w, b, r) = depthwise("steps of two")
    x, w = x.copy(), w.copy()
    x[1, 2, 5, 7], x[0, 1, 0, 0], w[2, 0, 1, 1] = np.inf, np.nan, -np.inf
    report = compare(program, [x, w, b, r], "cpu")
    assert report.agrees, str(report)


def test_an_element_is_loaded_once_for_all_lines_that_see_it() -> None:
    """The sums ask for nothing, and every one of them is in a register."""
    program, _ = depthwise("a line of a vector")
    source = compile_program(program, of_width(512, 32, "avx2", "avx512f")).stages["cpu"]
    copied, summed = source.split("  init ", 1)
    assert " if " in copied
    assert "unrolled line" in summed
    board = source.count("\nbuffer ")
    loads = re.findall(rf"load \w+ = b{board}\[.*", summed)
    assert loads
    assert not any(" if " in line for line in loads)
    stores = re.findall(r"store b\d+\[.*", summed)
    assert stores
    assert all(store.endswith("< 14") for store in stores)


def test_stores_beyond_a_line_are_refused() -> None:
    """What an edited routine stores is verified: a guard that lets a lane too many through."""
    program, _ = depthwise("a line of a vector")
    wide = of_width(512, 32, "avx2", "avx512f")
    source = compile_program(program, wide).stages["cpu"]
    same = compile_program(program, wide, overrides={"cpu": source})
    assert same.stages["cpu"] == source
    with pytest.raises(weft.SpecViolation):
        compile_program(program, wide, overrides={"cpu": source.replace(" < 14\n", " < 15\n")})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lines": 65}, "lines is 65; it must be from 1 to 64"),
        ({"keep_row": True}, "keep_row=true has no effect"),
        ({"across": True}, "lines of windows are neither kept nor added up across"),
        ({"accumulators": 16}, "9 lines of 16 vectors; 64 vectors is the most"),
    ],
)
def test_plans_that_cannot_be_carried_out_are_refused(change: dict[str, Any], why: str) -> None:
    program, _ = depthwise("short lines")
    document = json.loads(weft.compile(program, "cpu").stages["plan"])
    document["plans"][0] |= change
    with pytest.raises(weft.WeftError, match=re.escape(why)):
        weft.compile(program, "cpu", overrides={"plan": json.dumps(document)})
