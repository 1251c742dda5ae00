"""Random programs of windows and slices, whose kernels become stages, in random legal plans.

    python -m tests.random.stages [--first SEED] [--count N] [--target cpu | sm80 | sm90]

Each program runs with its own plans and with plans whose strips, vectors, depths and places of
stages are drawn, and is compared with the reference; its kernels with stages are played row by row
besides. For a GPU, whose dialect is interpreted, programs have narrow floats too.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from tests.gpu_interpreted import InterpretedExecutable, InterpretedGpu
from weft import functional
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import WeftWarning
from weft.plan.ir import PlanSet, StagedPlan
from weft.plan.slides import slide_of
from weft.plan.staged import depths_of, first_stages, strip_of
from weft.plan.text import dumps, loads
from weft.ptir import Program
from weft.region.interp import run_kernel
from weft.region.interp_rows import run_rows
from weft.region.ir import Kernel, Module

Array = NDArray[Any]


class _Draw:
    """A function under construction, with its values so far."""

    def __init__(self, seed: int, narrow: bool = False) -> None:
        self.random = random.Random(seed)
        rank = self.random.choice((2, 2, 2, 3))
        outer = [self.random.randint(1, 3)] * (rank - 2)
        self.shape = [*outer, self.random.randint(9, 40), self.random.randint(70, 150)]
        kinds = ["f32", "f32", "f64", "si32", *(("f16", "bf16", "si8") if narrow else ())]
        self.dtype = BY_NAME[self.random.choice(kinds)].numpy
        self.whole = np.issubdtype(self.dtype, np.integer)
        self.values: list[Any] = []

    def __call__(self, x: Any) -> Any:
        steps: list[Callable[[Any], Any]] = [self.window, self.window, self.window]
        steps += [self.point, self.pair, self.padded, self.turned, self.pooled, self.pooled]
        self.values = [x]
        for _ in range(self.random.randint(2, 6)):
            self.values.append(self.random.choice(steps)(self.values[-1]))
        found, self.values = self.values[-1], []
        return found

    # -- steps -----------------------------------------------------------------------------------

    def window(self, x: Any) -> Any:
        """A weighted sum of slices along rows or columns, or both."""
        axes, rank = self.random.choice(([-1], [-2], [-2], [-1, -2])), len(x.shape)
        widths = {rank + a: self.random.randint(2, 3) for a in axes}
        sizes = [n - widths.get(k, 1) + 1 for k, n in enumerate(x.shape)]
        if min(sizes) < 1 or sizes[-1] < 65:
            return self.point(x)
        total = None
        for _ in range(self.random.randint(2, 5)):
            start = [self.random.randrange(widths.get(k, 1)) for k in range(rank)]
            part = cut(x, start, sizes) * self.number()
            total = part if total is None else total + part
        return total

    def point(self, x: Any) -> Any:
        """A function of every element."""
        if self.whole:
            return x * self.number() - x
        return self.random.choice((weft.tanh, weft.abs))(x) + x * self.number()

    def pair(self, x: Any) -> Any:
        """Something with an earlier value, cut to the same size from anywhere."""
        other = self.random.choice(self.values)
        sizes = [min(n, m) for n, m in zip(x.shape, other.shape, strict=True)]
        parts = []
        for value in (x, other):
            room = [n - m for n, m in zip(value.shape, sizes, strict=True)]
            parts.append(cut(value, [self.random.randint(0, n) for n in room], sizes))
        return parts[0] * self.number() + parts[1]

    def padded(self, x: Any) -> Any:
        """A border of numbers, of which windows read."""
        low, high = ([self.random.randint(0, 2) for _ in x.shape] for _ in range(2))
        if len(low) == 3:
            low[0] = high[0] = 0
        return self.window(functional.pad(x, list(zip(low, high, strict=True)), value=1))

    def pooled(self, x: Any) -> Any:
        """The largest element or the mean of every window, perhaps beyond a border."""
        border = self.random.randint(0, 1)
        widths = [self.random.randint(1 + border, 4) for _ in range(2)]
        if len(x.shape) < 2 or x.shape[-1] + 2 * border - widths[1] < 64 or x.shape[-2] < 4:
            return self.point(x)
        images = x.reshape((1,) * (4 - len(x.shape)) + tuple(x.shape))
        exact = self.whole or self.random.random() < 0.5
        pool = functional.max_pool2d if exact else functional.avg_pool2d
        found = pool(images, tuple(widths), stride=1, padding=border)
        return found.reshape((*x.shape[:-2], *found.shape[-2:]))

    def turned(self, x: Any) -> Any:
        """The columns in the other order, or every second one."""
        return x[..., ::2] if x.shape[-1] > 140 else weft.flip(x, axis=-1)

    def number(self) -> Any:
        value = self.random.choice((1, 2, -1, 3))
        return value if self.whole else 0.25 * value


def cut(x: Any, start: list[int], sizes: list[int]) -> Any:
    return x[tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))]


def make_program(seed: int, narrow: bool = False) -> Program:
    made = _Draw(seed, narrow)
    with warnings.catch_warnings():
        # What is drawn here is the program, once.
        warnings.simplefilter("ignore", WeftWarning)
        found: Program = weft.jit(made).program(weft.tensor(np.zeros(made.shape, made.dtype)))
    return found


def drawn_plans(text: str, seed: int) -> str:
    """The plans of a module with other vectors, sums, strips, depths and places of stages."""
    draw, plans = random.Random(seed), json.loads(text)
    for plan in plans["plans"]:
        if plan["kind"] == "row":
            plan["vector"], plan["accumulators"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 4)
        elif plan["kind"] == "map" and plan["block"] == 1:
            plan["vector"], plan["unroll"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 5)
        if plan["kind"] != "staged":
            continue
        plan["vector"], plan["unroll"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 3)
        plan["tile"] = {plan["slide"]: draw.randint(1, 50)}
        stages = list(dict.fromkeys(edge["from"] for edge in plan["local_edges"]))
        more = {stage: draw.choice((0, 0, 1, 3)) for stage in stages}
        early = sorted(stages)[: draw.choice((0, 0, 1, len(stages)))]
        for edge in plan["local_edges"]:
            edge["depth"] += more[edge["from"]]
            if edge["from"] in early:
                del edge["depth"]
        plan["compute_at"] = [
            {"stage": stage, "at": plan["slide"] + (".o" if stage in early else "")}
            for stage in stages
            if stage in early or draw.random() < 0.5
        ]
        if draw.random() < 0.2:
            del plan["local_edges"]
    return json.dumps(plans)


def check(seed: int) -> int:
    """Compare one program; how many stages its kernels have."""
    program = make_program(seed)
    first = weft.compile(program, "cpu")
    rng = np.random.default_rng(seed)
    inputs = [
        (9 * rng.standard_normal(kind.static_shape)).astype(kind.dtype.numpy)
        for kind in first.inputs
    ]
    wanted = weft.run(program, inputs, backend="reference")
    (cluster,) = first.clusters.values()
    module = cluster.compilation["region"]
    count = sum(len(kernel.stages) for kernel in module.kernels)
    compare(seed, first.run(inputs), wanted)
    text = drawn_plans(first.stages["plan"], seed)
    again = weft.compile(program, "cpu", overrides={"plan": text})
    compare(seed, again.run(inputs), wanted)
    compare(seed, _played(module, text, inputs), wanted)
    return count


def check_gpu(seed: int, target: str) -> int:
    """The same for a GPU, by the meaning of its dialect."""
    program, backend = make_program(seed, narrow=True), InterpretedGpu(target)
    first = backend.compile(program)
    rng = np.random.default_rng(seed)
    module: Module = first.compilation["region"]
    given = (module.tensors[name] for name in module.inputs)
    inputs = [(9 * rng.standard_normal(x.shape)).astype(x.dtype.numpy) for x in given]
    wanted = weft.run(program, inputs, backend="reference")
    count = sum(len(kernel.stages) for kernel in module.kernels)
    compare(seed, first.execute(inputs), wanted)
    if count:
        text = drawn_slides(module, first.compilation["plan"], seed)
        signature = make_signature(program)
        again = Compilation(program, backend.target, signature, {"plan": text})
        compare(seed, InterpretedExecutable(run_pipeline(again)).execute(inputs), wanted)
    return count


def drawn_slides(module: Module, plans: PlanSet, seed: int) -> str:
    """The plans of a module with other columns, strips and blocks of warps."""
    draw, found = random.Random(seed), dict(plans.plans)
    for kernel in module.kernels:
        plan = plans.of(kernel.name)
        if isinstance(plan, StagedPlan):
            slide = slide_of(kernel, module.tensors)
            vector = draw.choice(slide.vectors())
            along, across = plan.slide, next(name for name in plan.tile if name != plan.slide)
            width = draw.randint(1, 4) * slide.width(vector)
            tile = {along: draw.randint(1, 40), across: width}
            made = replace(plan, vector=vector, unroll=draw.randint(1, 4), tile=tile)
            found[plans.kernels[kernel.name]] = made
    return dumps(replace(plans, plans=found))


def _played(module: Module, text: str, inputs: list[Array]) -> list[Array]:
    """The module by the interpreter of kernels, stages row by row as the plans have them."""
    plans = loads(text)
    found: dict[str, Array] = dict(zip(module.inputs, inputs, strict=True))
    for kernel in module.kernels:
        plan = plans.of(kernel.name)
        found |= _kernel(kernel, module, found, plan if isinstance(plan, StagedPlan) else None)
    return [found[name] for name in module.outputs]


def _kernel(
    kernel: Kernel, module: Module, found: dict[str, Array], plan: StagedPlan | None
) -> dict[str, Array]:
    if plan is None:
        return run_kernel(kernel, module.tensors, found)
    strip, depths = strip_of(kernel, plan), depths_of(kernel, plan)
    return run_rows(kernel, module.tensors, found, strip, depths, first_stages(plan))


def compare(seed: int, got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        if not np.issubdtype(other.dtype, np.integer):
            allowed = 1e-5 if other.dtype.itemsize > 2 else 2e-2
            one, other = one.astype(np.float64), other.astype(np.float64)
            scale = max(1.0, float(np.abs(other).max(initial=0)))
            error = float(np.abs(one - other).max(initial=0)) / scale
            assert error < allowed, f"program {seed} is off by {error:g}"
        else:
            assert (one == other).all(), f"program {seed} is wrong"


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.random.stages", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    staged = 0
    for seed in range(options.first, options.first + options.count):
        on_cpu = options.target == "cpu"
        staged += (check(seed) if on_cpu else check_gpu(seed, options.target)) > 0
        if seed % 50 == 49:
            done = seed + 1 - options.first
            print(f"{done} programs, {staged} of them with stages, 0 wrong", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
