"""How much the planner loses on matrix products that it has never seen.

    python -m benchmarks.gpu_unseen --prepare FOLDER [--sets coming]
    PYTHONPATH=src:.gpu-wheels python3 -m benchmarks.gpu_unseen --folder FOLDER [--sets ...]

Products are drawn at random: sizes log-uniform, some with few rows, some in batches. `--prepare`
compiles, anywhere, the candidates of each: the planner's choice, the forms that the model of their
time has next, the choice's neighbours, some that the model thinks little of, and the choice with
its tiles in other orders. On a GPU every candidate is checked against torch and all of a product
are timed side by side (`weft.runtime.cuda.race`). The loss of a product is the time of the
planner's choice over that of its best candidate. A set judges the planner until its times become
data of the planner, in `weft.target.measured_forms`; of the sets here only the last two have not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.needed import PREPARE, need_gpu
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning.products import Product, product_named
from weft.driver.tuning.single_kernel import build_alone, some_data
from weft.driver.tuning.tune import KernelClass, classes_of
from weft.driver.tuning.tune_products import form_of_plan
from weft.foundation.errors import WeftError
from weft.plan.ir import MmaPlan, Plan
from weft.plan.tensor_cores import sm90_contraction, sm90_forms, sm90_plan
from weft.plan.text import plan_to_json
from weft.region.form import Problem
from weft.region.ir import problem_of
from weft.runtime.artifact import Artifact
from weft.runtime.cuda.gpu import Gpu, open_gpu
from weft.runtime.cuda.race import Race
from weft.runtime.packing import Packed, pack, unpack
from weft.target.known import target_named
from weft.target.matrix_tiles import Form
from weft.target.matrix_time import Contraction, cycles

SETS: Final = {
    "train": (1, 40),
    "unseen": (2, 30),
    "again": (3, 30),
    "fresh": (4, 30),
    "later": (5, 40),
    "latest": (6, 40),
    "next": (7, 40),
    "newest": (8, 40),
    "coming": (9, 40),
    "narrow": (10, 20),
}
"""Seed and count of each set; those of `narrow` have few columns."""
MOST_FLOPS: Final = 1.2e12
LEAST_FLOPS: Final = 2e7
MOST_BYTES: Final = 1 << 29
TOLERANCE: Final = 1e-2
FIRST: Final = 10
"""Candidates that the model of their time has first."""
STRANGERS: Final = 3
STRANGE: Final = 1.5
"""Others, and how much longer than the first the model has them take at most."""
ORDERS: Final = ("grouped:4", "grouped:8", "hilbert")


# -- products ------------------------------------------------------------------------------------


def products(name: str) -> list[Product]:
    """The products of a set, the same every time."""
    seed, count = SETS[name]
    return list(_drawn(random.Random(seed), count, _narrow if name == "narrow" else _one))


def _drawn(
    source: random.Random, count: int, draw: Callable[[random.Random, float], Product]
) -> Iterator[Product]:
    found: set[Product] = set()
    while len(found) < count:
        made = draw(source, source.random())
        if made not in found and _is_worthwhile(made):
            found.add(made)
            yield made


def _size(source: random.Random, low: float, high: float, step: int) -> int:
    drawn = math.exp(source.uniform(math.log(low), math.log(high)))
    return max(step, round(drawn / step) * step)


def _narrow(source: random.Random, _: float) -> Product:
    m, n, k = (_size(source, *of, 8) for of in ((512, 32768), (8, 40), (512, 16384)))
    return Product(m, n, k, layout=source.choice(("NN", "NT", "TN")))


def _one(source: random.Random, kind: float) -> Product:
    size = partial(_size, source)
    layout = source.choice(("NN", "NN", "NT", "NT", "NT", "TN"))
    if kind < 0.2:
        return Product(size(1, 64, 1), size(512, 32768, 8), size(512, 16384, 8), layout="NT")
    if kind < 0.3:
        m, n, k = size(64, 2048, 8), size(64, 2048, 8), size(32, 512, 8)
        return Product(m, n, k, size(2, 200, 1), layout)
    return Product(size(64, 16384, 8), size(128, 16384, 8), size(64, 16384, 8), layout=layout)


def _is_worthwhile(found: Product) -> bool:
    b, m, n, k = found.batch, found.m, found.n, found.k
    moved = 2 * b * (m * k + k * n + m * n)
    return LEAST_FLOPS <= 2.0 * b * m * n * k <= MOST_FLOPS and moved <= MOST_BYTES


# -- candidates, compiled beforehand -------------------------------------------------------------


def contraction(found: Product) -> KernelClass | None:
    """The kernel of a product that contracts by matrix instructions, and its candidates; None where
    the product is a matter of rows."""
    source = found.program()
    classes = classes_of(Compilation(source, target_named("sm90"), make_signature(source)))
    return next((c for c in classes if isinstance(c.plans[0], MmaPlan)), None)


def prepare(folder: Path, names: Sequence[str]) -> None:
    """A file for every product, with all its candidates; files that are there are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for number, found in enumerate(products(name)):
            path = folder / f"{name}_{number:02}.pack"
            kernels = contraction(found) if not path.exists() else None
            if kernels is not None:
                path.write_bytes(_packed(found, kernels))
                print(path.name, found, flush=True)


