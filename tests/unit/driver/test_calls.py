"""Calling what was compiled: parameters given once, programs prepared once, little Python run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.python_calls import python_calls
from weft.driver import cpu, reference
from weft.driver.backends import get_backend
from weft.driver.execute import prepare
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program

Array = NDArray[Any]


def dense(rows: int | str = 4) -> Program:
    """`x @ w + b`."""
    b = Builder("dense")
    x, w, bias = b.param("f32", [rows, 8]), b.param("f32", [8, 16]), b.param("f32", [16])
    y = x @ w
    return b.build(y + b.broadcast_to(bias, y.shape))


def add() -> Program:
    b = Builder("add")
    return b.build(b.param("f32", [16]) + b.param("f32", [16]))


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def close(got: Array, want: Array) -> bool:
    return bool(np.allclose(got, want, rtol=1e-5, atol=1e-5))


# -- parameters ----------------------------------------------------------------------------------


def test_two_holders_of_parameters_do_not_mix() -> None:
    executable = weft.compile(dense(), params=[1, 2])
    (x, other), first, second = (
        arrays((4, 8), (4, 8)),
        arrays((8, 16), (16,), seed=1),
        arrays((8, 16), (16,), seed=2),
    )
    one, two = executable.bind(first), executable.bind(second)
    for data in (x, other, x):
        assert close(one(data)[0], data @ first[0] + first[1])
        assert close(two(data)[0], data @ second[0] + second[1])
        assert close(executable(data, *first)[0], data @ first[0] + first[1])


def test_bound_parameters_are_converted_once_and_data_as_ever() -> None:
    executable = weft.compile(dense(), params=[1, 2])
    x, w, bias = arrays((4, 8), (8, 16), (16,))
    run = executable.bind([np.asfortranarray(w), bias.tolist()])
    assert close(run(x)[0], x @ w + bias)
    assert close(run(np.asfortranarray(x))[0], x @ w + bias)
    assert close(run(x.tolist())[0], x @ w + bias)
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 8)
    assert not unaligned.flags.aligned
    assert close(run(unaligned)[0], x @ w + bias)


def test_a_bound_program_takes_any_size_of_its_data() -> None:
    executable = weft.compile(dense("?B"), params=[1, 2])
    x, w, bias = arrays((9, 8), (8, 16), (16,))
    run = executable.bind([w, bias])
    for rows in (3, 9, 3):
        assert close(run(x[:rows].copy())[0], x[:rows] @ w + bias)
    assert len(executable.clusters) == 2


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (1, "bind takes the 2 parameters but got 1"),
        (3, "bind takes the 2 parameters but got 3"),
        ([np.zeros((8, 16)), np.zeros(16, np.float32)],
         "input 1 has dtype float64, but the program takes f32[8, 16]; "
         "convert it with .astype first"),
        ([np.zeros((8, 16), np.float32), np.zeros(15, np.float32)],
         "input 2 has shape [15], but the program takes f32[16]"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused_when_they_are_bound(params: Any, message: str) -> None:
    executable = weft.compile(dense(), params=[1, 2])
    given = arrays(*[(8, 16)] * params) if isinstance(params, int) else params
    with pytest.raises(UserError) as caught:
        executable.bind(given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "this takes 1 data inputs but got 0"),
        ([np.zeros((4, 8), np.int32)],
         "input 0 has dtype int32, but the program takes f32[4, 8]; convert it with .astype first"),
        ([np.zeros((5, 8), np.float32)],
         "input 0 has shape [5, 8], but the program takes f32[4, 8]"),
        ([np.zeros((4, 8), ">f4")],
         "input 0 has dtype >f4, but the program takes f32[4, 8]; convert it with .astype first"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_also_after_right_data(data: list[Array], message: str) -> None:
    x, w, bias = arrays((4, 8), (8, 16), (16,))
    run = weft.compile(dense(), params=[1, 2]).bind([w, bias])
    run(x)
    with pytest.raises(UserError) as caught:
        run(*data)
    assert str(caught.value) == message


# -- preparing once ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [cpu.CpuBackend, reference.ReferenceBackend])
def test_running_a_program_again_does_not_compile_it_again(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Program] = []
    plain = backend.compile

    def counting(self: Any, program: Program) -> Any:
        compiled.append(program)
        return plain(self, program)

    monkeypatch.setattr(backend, "compile", counting)
    program = dense("?B")
    x, w, bias = arrays((9, 8), (8, 16), (16,))
    for rows in (3, 9, 3, 9):
        (got,) = weft.run(program, [x[:rows], w, bias], backend=backend.name)
        assert close(got, x[:rows] @ w + bias)
    assert len(compiled) == 2


def test_many_programs_do_not_take_each_others_place() -> None:
    for size in range(1, 40):
        b = Builder("scaled")
        (got,) = weft.run(b.build(b.param("f32", [size]) * float(size)), [np.ones(size, "f4")])
        assert got.tolist() == [float(size)] * size


# -- little Python -------------------------------------------------------------------------------


def test_a_call_with_bound_parameters_runs_little_python() -> None:
    """About 45 calls, 25 µs."""
    x, w, bias = arrays((4, 8), (8, 16), (16,))
    run = weft.compile(dense(), params=[1, 2]).bind([w, bias])
    assert python_calls(lambda: run(x)) < 55


@pytest.mark.parametrize(("name", "most"), [("reference", 85), ("cpu", 60)])
def test_running_a_prepared_program_adds_little(name: str, most: int) -> None:
    x, y = arrays((16,), (16,))
    prepared = prepare(add(), get_backend(name))
    assert np.array_equal(prepared.execute([x, y])[0], x + y)
    assert python_calls(lambda: prepared.execute([x, y])) < most
