"""compute-sanitizer over a small program for every GPU template: no bad access, no race.

    python -m tests.device.sanitize [--tools memcheck,racecheck] [--programs TEXT]

Starts itself once under each tool; every program runs there and is compared with the reference. It
needs a GPU and CUDA's compute-sanitizer on the PATH, and says so where one of them is missing. Of
the other tools, synccheck finds nothing either; initcheck does not see what the copy engine stores,
and reports it where it is read: at the copy of a result to the host, and where the gradients of
attention read its result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import CASES as ATTENTIONS
from tests.support.gpu_attention import FEW, GRADIENTS
from tests.support.gpu_codes import CASES as CODES
from tests.support.gpu_convolutions import CASES, COPIED, GROUPED, UNEVEN
from tests.support.gpu_planes import Case as Pooled
from tests.support.norms import norm_back
from tests.support.written_attention import FACTORS, sinks_trained, stored, with_factors
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan import text
from weft.ptir import Builder, Program
from weft.ptir.gradient import vjp
from weft.runtime.cuda.driver import compute_capability
from weft.target.known import target_named

TOOL: Final = "compute-sanitizer"
TOOLS: Final = "memcheck,racecheck"
SECONDS: Final = 240
"""For one tool."""


def elementwise() -> Program:
    b = Builder()
    x = b.param("f32", [100, 3])
    return b.build(b.exp(x) * x)


def filters_turned() -> Program:
    b = Builder()
    return b.build(b.transpose(b.param("bf16", [24, 40, 3, 3]), [0, 2, 3, 1]))


def transpose() -> Program:
    b = Builder()
    return b.build(b.transpose(b.param("bf16", [96, 80]), [1, 0]))


def softmax(rows: int, columns: int) -> Callable[[], Program]:
    def made() -> Program:
        b = Builder()
        return b.build(b.softmax(b.param("f32", [rows, columns]), axis=1))

    return made


def columns() -> Program:
    b = Builder()
    return b.build(b.reduce_sum(b.param("f32", [512, 64]), [0]))


def product(dtype: str, m: int, n: int, k: int) -> Callable[[], Program]:
    def made() -> Program:
        b = Builder()
        x, w = b.param(dtype, [m, k]), b.param(dtype, [n, k])
        return b.build(b.gelu(b.dot_general(x, w, contract=([1], [1]))))

    return made


def product_with_sums() -> Program:
    """A product and the sums of its columns, as one kernel and what adds up its parts."""
    b = Builder()
    x, w = b.param("bf16", [2048, 64]), b.param("bf16", [64, 256])
    y = b.matmul(x, w)
    return b.build(y, b.reduce_sum(b.cast(y, "f32"), [0]))


def scatter() -> Program:
    b = Builder()
    x, updates = b.param("f32", [50, 16]), b.param("f32", [400, 16])
    places = b.constant((np.arange(6400) * 7 % 50).astype(np.int32).reshape(400, 16))
    return b.build(b.scatter_reduce(x, places, updates, axis=0, reduce="add"))


def sorted_scatter(dtype: str, width: int) -> Callable[[], Program]:
    """Onto zeros; half of the updates at one row."""

    def made() -> Program:
        b = Builder()
        places = np.arange(3000) * 7 % 50
        places[::2] = 20
        x = b.param(dtype, [3000, width])
        return b.build(b.segment_sum(x, b.constant(places), num_segments=50))

    return made


def sums_in_bins() -> Program:
    """Half of the updates in one bin, which has several pieces."""
    b = Builder()
    places = np.arange(20_000) * 7 % 1500
    places[::2] = 20
    x = b.param("f32", [20_000])
    return b.build(b.segment_sum(x, b.constant(places), num_segments=1500))


def counted() -> Program:
    b = Builder()
    x, updates = b.param("si32", [50, 16]), b.param("si32", [400, 16])
    places = b.constant((np.arange(6400) * 7 % 50).astype(np.int32).reshape(400, 16))
    return b.build(b.scatter_reduce(x, places, updates, axis=0, reduce="add"))


def running(length: int) -> Callable[[], Program]:
    def made() -> Program:
        b = Builder()
        return b.build(b.cumulative_sum(b.param("f32", [2, length]), axis=1))

    return made


def order(rows: int, length: int) -> Callable[[], Program]:
    def made() -> Program:
        b = Builder()
        return b.build(b.argsort(b.param("f32", [rows, length]), axis=1))

    return made


def rows_of_groups() -> Program:
    b = Builder()
    x, w = b.param("bf16", [150, 64]), b.param("bf16", [3, 64, 136])
    offsets = b.cumulative_sum(b.param("si32", [3]), axis=0)
    return b.build(b.emit("weft.grouped_matmul", x, w, offsets))


SLABS: Final = [
    {"tensor": "A", "where": "image", "at": "k.i", "pingpong": True},
    {"tensor": "B", "where": "smem", "at": "k.i", "pingpong": True},
]
"""Windows are read from slabs of their image, filters as they are otherwise."""
PROGRAMS: Final[dict[str, tuple[Callable[[], Program], str, dict[str, Any]]]] = {
    "map": (elementwise, "sm90", {}),
    "transposed": (transpose, "sm90", {}),
    "transposed, in runs": (filters_turned, "sm90", {}),
    "row, a warp": (softmax(37, 1000), "sm90", {}),
    "row, a block": (softmax(5, 6000), "sm90", {}),
    "rows, two to a thread": (
        softmax(37, 1000),
        "sm90",
        {"threads": 64, "rows_per_block": 2, "rows_per_thread": 2},
    ),
    "row, a cluster": (softmax(6, 8192), "sm90", {"threads": 256, "blocks_per_row": 4}),
    "row, a ring": (softmax(300, 4096), "sm90", {"threads": 256, "ring": 6}),
    "row, rings of a cluster": (
        softmax(100, 8192),
        "sm90",
        {"threads": 256, "blocks_per_row": 2, "ring": 6},
    ),
    "columns": (columns, "sm90", {}),
    "rows one after the other": (lambda: norm_back(528, 768), "sm90", {}),
    "rows of several warps": (lambda: norm_back(528, 1024, "f32"), "sm90", {}),
    "rows one after the other, a ring": (lambda: norm_back(2112, 4096), "sm90", {}),
    "fma": (product("f32", 65, 70, 33), "sm90", {}),
    "fma, a ring of three": (product("f32", 65, 70, 100), "sm90", {"stages": 3}),
    "sm80": (product("bf16", 130, 136, 72), "sm80", {}),
    "sm90": (product("bf16", 256, 384, 192), "sm90", {}),
    "sums in parts": (product("bf16", 256, 384, 512), "sm90", {"split_k": 3}),
    "sums of columns": (product_with_sums, "sm90", {}),
    "pool of planes": (Pooled((2, 64, 16, 72), (64, 64, 3, 3)).program, "sm90", {}),
    "windows of an image": (CASES["stride 2"].program, "sm90", {}),
    "windows of an image by warps": (CASES["stride 2"].program, "sm80", {}),
    "shared channels": (COPIED["three channels"].program, "sm90", {}),
    "slabs": (COPIED["three channels"].program, "sm90", {"cache": SLABS}),
    "filters of 24 channels": (lambda: UNEVEN["24 channels"].gradient(1), "sm90", {}),
    "filters of odd channels": (lambda: UNEVEN["both odd"].gradient(1), "sm80", {}),
    "groups of 8 channels": (GROUPED["8 channels, f16, stride 2"].program, "sm90", {}),
    "groups of 6 channels": (GROUPED["6 channels"].program, "sm90", {}),
    "rows of groups": (rows_of_groups, "sm90", {}),
    "rows of groups, gradients": (lambda: vjp(rows_of_groups(), (0, 1)), "sm90", {}),
    "attention": (ATTENTIONS["causal"].program, "sm90", {}),
    "attention, a mask": (ATTENTIONS["mask of truth values"].program, "sm90", {}),
    "attention of few queries": (FEW["eight queries, shared heads"].program, "sm90", {}),
    "gradients of attention": (GRADIENTS["causal"].gradients, "sm90", {}),
    "attention with sinks": (lambda: with_factors(FACTORS["sinks"]), "sm90", {}),
    "attention with sinks by warps": (lambda: with_factors(FACTORS["sinks"]), "sm80", {}),
    "gradients of sinks": (sinks_trained, "sm90", {}),
    "gradients of sinks by warps": (sinks_trained, "sm80", {}),
    "attention, a table": (lambda: stored("a bias from a table"), "sm90", {}),
    "attention, keys transposed": (lambda: stored("keys transposed"), "sm90", {}),
    "attention by warps": (ATTENTIONS["causal"].program, "sm80", {"tile_q": 128, "stages": 4}),
    "attention of few queries by warps": (FEW["one query, shared heads"].program, "sm80", {}),
    "weights of 4 bits": (CODES["halves of bytes"].program, "sm90", {}),
    "weights of 8 bits, one row": (CODES["one row"].program, "sm90", {}),
    "scatter": (scatter, "sm90", {}),
    "scatter of sorted updates": (sorted_scatter("f32", 1), "sm90", {}),
    "scatter of sorted rows": (sorted_scatter("bf16", 96), "sm90", {}),
    "scatter of integers": (counted, "sm90", {}),
    "sums in bins": (sums_in_bins, "sm90", {}),
    "running": (running(3000), "sm90", {}),
    "running, in parts": (running(20_000), "sm90", {}),
    "order, a warp": (order(30, 100), "sm90", {}),
    "order, a block": (order(3, 500), "sm90", {}),
    "order of long rows": (order(2, 20_000), "sm90", {}),
}
"""A program each, its target, and what of the plan of its last kernel is changed."""


def overrides(program: Program, target: str, changes: dict[str, Any]) -> dict[str, str]:
    """The planner's plans with changes to the last one."""
    if not changes:
        return {}
    found = Compilation(program, target_named(target), make_signature(program))
    plans = json.loads(text.dumps(run_pipeline(found, until="plan")["plan"]))
    plans["plans"][-1].update(changes)
    return {"plan": json.dumps(plans)}