def candidates(kernels: KernelClass, problem: Problem) -> list[Plan]:
    """The planner's choice, then other forms."""
    chosen, target = kernels.plans[0], target_named("sm90")
    assert isinstance(chosen, MmaPlan)
    made = (
        sm90_plan(kernels.kernel, problem, target, chosen.header, form)
        for form in _forms(
            sm90_contraction(problem), form_of_plan(chosen), sm90_forms(kernels.kernel)
        )
    )
    others = [replace(plan, algo_choice=chosen.algo_choice) for plan in made]
    orders = [replace(chosen, order=order) for order in ORDERS]
    return list({repr(plan): plan for plan in (chosen, *others, *orders)}.values())


def _forms(found: Contraction, chosen: Form, forms: Sequence[Form]) -> list[Form]:
    target = target_named("sm90")
    times = {form: cycles(form, found, target) for form in forms if found.suits(form)}
    ranked = sorted(times, key=lambda form: times[form])
    near = [form for form in ranked[FIRST:] if _are_neighbours(form, chosen)]
    most = STRANGE * times[ranked[0]]
    rest = [form for form in ranked[FIRST:] if form not in near and times[form] <= most]
    strangers = random.Random(str(found)).sample(rest, min(STRANGERS, len(rest)))
    return [*ranked[:FIRST], *near, *strangers]


def _are_neighbours(one: Form, other: Form) -> bool:
    """Whether two forms, both with swapped tiles or neither, differ in a size by a step."""
    down, beside = abs(one.rows - other.rows), abs(one.columns - other.columns)
    near = (down == 0 and beside <= 32) or (down <= 64 and beside == 0)
    return near and one.swap == other.swap


def _packed(found: Product, kernels: KernelClass) -> bytes:
    problem = problem_of(kernels.kernel)
    assert problem is not None
    plans, bundles = [], []
    for plan in candidates(kernels, problem):
        try:
            built = build_alone(kernels.kernel, kernels.module, plan, target_named("sm90"))
        except WeftError as error:
            print(f"{found}: {' '.join(str(error).split())}", flush=True)
            continue
        plans.append(plan_to_json(plan))
        bundles.append(pack(Packed(built.artifact, built.symbols)))
    head = {
        "product": str(found),
        "extent": [problem.batch, problem.m, problem.n, problem.k],
        "plans": plans,
        "lengths": [len(data) for data in bundles],
    }
    return zlib.compress(json.dumps(head).encode() + b"\n" + b"".join(bundles), 9)


def _unpacked(path: Path) -> tuple[dict[str, Any], list[Artifact]]:
    head, _, rest = zlib.decompress(path.read_bytes()).partition(b"\n")
    found, artifacts = json.loads(head), []
    for length in found["lengths"]:
        unpacked = unpack(rest[:length])
        assert unpacked is not None, path
        artifacts.append(unpacked.artifact)
        rest = rest[length:]
    return found, artifacts


# -- on the device -------------------------------------------------------------------------------


def measure(gpu: Gpu, torch: Any, path: Path) -> dict[str, Any]:
    """The microseconds of every candidate of a product; wrong ones have none, and the reason."""
    found, artifacts = _unpacked(path)
    first = artifacts[0]
    inputs = [(some_data(spec, n), spec.dtype) for n, spec in enumerate(first.inputs)]
    race = Race(gpu, inputs, first.outputs)
    wanted = _reference(torch, found, race)
    problems = []
    for artifact in artifacts:
        race.enter(artifact)
        problems.append(_problem(torch, race, wanted))
    times = [1e6 * seconds for seconds in race.seconds()]
    race.close()
    us = [None if why else round(t, 3) for t, why in zip(times, problems, strict=True)]
    return {**found, "us": us, "problems": problems, "sets": len(race.sets)}


