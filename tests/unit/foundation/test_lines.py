"""Which line of the user's code an instruction or an error comes from."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import Place, place_of, shown

X = np.ones((2, 3), np.float32)


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def number(tensor: Any) -> int:
    place = place_of(tensor._node.line)
    assert place is not None
    assert place.file == __file__
    return place.number


def test_every_way_to_make_an_instruction_knows_its_line() -> None:
    x = weft.asarray(X)
    made = [(x + x, here())]
    made += [(weft.exp(x), here())]
    made += [(x.sum(axis=0), here())]
    made += [(F.softmax(x), here())]
    made += [(x[0], here())]
    made += [(x @ x.T, here())]
    made += [(x < 0, here())]
    made += [(-x, here())]
    made += [(F.layer_norm(x), here())]
    made += [(weft.cond(weft.asarray(True), lambda: x, lambda: x), here())]
    for tensor, line in made:
        assert number(tensor) == line


def test_data_has_no_line() -> None:
    assert weft.asarray(X)._node.line is None
    assert place_of(None) is None
    assert shown(None) == ""
    assert str(Place("/a/b/model.py", 7)) == "model.py:7"


def test_a_call_over_several_lines_shows_one_of_them() -> None:
    start = here()
    tensor = F.softmax(
        weft.asarray(X),
        axis=0,
    )
    assert start < number(tensor) <= here()


def test_a_program_carries_its_lines() -> None:
    x = weft.asarray(X)
    program = (weft.exp(x) + x).program()
    assert set(program.locations.values()) == {f"test_lines.py:{here() - 1}"}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x + weft.ones((5,)),
        lambda x: weft.sum(x, axis=7),
        lambda x: F.softmax(x, axis=7),
        lambda x: x[9],
        lambda x: x.reshape((5,)),
        lambda x: x @ x,
        lambda x: weft.concat([x, x[0]]),
    ],
)
def test_errors_carry_the_line(wrong: Any) -> None:
    with pytest.raises((SpecViolation, UserError, IndexError)) as caught:
        wrong(weft.asarray(X))
    assert f"test_lines.py:{wrong.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("file", ["one.py", "two.py"])
def test_the_same_text_in_two_files_keeps_its_own_file(file: str) -> None:
    """Code objects compare equal without regard to their files."""
    names = {"weft": weft, "x": X}
    exec(compile("y = weft.asarray(x) + 1", file, "exec"), names)
    assert shown(names["y"]._node.line) == f"{file}:1"  # type: ignore[attr-defined]