def wrong(part: str) -> list[str]:
    """Run the programs with `part` in their names; which do not agree with the reference."""
    found = []
    for name in [name for name in PROGRAMS if part in name]:
        make, target, changes = PROGRAMS[name]
        program = make()
        inputs = inputs_for(program, 1)
        executable = weft.compile(program, target, overrides=overrides(program, target, changes))
        got = executable.run(inputs)
        want = weft.run(program, inputs, backend="reference")
        for mine, theirs in zip(got, want, strict=True):
            first, second = (np.asarray(array).astype(np.float64) for array in (mine, theirs))
            if not np.allclose(first, second, rtol=2e-2, atol=1e-2):
                found.append(name)
        print(f"  {name}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", default=TOOLS)
    parser.add_argument("--programs", default="", help="only those with this text in their names")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        found = wrong(options.programs)
        print(f"wrong: {', '.join(found)}" if found else "all agree with the reference")
        return len(found)
    if compute_capability() != (9, 0) or shutil.which(TOOL) is None:
        print(f"nothing was checked: this needs an SM90 GPU and {TOOL} on the PATH")
        return 0
    failed = []
    for tool in options.tools.split(","):
        print(f"{tool}:", flush=True)
        head = [TOOL, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
        own = ["-m", "tests.device.sanitize", "--inside", "--programs", options.programs]
        command = [*head, sys.executable, *own]
        if subprocess.run(command, timeout=SECONDS, check=False).returncode:
            failed.append(tool)
    print(f"failed: {', '.join(failed)}" if failed else "clean")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
