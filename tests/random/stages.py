"""Random programs of windows and slices, whose kernels become stages, in random legal plans.

    python -m tests.random.stages [--first SEED] [--count N] [--target TARGET]
                                  [--processes N] [--seconds N]

What is stored, computed where it is read, or a stage is the compiler's choice for a quarter of the
programs; for the others the times that it goes by are drawn, so that every legal choice occurs.
Strips, vectors, depths and places of stages are drawn too. A program whose kernels have stages then
runs and is compared with the reference:

    cpu         as machine code, and by the interpreter of kernels, row by row
    sm80, sm90  by the meaning of the GPU dialect
    cuda        on the GPU of this machine

For a GPU there are programs with narrow floats too, and with filters whose places are far apart, of
images with channels. Every wrong program is printed with its seed, also one that ends its process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import multiprocessing
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import weft
from tests.support.gpu_interpreted import InterpretedExecutable
from weft import functional
from weft.driver.cuda import target_of_device
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import WeftWarning
from weft.plan.ir import PlanSet, StagedPlan
from weft.plan.staged import (
    RING,
    axis_names,
    depths_of,
    first_stages,
    staged_form,
    strip_of,
    tiles_of,
)
from weft.plan.text import dumps, loads
from weft.ptir import Program
from weft.region.forms.shared_slides import SharedSlide, find_shared_slide
from weft.region.forms.slides import Slide, find_slide
from weft.region.forms.staged import columns_along
from weft.region.fusion.bounds import Bounds
from weft.region.interp import run_kernel
from weft.region.interp_rows import run_rows
from weft.region.ir import Kernel, Module
from weft.target.known import target_named
from weft.target.target import Kind, Target

Array = NDArray[Any]
PRICED: Final = (
    "weft.region.fusion.greedy",
    "weft.region.fitting.join_stages",
    "weft.region.from_poly_view",
)
"""The modules that choose by the times of kernels."""
LOWERING: Final = "weft.region.from_poly_view._Lowering"
COUNT: Final = 31_000
"""Programs of which 20,000 have stages."""


class _Draw:
    """A function under construction, with its values so far."""

    def __init__(self, seed: int, narrow: bool = False, far: bool = False) -> None:
        self.random = random.Random(seed)
        self.far = far
        """Whether windows have places that are far apart, and images channels behind columns."""
        self.rows, self.columns = -2, -1
        rank = self.random.choice((2, 2, 2, 3))
        outer = [self.random.randint(1, 3)] * (rank - 2)
        self.shape = [*outer, self.random.randint(9, 40), self.random.randint(70, 150)]
        if far:
            self.shape[-2:] = self.random.randint(25, 60), self.random.randint(110, 200)
            if self.random.random() < 0.4:
                self.shape[-1:] = self.random.randint(40, 70), self.random.randint(2, 4)
                self.rows, self.columns = -3, -2
        self.crossed = seed % 8 == 6 and not far
        """Whether axes change places, all of which are long enough for rows then."""
        if self.crossed:
            self.shape = [n if n < 4 else 66 + n % 12 for n in self.shape]
        kinds = ["f32", "f32", "f64", "si32", *(("f16", "bf16", "si8") if narrow else ())]
        self.dtype = BY_NAME[self.random.choice(kinds)].numpy
        self.whole = np.issubdtype(self.dtype, np.integer)
        self.values: list[Any] = []

    def __call__(self, x: Any) -> Any:
        steps: list[Callable[[Any], Any]] = [self.window, self.window, self.window]
        steps += [self.point, self.pair, self.padded, self.turned, self.pooled, self.pooled]
        if self.crossed:
            steps += [self.exchanged] * 4
        self.values = [x]
        for _ in range(self.random.randint(2, 6)):
            self.values.append(self.random.choice(steps)(self.values[-1]))
        found, self.values = self.values[-1], []
        return found

    # -- steps -----------------------------------------------------------------------------------

    def window(self, x: Any) -> Any:
        """A weighted sum of slices along rows or columns, or both."""
        rows, columns = self.rows, self.columns
        axes = self.random.choice(([columns], [rows], [rows], [columns, rows]))
        rank = len(x.shape)
        widths = {rank + a: self.random.randint(2, 3) for a in axes}
        if self.far:
            widths = {a: width + self.random.choice((0, 0, 7, 20)) for a, width in widths.items()}
        sizes = [n - widths.get(k, 1) + 1 for k, n in enumerate(x.shape)]
        if min(sizes) < 1 or math.prod(sizes[columns:]) < 65:
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
        if len(low) + self.rows == 1:
            low[0] = high[0] = 0
        if self.columns < -1:
            low[-1] = high[-1] = 0
        return self.window(functional.pad(x, list(zip(low, high, strict=True)), value=1))

    def pooled(self, x: Any) -> Any:
        """The largest element or the mean of every window, perhaps beyond a border."""
        border = self.random.randint(0, 1)
        widths = [self.random.randint(1 + border, 4) for _ in range(2)]
        if (
            self.columns < -1
            or len(x.shape) < 2
            or x.shape[-1] + 2 * border - widths[1] < 64
            or x.shape[-2] < 4
        ):
            return self.point(x)
        images = x.reshape((1,) * (4 - len(x.shape)) + tuple(x.shape))
        exact = self.whole or self.random.random() < 0.5
        pool = functional.max_pool2d if exact else functional.avg_pool2d
        found = pool(images, tuple(widths), stride=1, padding=border)
        return found.reshape((*x.shape[:-2], *found.shape[-2:]))

    def turned(self, x: Any) -> Any:
        """The columns in the other order, or every second one."""
        return x[..., ::2] if x.shape[-1] > 140 else weft.flip(x, axis=-1)

    def exchanged(self, x: Any) -> Any:
        """Axes in another order, so that what lies side by side is read across."""
        if len(x.shape) == 2 or self.random.random() < 0.5:
            return weft.matrix_transpose(x)
        return weft.permute_dims(x, (1, 0, 2))

    def number(self) -> Any:
        value = self.random.choice((1, 2, -1, 3))
        return value if self.whole else 0.25 * value


def cut(x: Any, start: list[int], sizes: list[int]) -> Any:
    return x[tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))]


def make_program(seed: int, narrow: bool = False, far: bool = False) -> Program:
    made = _Draw(seed, narrow, far)
    with warnings.catch_warnings():
        # What is drawn here is the program, once.
        warnings.simplefilter("ignore", WeftWarning)
        found: Program = weft.jit(made).program(weft.tensor(np.zeros(made.shape, made.dtype)))
    return found


def drawn_plans(module: Module, text: str, seed: int) -> str:
    """The plans of a module with other vectors, sums, strips, tiles of columns, depths and places
    of stages."""
    draw, plans = random.Random(seed), json.loads(text)
    kernels = {plans["kernels"][k.name]: k for k in module.kernels if k.name in plans["kernels"]}
    for plan in plans["plans"]:
        if plan["kind"] == "row":
            plan["vector"], plan["accumulators"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 4)
        elif plan["kind"] == "map" and plan["block"] == 1:
            plan["vector"], plan["unroll"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 5)
        if plan["kind"] != "staged":
            continue
        plan["vector"], plan["unroll"] = draw.choice((1, 2, 4, 8)), draw.randint(1, 3)
        plan["tile"] = {plan["slide"]: draw.randint(1, 50)}
        if columns := cut_axes(kernels[plan["kernel"]]):
            step = plan["vector"] * plan["unroll"]
            plan["tile"][draw.choice(columns)] = step * draw.randint(1, max(1, 60 // step))
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


def cut_axes(kernel: Kernel) -> list[str]:
    """The axes, as plans call them, along which rows may be cut into tiles of columns."""
    form, names = staged_form(kernel), axis_names(kernel)
    inside = [own for own in names if own not in (form.slide, *form.batch)]
    return [names[own] for own in inside if not isinstance(columns_along(kernel, form, own), str)]


def check(seed: int, target: str = "cpu") -> int:
    """Compare one program; how many stages its kernels have. One without any does not run."""
    on_device = target == "cuda"
    chosen = target_named(target_of_device() if on_device else target)
    on_gpu = chosen.kind is Kind.GPU
    program = make_program(seed, narrow=on_gpu, far=on_gpu and seed % 3 == 0)
    signature = make_signature(program)
    first = Compilation(program, chosen, signature)
    with nullcontext() if seed % 4 == 0 else drawn_prices(seed):
        run_pipeline(first, "plan")
    module: Module = first["region"]
    count = sum(len(kernel.stages) for kernel in module.kernels)
    if not count:
        return 0
    if on_gpu:
        text = drawn_slides(module, first["plan"], seed, chosen)
    else:
        text = drawn_plans(module, first.text("plan"), seed)
    made = Compilation(program, chosen, signature, {"plan": text})
    made.values |= {stage: value for stage, value in first.values.items() if stage != "plan"}
    run_pipeline(made)
    rng = np.random.default_rng(seed)
    given = (module.tensors[name] for name in module.inputs)
    inputs = [(9 * rng.standard_normal(x.shape)).astype(x.dtype.numpy) for x in given]
    wanted = weft.run(program, inputs, backend="reference")
    if on_gpu and not on_device:
        compare(seed, InterpretedExecutable(made).execute(inputs), wanted)
        return count
    compare(seed, generator_for(chosen).build(made, signature, ()).program.run(inputs), wanted)
    if not on_gpu:
        compare(seed, _played(module, text, inputs), wanted)
    return count


@contextmanager
def drawn_prices(seed: int) -> Iterator[None]:
    """The times of kernels are any numbers, so that what is chosen by them is anything legal."""
    draw = random.Random(seed)

    def drawn(kernel: Kernel, *_: Any) -> float:
        return draw.random() * (0.1 if kernel.stages else 1.0)

    with ExitStack() as patches:
        for name in PRICED:
            patches.enter_context(mock.patch(f"{name}.kernel_seconds", drawn))
        patches.enter_context(mock.patch.object(Bounds, "is_cheap", return_value=False))
        patches.enter_context(mock.patch(f"{LOWERING}._repeats", return_value=True))
        yield


def drawn_slides(module: Module, plans: PlanSet, seed: int, target: Target) -> str:
    """The plans of a module with other columns, strips and blocks of warps."""
    draw, found = random.Random(seed), dict(plans.plans)
    for kernel in module.kernels:
        plan = plans.of(kernel.name)
        if isinstance(plan, StagedPlan):
            shared = find_shared_slide(kernel, module.tensors, target)
            registers = find_slide(kernel, module.tensors)
            if isinstance(registers, str) or (draw.random() < 0.5 and not isinstance(shared, str)):
                assert isinstance(shared, SharedSlide)
                made = drawn_rings(draw, plan, shared, target)
            else:
                made = drawn_warps(draw, plan, registers)
            found[plans.kernels[kernel.name]] = made
    return dumps(replace(plans, plans=found))


def drawn_warps(draw: random.Random, plan: StagedPlan, slide: Slide) -> StagedPlan:
    """A plan with rows in registers."""
    vector = draw.choice(slide.vectors())
    along, across = plan.slide, next(name for name in plan.tile if name != plan.slide)
    width = draw.randint(1, 4) * slide.width(vector)
    tile = {along: draw.randint(1, 40), across: width}
    return replace(plan, vector=vector, unroll=draw.randint(1, 4), tile=tile)


def drawn_rings(
    draw: random.Random, plan: StagedPlan, slide: SharedSlide, target: Target
) -> StagedPlan:
    """A plan with rows in shared memory."""
    vector, rows = draw.choice(slide.vectors), draw.randint(1, 4)
    along, across = plan.slide, next(name for name in plan.tile if name != plan.slide)
    tile = {along: draw.randint(1, 40), across: vector * draw.randint(1, 40)}
    least = slide.depths(rows)[slide.copies :]
    depths = {f"s{n}": depth + draw.choice((0, 0, 1, rows)) for n, depth in enumerate(least)}
    edges = tuple(
        replace(edge, buffer=RING, depth=depths[edge.source]) for edge in plan.local_edges
    )
    made = replace(plan, vector=vector, unroll=rows, tile=tile, local_edges=edges)
    held = slide.bytes(
        vector, tile[across], [*slide.depths(rows)[: slide.copies], *depths.values()]
    )
    return (
        made
        if held <= target.limits.shared_bytes_per_block
        else drawn_rings(draw, plan, slide, target)
    )


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
    early, tiles = first_stages(plan), tiles_of(kernel, plan)
    return run_rows(kernel, module.tensors, found, strip, depths, early, tiles)


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


# -- many programs ---------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the programs so far."""

    total: int
    done: int = 0
    staged: int = 0
    wrong: list[int] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def note(self, seed: int, stages: int, problem: str) -> None:
        self.done += 1
        self.staged += stages > 0
        if problem:
            self.wrong.append(seed)
            print(f"WRONG, seed {seed}: {problem}", flush=True)
        if self.done % 500 == 0:
            print(self, flush=True)

    def __str__(self) -> str:
        return (
            f"{self.done} of {self.total} programs, {self.staged} of them with stages, "
            f"{len(self.wrong)} wrong, {time.monotonic() - self.started:.0f} s"
        )