def _reference(torch: Any, found: dict[str, Any], race: Race) -> Any:
    """The product of the first set, by torch; a kernel may see its operands as more axes than the
    product has, so elements are compared in order."""
    a, b = (torch.from_dlpack(tensor).float() for tensor in race.sets[0][0])
    product = product_named(found["product"])
    batch, m, n, k = found["extent"]
    parts = batch // product.batch
    left = a if product.layout[0] == "N" else a.transpose(-1, -2)
    right = b if product.layout[1] == "N" else b.transpose(-1, -2)
    left, right = left.reshape(-1, m, parts, k), right.reshape(-1, parts, k, n)
    return torch.einsum("bmpk,bpkn->bpmn", left, right)


def _problem(torch: Any, race: Race, wanted: Any) -> str:
    got = torch.from_dlpack(race.results[0]).float()
    if got.numel() != wanted.numel():
        return "another number of elements"
    # Parts come first or after the batch: both orders are looked at.
    orders = [wanted, wanted.transpose(0, 1)]
    errors = [
        float((got.reshape(-1) - other.reshape(-1)).norm() / wanted.norm()) for other in orders
    ]
    with race.gpu.lock:
        race.gpu.stream.fill(race.results[0].address, race.results[0].nbytes)
    return "" if min(errors) <= TOLERANCE else f"relative error {min(errors):.1e}"


def run(folder: Path, names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """All products of some sets; those that are not reached in time are left out."""
    torch = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    gpu, records, ends = open_gpu(), [], time.monotonic() + seconds
    for path in sorted(p for name in names for p in folder.glob(f"{name}_*.pack")):
        if time.monotonic() > ends:
            print("out of time", flush=True)
            break
        record = {"set": path.name.rpartition("_")[0], **measure(gpu, torch, path)}
        records.append(record)
        print(line(record), flush=True)
        torch.cuda.empty_cache()
        gpu.pool.trim()
    return records


# -- results -------------------------------------------------------------------------------------


def loss(record: dict[str, Any]) -> float:
    """How much longer the planner's choice takes than the best candidate: 0.03 for 3 percent."""
    times = [found for found in record["us"] if found is not None]
    first = record["us"][0]
    return first / min(times) - 1 if first is not None else math.inf


def line(record: dict[str, Any]) -> str:
    times = [found if found is not None else math.inf for found in record["us"]]
    best = record["plans"][times.index(min(times))]
    own = record["plans"][0]
    texts = [f"{p['tile'][0]}x{p['tile'][1]} {p['roles']} {p['order']}" for p in (own, best)]
    wrong = sum(bool(why) for why in record["problems"])
    note = f" {wrong} wrong" if wrong else ""
    return (
        f"| {record['set']} | {record['product']} | {len(times)} | {texts[0]} | {times[0]:.2f} | "
        f"{texts[1]} | {min(times):.2f} | {100 * loss(record):.1f} % |{note}"
    )


def summary(records: Sequence[dict[str, Any]]) -> str:
    lines = []
    for name in dict.fromkeys(record["set"] for record in records):
        losses = sorted(100 * loss(r) for r in records if r["set"] == name)
        within = sum(found <= 5 for found in losses)
        lines.append(
            f"{name}: {len(losses)} products, loss median {statistics.median(losses):.1f} %, mean "
            f"{statistics.mean(losses):.1f} %, worst {losses[-1]:.1f} %, {within} within 5 %"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="compile, and stop")
    parser.add_argument("--folder", type=Path, help="what was prepared")
    parser.add_argument("--sets", default="coming")
    parser.add_argument("--seconds", type=float, default=150.0)
    options = parser.parse_args()
    names = options.sets.split(",")
    if options.prepare:
        prepare(options.prepare, names)
        return 0
    need_gpu(PREPARE)
    records = run(options.folder, names, options.seconds)
    out = Path(os.environ.get("OUT") or Path(__file__).resolve().parent / "out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu_unseen.json").write_text(json.dumps(records))
    text = "\n".join([*map(line, records), "", summary(records)])
    (out / "gpu_unseen.md").write_text(text + "\n")
    print(summary(records), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
