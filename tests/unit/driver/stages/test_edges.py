"""What is said of every edge of a program: where it went, what that takes, and the next best."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.edges import edge_lines
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")
FILE = "test_edges.py"


def edges(
    function: Any, *shapes: tuple[int, ...], target: str = "cpu", level: int = 2
) -> list[str]:
    arrays = [weft.tensor(np.zeros(shape, np.float32)) for shape in shapes]
    program = weft.jit(function).program(*arrays)
    made = Compilation(program, target_named(target), make_signature(program), {}, level)
    return edge_lines(run_pipeline(made, "plan"))


def prices(line: str) -> list[float]:
    return [float(found) for found in re.findall(r"([\d.]+) µs", line)]


def blur(x: Any) -> Any:
    h = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3
    return (h[:-2] + h[1:-1] + h[2:]) / 3


def test_a_stage_has_its_place_halo_bytes_and_next_best() -> None:
    (line,) = (line for line in edges(blur, (600, 600)) if "a stage of" in line)
    place, kept = r"at i0: rows 0 to 2 of it for each row", r"3 kept in 7,176 bytes"
    found = re.fullmatch(rf"v\d+ \({FILE}:\d+\): a stage of staged\d, {place}, {kept}; .*", line)
    assert found
    taken, other = prices(line)
    assert taken < other


def test_a_stage_of_a_tile_has_its_columns() -> None:
    lines = [line for line in edges(lambda x: blur(blur(x)), (600, 30_000)) if "a stage of" in line]
    kept = "rows 0 to 4 of it for each row, 4,356 columns of it for 4,352, 3 kept in 52,272 bytes"
    assert kept in lines[0]


def test_what_is_read_once_is_inlined_with_the_price_of_storing_it() -> None:
    lines = edges(lambda x: blur(blur(x)), (1500, 1500))
    line = next(line for line in lines if "computed where it is read" in line)
    taken, other = prices(line)
    assert taken < other
    assert "; stored " in line


def test_what_must_be_stored_has_the_reason() -> None:
    lines = edges(lambda x, w: weft.exp(x) @ w, (64, 64), (64, 64))
    (line,) = lines
    assert re.fullmatch(rf"v\d+ \({FILE}:\d+\): stored by map0; a contraction reads it", line)


def test_what_is_dear_to_compute_again_is_stored_with_both_prices() -> None:
    def both(x: Any, w: Any) -> Any:
        y = x @ w
        return weft.sum(weft.exp(y), axis=1), weft.max(y, axis=0)

    line = next(line for line in edges(both, (64, 64), (64, 64)) if "stored by matmul0" in line)
    assert "; 2 kernels read it" in line


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_equal_layers_are_said_once(target: str) -> None:
    def layers(count: int) -> Any:
        def function(x: Any, *weights: Any) -> Any:
            for w in weights:
                x = weft.tanh(x * 2 + 1) @ w
            return x

        return edges(function, *[(64, 64)] * (count + 1), target=target)

    few, many = layers(4), layers(12)
    assert len(few) == len(many)
    assert sum(", and 2 like it: " in line for line in few) >= 2
    assert sum(", and 10 like it: " in line for line in many) >= 2


def test_lines_of_other_places_are_not_alike() -> None:
    def function(x: Any, w: Any) -> Any:
        y = weft.exp(x) @ w
        return weft.exp(y) @ w

    stored = [line for line in edges(function, (64, 64), (64, 64)) if "stored by" in line]
    assert len({re.search(rf"{FILE}:\d+", line)[0] for line in stored}) == 2  # type: ignore[index]


def test_where_nothing_is_fused_every_edge_is_stored() -> None:
    lines = edges(blur, (40, 80), level=0)
    assert lines
    assert all("stored by" in line and "nothing is fused" in line for line in lines)


def test_exact_fusion_has_edges_too() -> None:
    lines = edges(lambda x: blur(blur(x)), (600, 600), level=3)
    assert sum("a stage of" in line for line in lines) == 3
