"""One model of `imported.py`: each side compiled, compared with eager torch and measured, as JSON.

    python -m benchmarks.imported_model MODEL [--threads N] [--rounds N] [--sides NAME,...]

A line is printed for each side as soon as it is compiled, and one with the times at the end, so
that what was measured is known where a later side crashes or hangs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

os.environ["WEFT_CACHE"] = "off"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

from benchmarks.cpu_clock import processor_seconds
from benchmarks.needed import need

need("torch")

import torch  # noqa: E402

import weft  # noqa: E402
import weft.torch  # noqa: E402
from tests.scores.torch_model_zoo import MODELS  # noqa: E402
from tests.scores.torch_models import apart, floats, taken  # noqa: E402
from weft.interop.torch.backend import weft_backend  # noqa: E402

Call = Callable[[], Any]
BOUND = 2e-4
"""How far a result may be from eager torch's, of its largest element."""
BURST = 3e-2
"""Seconds that calls which are timed together take at least. As many come before them: the first
calls of a side, whose threads rested while another's worked, took five times longer."""


class Model:
    """A model with the arguments of a call, and how each side is made ready for it."""

    def __init__(self, name: str, threads: int) -> None:
        torch.manual_seed(0)
        self.threads = threads
        module, args, kwargs = MODELS[name]()
        self.module, self.args, self.kwargs = module.eval(), args, kwargs
        self.wanted = floats(self.eager()())

    def eager(self) -> Call:
        return lambda: self.module(*self.args, **self.kwargs)

    def inductor(self) -> Call:
        return self._compiled("inductor")

    def weft(self) -> Call:
        return self._compiled(weft_backend)

    def _compiled(self, backend: Any) -> Call:
        torch._dynamo.reset()
        made = torch.compile(self.module, backend=backend)
        return lambda: made(*self.args, **self.kwargs)

    def imported(self) -> Call:
        ours = weft.torch.from_module(self.module, self.args, self.kwargs)
        args = tuple(map(taken, self.args))
        kwargs = {name: taken(value) for name, value in self.kwargs.items()}
        run = weft.jit(lambda m, a, k: floats(m(*a, **k)))
        return lambda: run(ours, args, kwargs)

    def onnxruntime(self) -> Call:
        runtime = import_module("onnxruntime")
        file = io.BytesIO()
        new = find_spec("onnxscript") is not None
        torch.onnx.export(self.module, self.args, file, kwargs=self.kwargs, dynamo=new)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = runtime.InferenceSession(file.getvalue(), options, ["CPUExecutionProvider"])
        given = (*self.args, *self.kwargs.values())
        leaves = [each.numpy() for each in given if isinstance(each, torch.Tensor)]
        feeds = dict(zip([each.name for each in session.get_inputs()], leaves, strict=True))
        kept = [each.name for each in session.get_outputs() if "float" in each.type]
        return lambda: [torch.from_numpy(each) for each in session.run(kept, feeds)]


def warm_up() -> None:
    """Each compiler compiles something else first: what it loads is not counted."""
    layer = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.GELU())
    for backend in ("inductor", weft_backend):
        torch._dynamo.reset()
        torch.compile(layer, backend=backend)(torch.ones(2, 3))
    weft.jit(weft.torch.from_module(layer, torch.ones(2, 3)))(weft.ones((2, 3)))


def ready(model: Model, side: str) -> tuple[Call | None, dict[str, Any]]:
    """A side's call, and the seconds until it had run once; or what went wrong."""
    worked, started = processor_seconds(), time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            call = getattr(model, side)()
            found = floats(call())
        except Exception as error:
            return None, {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    seconds, work = time.perf_counter() - started, processor_seconds() - worked
    far = max(apart(mine, theirs) for mine, theirs in zip(found, model.wanted, strict=False))
    if far > BOUND:
        return None, {"failed": f"wrong by {far:.1e} of the largest element"}
    lines = [str(each.message) for each in told if issubclass(each.category, weft.WeftWarning)]
    return call, {"first": seconds, "work": work, "far": far, "told": "; ".join(lines)[:200]}


def measured(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """The median seconds of a call, sides in turn."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        counts[name] = max(1, int(BURST / max(1e-6, _burst(call, 1))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for at in range(rounds):
        for name in order[at % len(order) :] + order[: at % len(order)]:
            _burst(calls[name], counts[name])
            times[name].append(_burst(calls[name], counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _burst(call: Call, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


SIDES = ("eager", "weft", "inductor", "imported", "onnxruntime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sides", default=",".join(SIDES))
    given = parser.parse_args()
    os.environ["WEFT_NUM_THREADS"] = str(given.threads)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="weft-imported-")
    torch.set_num_threads(given.threads)
    weft.set_default_backend("cpu")
    warnings.simplefilter("ignore")
    with torch.no_grad():
        warm_up()
        model, calls = Model(given.model, given.threads), dict[str, Call]()
        for side in given.sides.split(","):
            call, told = ready(model, side)
            print(json.dumps({"side": side, **told}), flush=True)
            if call is not None:
                calls[side] = call
        print(json.dumps({"times": measured(calls, given.rounds)}), flush=True)


if __name__ == "__main__":
    main()
