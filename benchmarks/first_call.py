"""The first call: processor seconds until a program has run once, Weft beside jax.jit.

    python -m benchmarks.first_call [--lines TEXT,...]

Nothing is cached. Each library first compiles a program that is not shown, so that what it loads is
not counted. Times are what processors worked in this process (Weft's helpers are off), which others
who use the machine lengthen less than the clock. `LLVM, longest` is the kernel that took Weft's
LLVM longest, and `lines` its LLVM IR; no kernel is meant to take half a second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

os.environ["WEFT_CACHE"] = "off"
os.environ["WEFT_NUM_THREADS"] = "1"

from benchmarks.needed import need

need("jax")

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax import numpy as jnp  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import weft  # noqa: E402
from weft import functional  # noqa: E402
from weft.runtime import compilers  # noqa: E402
from weft.runtime.jit import compile_object  # noqa: E402

NCHW = ("NCHW", "OIHW", "NCHW")


@dataclass(frozen=True)
class Line:
    """One program, for Weft and for jax, over arrays of these shapes."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    weft: Callable[..., Any]
    jax: Callable[..., Any]
    dtype: str = "float32"
    compiled: bool = True
    """Whether the functions are compiled as a whole; others do what they do by themselves."""


def _jax_conv(x: Any, w: Any, stride: int, pad: int, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x, w, (stride, stride), [(pad, pad)] * 2, dimension_numbers=NCHW, feature_group_count=groups
    )


def _conv(name: str, x: tuple[int, ...], w: tuple[int, ...], stride: int, groups: int = 1) -> Line:
    pad = w[-1] // 2
    return Line(
        name,
        (x, w),
        lambda a, b: functional.conv2d(a, b, padding=pad, stride=stride, groups=groups),
        lambda a, b: _jax_conv(a, b, stride, pad, groups),
    )


def _weft_net(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    for w, stride in ((a, 1), (b, 2), (c, 2)):
        x = functional.relu(functional.conv2d(x, w, padding=1, stride=stride))
    return ((weft.mean(x, axis=(2, 3)) @ d) ** 2).sum()


def _jax_net(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    for w, stride in ((a, 1), (b, 2), (c, 2)):
        x = jax.nn.relu(_jax_conv(x, w, stride, 1))
    return ((x.mean((2, 3)) @ d) ** 2).sum()


SMALL = ("exp", "log", "sqrt", "sin", "cos", "tanh", "abs", "floor", "ceil", "square")


def _weft_small(*arrays: Any) -> Any:
    """50 programs: every function on arrays of five lengths."""
    return [weft.jit(getattr(weft, name))(x) for name in SMALL for x in arrays]


def _jax_small(*arrays: Any) -> Any:
    return [jax.jit(getattr(jnp, name))(x) for name in SMALL for x in arrays]


STEPS, SIDE = 300, 16


def _steps(x: Any) -> Any:
    """As long a program as a person writes by hand, on one number."""
    for n in range(STEPS):
        x = x * 1.01 + 0.5 if n % 2 else x - n
    return x


def _weft_table(x: Any) -> Any:
    return weft.asarray([[x[i] * j for j in range(SIDE)] for i in range(SIDE)])


def _jax_table(x: Any) -> Any:
    return jnp.asarray([[x[i] * j for j in range(SIDE)] for i in range(SIDE)])


def _fft(length: int) -> Line:
    return Line(f"fft of {length}", ((length,),), weft.fft.fft, jnp.fft.fft, "complex64")


LINES = (
    _conv("7x7 stride 2, 3 channels", (1, 3, 224, 224), (64, 3, 7, 7), 2),
    _conv("3x3, 64 to 128 at 28x28", (1, 64, 28, 28), (128, 64, 3, 3), 1),
    _conv("depthwise 3x3, 128 at 56x56", (1, 128, 56, 56), (128, 1, 3, 3), 1, 128),
    Line("product 1000^3", ((1000, 1000), (1000, 1000)), lambda x, y: x @ y, lambda x, y: x @ y),
    Line(
        "small convnet, gradient",
        ((8, 3, 32, 32), (32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (64, 10)),
        weft.grad(_weft_net, argnums=(1, 2, 3, 4)),
        jax.grad(_jax_net, argnums=(1, 2, 3, 4)),
    ),
    Line(
        "50 small ops", tuple((8 * n,) for n in range(1, 6)), _weft_small, _jax_small,
        compiled=False,
    ),
    *map(_fft, (64, 256, 1024)),
    Line("300 steps on a number", ((),), _steps, _steps),
    Line("16x16 computed numbers", ((SIDE,),), _weft_table, _jax_table, compiled=False),
)  # fmt: skip


@dataclass
class Longest:
    """The kernel that LLVM took longest for, measured where machine code is made."""

    seconds: float = 0.0
    lines: int = 0

    def compile_object(self, text: str) -> bytes:
        started = time.process_time()
        code = compile_object(text)
        taken = time.process_time() - started
        if taken > self.seconds:
            self.seconds, self.lines = taken, text.count("\n")
        return code


def taken(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(line: Line) -> tuple[float, float, Longest]:
    """Seconds of Weft and of jax, and Weft's longest kernel."""
    rng = np.random.default_rng(0)
    arrays = [np.abs(rng.standard_normal(shape)).astype(line.dtype) for shape in line.shapes]
    ours = [weft.asarray(array).to("cpu") for array in arrays]
    theirs = [jnp.asarray(array) for array in arrays]
    function = weft.jit(line.weft) if line.compiled else line.weft
    other = jax.jit(line.jax) if line.compiled else line.jax
    longest = Longest()
    with patch.object(compilers, "compile_object", longest.compile_object):
        mine = taken(lambda: jax.tree.map(np.asarray, function(*ours)))
    return mine, taken(lambda: jax.block_until_ready(other(*theirs))), longest


def warm_up() -> None:
    x = np.ones((40, 40), np.float32)
    weft.jit(lambda a: (a @ a).sum())(weft.asarray(x).to("cpu")).numpy()
    jax.block_until_ready(jax.jit(lambda a: (a @ a).sum())(jnp.asarray(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", default="")
    wanted = parser.parse_args().lines.split(",")
    warm_up()
    table = Table("program", "weft s", "jax s", "jax / weft", "LLVM, longest s", "lines")
    for line in LINES:
        if any(part in line.name for part in wanted):
            mine, other, longest = measure(line)
            cells = f"{mine:.2f}", f"{other:.2f}", f"{other / mine:.2f}", f"{longest.seconds:.2f}"
            table.add_row(line.name, *cells, f"{longest.lines:,}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
