"""Compiled programs as C functions: called through ctypes, and linked into a C program."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.driver.compile import compile_program
from weft.foundation.errors import Unimplemented
from weft.ptir import Builder, Program
from weft.runtime.model import NativeModel

Array = NDArray[Any]
Run = Callable[..., int]


@contextmanager
def initialised(model: NativeModel, threads: int = 1) -> Iterator[Run]:
    """A function that runs the model on arrays."""
    init = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(model.init)
    table = ctypes.POINTER(ctypes.c_void_p)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, table, table, ctypes.c_int64)(model.run)
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(model.free)
    block = init(threads)
    assert block

    def call(inputs: Sequence[Array], outputs: Sequence[Array], seed: int = 0) -> int:
        tables = [
            (ctypes.c_void_p * max(1, len(side)))(*(a.ctypes.data for a in side))
            for side in (inputs, outputs)
        ]
        answer: int = run(block, *tables, seed)
        return answer

    yield call
    free(block)


def mlp() -> Program:
    b = Builder()
    x, w = b.param("f32", [5, 7]), b.param("f32", [7, 9])
    table = np.arange(9, dtype=np.float32).reshape(1, 9) ** 2
    y = b.gelu(x @ w + b.broadcast_to(b.constant(table), [5, 9]))
    return b.build(b.softmax(y), b.reduce_sum(y, [0]))


def loop() -> Program:
    """Halves a number until it is small."""
    b = Builder()
    x = b.param("f32", [])

    def going(r: Any, y: Any) -> Any:
        return y > 1.0, y

    return b.build(b.while_(going, lambda r, y: y * 0.5, x))


def noise() -> Program:
    b = Builder()
    x = b.param("f32", [33])
    return b.build(x + b.emit("rng_uniform", shape=[33], dtype="f32"))


def given(program: Program, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    found = []
    for kind in program.main.parameters:
        assert isinstance(kind, weft.ptir.TensorType)
        values = rng.random(kind.static_shape) * 10
        found.append(np.asarray(values.astype(kind.dtype.numpy)))
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("program", [mlp, noise, loop])
def test_the_functions_compute_what_the_executable_does(
    program: Callable[[], Program], threads: int
) -> None:
    made = compile_program(program(), "cpu")
    with initialised(NativeModel(made.artifact), threads) as run:
        for seed in (0, 7):
            inputs = given(made.source, seed)
            want = made.run(inputs, seed=seed)
            got = [np.zeros_like(a) for a in want]
            assert run(inputs, got, seed) == 0
            assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


def updated() -> Program:
    """A table with a row replaced."""
    b = Builder()
    x, row, at = b.param("f32", [6, 3]), b.param("f32", [1, 3]), b.param("si32", [2])
    return b.build(b.emit("dynamic_update_slice", x, row, at, sizes=[1, 3]))


def test_state_stays_in_the_block() -> None:
    model = NativeModel(compile_program(updated(), "cpu", state=[0]).artifact)
    row, got = np.ones((1, 3), np.float32), np.zeros((6, 3), np.float32)
    with initialised(model) as run, initialised(model) as other:
        for turn in range(3):
            assert run([row, np.array([turn, 0], np.int32)], [got]) == 0
            assert got.sum() == 3 * (turn + 1)
        assert other([row, np.array([5, 0], np.int32)], [got]) == 0
        assert got.sum() == 3


def test_an_updated_input_is_delivered() -> None:
    made = compile_program(updated(), "cpu", donate=[0])
    table, got = np.zeros((6, 3), np.float32), np.full((6, 3), 9, np.float32)
    with initialised(NativeModel(made.artifact)) as run:
        assert run([table, np.ones((1, 3), np.float32), np.array([2, 0], np.int32)], [got]) == 0
    assert np.flatnonzero(got.sum(1)).tolist() == [2]


def test_a_violation_is_the_number_of_its_step() -> None:
    b = Builder()
    x, y = b.param("si32", [3]), b.param("si32", [3])
    made = compile_program(b.build(b.emit("div", x, y)), "cpu")
    x_given, got = np.array([6, 7, 8], np.int32), np.zeros(3, np.int32)
    with initialised(NativeModel(made.artifact)) as run:
        assert run([x_given, np.array([1, 0, 2], np.int32)], [got]) == 1
        assert run([x_given, np.array([1, 7, 2], np.int32)], [got]) == 0
    assert got.tolist() == [6, 1, 4]


def test_a_program_with_a_host_step_is_refused() -> None:
    b = Builder()
    x = b.param("f32", [3, 3])
    made = compile_program(b.build(b.emit("cholesky", x)), "cpu")
    with pytest.raises(Unimplemented, match="it runs on the host, and C code has no host to call"):
        NativeModel(made.artifact)


MAIN = """\
#include <stdio.h>
#include "model.h"
int main(void) {
    float x[2] = {1.5f, -2.0f}, y[2];
    void *inputs[] = {x}, *outputs[] = {y};
    void *model = model_init(2);
    if (model == 0 || model_run(model, inputs, outputs, 0) != 0) return 1;
    model_free(model);
    printf("%g %g\\n", y[0], y[1]);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_objects_link_into_a_c_program(tmp_path: Path) -> None:
    b = Builder()
    x = b.param("f32", [2])
    files = NativeModel(compile_program(b.build(x * x), "cpu").artifact).write(tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    objects = [str(path) for path in files if path.suffix == ".o"]
    sources = [str(tmp_path / "main.c"), *objects]
    subprocess.run(["cc", "-o", str(tmp_path / "main"), *sources, "-lpthread"], check=True)
    done = subprocess.run([str(tmp_path / "main")], check=True, capture_output=True, text=True)
    assert done.stdout == "2.25 4\n"