def work(seeds: range, target: str, seconds: float, pipe: Connection) -> None:
    """Check programs for some time, telling which one comes, and what became of it."""
    # What is loaded by now stays.
    gc.freeze()
    end = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        pipe.send((seed, None, ""))
        try:
            found, problem = check(seed, target), ""
        except Exception as error:
            found, problem = 0, f"{type(error).__name__}: {error}"
        pipe.send((seed, found, problem))
    pipe.close()


@dataclass
class Worker:
    """A process with programs of its own, and the one that it is at."""

    seeds: range
    target: str
    seconds: float
    at: int | None = None

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe(duplex=False)
        self.process = context.Process(
            target=work, args=(self.seeds, self.target, self.seconds, far)
        )
        self.process.start()
        far.close()

    def rest(self) -> range:
        """The programs after the one that it is at."""
        if self.at is None:
            return self.seeds[:0]
        return self.seeds[self.seeds.index(self.at) + 1 :]


def run_all(seeds: range, target: str, processes: int, seconds: float = math.inf) -> Tally:
    """Check all programs, or those that there is time for. A process that ends is a wrong program,
    and another one goes on."""
    tally = Tally(len(seeds))
    parts = [seeds[n::processes] for n in range(processes)]
    workers = {w.pipe: w for w in (Worker(part, target, seconds) for part in parts if part)}
    while workers:
        for pipe in wait(list(workers)):
            worker = workers[pipe]  # type: ignore[index]
            try:
                seed, stages, problem = worker.pipe.recv()
            except EOFError:
                del workers[worker.pipe]
                worker.process.join()
                if worker.at is not None:
                    tally.note(worker.at, 0, f"its process ended with {worker.process.exitcode}")
                elif worker.process.exitcode:
                    raise SystemExit("a process ended before its first program") from None
                if rest := worker.rest():
                    left = tally.started + seconds - time.monotonic()
                    again = Worker(rest, target, left)
                    workers[again.pipe] = again
                continue
            worker.at = seed if stages is None else None
            if stages is not None:
                tally.note(seed, stages, problem)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.random.stages", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    # Nothing here is compiled twice, and a process has one core.
    os.environ["WEFT_CACHE"] = "off"
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    seeds = range(options.first, options.first + options.count)
    tally = run_all(seeds, options.target, options.processes, options.seconds)
    print(tally)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
