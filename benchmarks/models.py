"""Whole models at the user's call: Weft's jit beside torch eager and torch.compile.

    python -m benchmarks.models                        all of them, on the GPU, in bf16
    python -m benchmarks.models --models "gpt2*"       some, by name
    python -m benchmarks.models --peers eager,reduce-overhead
    python -m benchmarks.models --profile              and where the time of Weft's calls goes
    python -m benchmarks.models --host                 and what a call of Weft's costs the host
    python -m benchmarks.models --tiny --device cpu    small ones, in f32: does it all run?

`weft bench --models "gpt2*" --gpu` does the same, and without `--gpu` what the last line does.

Weights are random and the same on both sides, and so is the data; what a forward pass gives, or the
loss of a step, is compared first. Calls are timed by the host's clock, a few at a time and all
candidates in turns, with nothing waited for between them and nothing read: the medians are what a
loop takes.
`first` is the first call, with all that is compiled for it; `peak` the memory of the GPU that calls
use, weights and state included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any, Final

import numpy as np

from benchmarks.needed import need, need_gpu

need("torch")

import torch  # noqa: E402

import weft  # noqa: E402
from benchmarks import host_time  # noqa: E402
from benchmarks import model_zoo as zoo  # noqa: E402
from benchmarks.model_cases import Caches, Case, Weft, cases  # noqa: E402

MODES: Final = {
    "compile": "default", "reduce-overhead": "reduce-overhead", "max-autotune": "max-autotune",
}  # fmt: skip
TOLERANCE: Final = {"bf16": 6e-2, "f32": 2e-3}
TURNS: Final = 7


@dataclass
class Candidate:
    """Something to call, and what its calls took."""

    who: str
    call: Callable[[], Any]
    read: Callable[[Any], Any]
    before: int = 0
    """Bytes of the GPU that torch had in use before it was made."""
    first: float = 0.0
    peak: int = 0
    """Bytes of the GPU, its weights among them."""
    seconds: list[float] | None = None


# -- the two sides -------------------------------------------------------------------------------


def with_weights(model: Any, weights: dict[str, Any]) -> Any:
    """A module of Weft's with the weights of torch's."""
    arrays = {name: weft.asarray(w.float().cpu().numpy()) for name, w in weights.items()}
    return model.with_state({name: arrays[name] for name in model.state_dict()})


def torch_call(case: Case, model: Any, data: list[Any]) -> Callable[[], Any]:
    """A call of the module, or a step that trains it."""
    if not case.trains:
        inference = torch.inference_mode()(model)
        return lambda: inference(*data)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(case.learns in name)
    learning = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=1e-4, fused=data[0].is_cuda)

    def call() -> Any:
        optimiser.zero_grad(set_to_none=True)
        scores = model(data[0])
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), data[1])
        loss.backward()
        optimiser.step()
        return loss.detach()

    return call


def torch_generation(model: Any, data: list[Any], caches: Caches, mode: str) -> Callable[[], Any]:
    """One more token in every call; the caches are written where they are. They are buffers of a
    module: torch makes a CUDA graph of a step that writes only into what it knows the place of."""
    tokens, position = data
    dtype, device = next(model.parameters()).dtype, tokens.device
    length = caches.shape[2]

    class Step(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            for number, pair in enumerate(caches.arrays()):
                for name, part in zip("kv", pair, strict=True):
                    placed = torch.from_numpy(part).to(device, dtype)
                    self.register_buffer(f"{name}{number}", placed)

        def forward(self, tokens: Any, position: Any) -> Any:
            kept = [(getattr(self, f"k{n}"), getattr(self, f"v{n}")) for n in range(caches.layers)]
            scores, _ = self.model.next(tokens, position, kept)
            return scores, scores.argmax(-1), (position + 1) % length

    step = Step() if mode == "eager" else torch.compile(Step(), mode=MODES[mode])

    def call() -> Any:
        nonlocal tokens, position
        with torch.inference_mode():
            scores, tokens, position = step(tokens, position)
            tokens, position = tokens.clone(), position.clone()
        return scores

    return call


def candidates(case: Case, options: argparse.Namespace) -> Iterator[Candidate]:
    """Ours first, then the peers, each with a model of its own."""
    make = case.tiny if options.tiny else case.make
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    data, library = case.data(options.tiny), zoo.torch_library(torch)
    torch.manual_seed(0)
    theirs = make(library).to(options.device, dtype)
    weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = Weft(
        case,
        with_weights(make(zoo.WEFT), weights),
        data,
        weft.bfloat16 if dtype is torch.bfloat16 else weft.float32,
    )
    caches = case.cache(options.tiny) if case.cache else None
    yield Candidate("weft", ours.call(case, caches), np.asarray)
    tensors = [torch.as_tensor(d).to(options.device) for d in data]
    if case.images:
        tensors[0] = tensors[0].to(dtype, memory_format=torch.channels_last)
    for peer in filter(None, options.peers.split(",")):
        before = torch.cuda.memory_allocated() if tensors[0].is_cuda else 0
        model = make(library).to(options.device, dtype)
        model.load_state_dict(weights)
        model = model.to(memory_format=torch.channels_last) if case.images else model
        model.train(case.trains)
        if caches is not None:
            call = torch_generation(model, tensors, caches, peer)
            yield Candidate(f"torch {peer}", call, _read, before)
            continue
        if peer != "eager":
            model = torch.compile(model, mode=MODES[peer])
        yield Candidate(f"torch {peer}", torch_call(case, model, tensors), _read, before)


def _read(tensor: Any) -> Any:
    return tensor.float().cpu().numpy()


def _peak(candidate: Candidate) -> int:
    """The most bytes of the GPU that two more calls use."""
    if not torch.cuda.is_available():
        return 0
    weft.gpu_memory(reset_peak=True)
    torch.cuda.reset_peak_memory_stats()
    candidate.call()
    candidate.call()
    _wait()
    if candidate.who == "weft":
        return int(weft.gpu_memory().peak)
    return int(torch.cuda.max_memory_allocated()) - candidate.before


def _wait() -> None:
    """Until the GPU, whoever gave it work, has done it."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# -- measuring -----------------------------------------------------------------------------------


def measured(case: Case, options: argparse.Namespace) -> list[Candidate]:
    found, expected = [], None
    for candidate in candidates(case, options):
        started = time.perf_counter()
        try:
            result = np.asarray(candidate.read(candidate.call()), np.float32)
        except Exception as error:
            print(f"  {candidate.who}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        candidate.first = time.perf_counter() - started
        expected = result if expected is None else expected
        off = float(np.abs(result - expected).max() / max(1e-6, np.abs(expected).max()))
        kind = "f32" if options.device == "cpu" else "bf16"
        note = "" if off <= TOLERANCE[kind] else "  ** differs **"
        candidate.peak = _peak(candidate)
        told = f"first {candidate.first:.2f} s, off {off:.1e}, peak {candidate.peak / 1e9:.2f} GB"
        print(f"  {candidate.who}: {told}{note}", flush=True)
        found.append(candidate)
    in_turns(found, options.seconds)
    if options.profile and found and found[0].who == "weft":
        with weft.profile() as seen:
            found[0].call()
        print(seen.table(most=20), seen.summary(kinds=True), sep="\n", flush=True)
    if options.host and found and found[0].who == "weft":
        print(host_time.told(found[0].call, _wait), flush=True)
    return found


def in_turns(found: list[Candidate], seconds: float) -> None:
    counts = {}
    for candidate in found:
        started = time.perf_counter()
        for _ in range(3):
            candidate.call()
        _wait()
        each = (time.perf_counter() - started) / 3
        counts[candidate.who] = max(1, int(seconds / TURNS / each))
        candidate.seconds = []
    for _ in range(TURNS):
        for candidate in found:
            started = time.perf_counter()
            for _ in range(counts[candidate.who]):
                candidate.call()
            _wait()
            spent = (time.perf_counter() - started) / counts[candidate.who]
            candidate.seconds = [*(candidate.seconds or ()), spent]


def row(case: Case, found: list[Candidate]) -> str:
    times = {c.who: statistics.median(c.seconds or [0.0]) for c in found}
    ours = times.pop("weft", None)
    first = ", ".join(f"{c.first:.1f}" for c in found)
    cells = [
        case.name,
        "-" if ours is None else f"{1e3 * ours:.3f}",
        ", ".join(f"{who} {1e3 * seconds:.3f}" for who, seconds in times.items()),
        "-" if ours is None or not times else f"{min(times.values()) / ours:.2f}",
        first,
        ", ".join(f"{c.peak / 1e9:.2f}" for c in found),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description="whole models beside torch")
    parser.add_argument("--models", default="*", help="names, with * for any letters and commas")
    parser.add_argument("--peers", default="eager,compile,reduce-overhead")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed calls a candidate")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where the time of our call goes")
    parser.add_argument("--host", action="store_true", help="what our call costs the host")
    options = parser.parse_args()
    if strange := set(filter(None, options.peers.split(","))) - {"eager", *MODES}:
        parser.error(f"no peer is called {', '.join(sorted(strange))}")
    if options.host and options.device != "cuda":
        parser.error("--host is for a GPU")
    known, names = [case.name for case in cases()], options.models.split(",")
    for name in names:
        if not any(fnmatch(each, name) for each in known):
            sys.exit(f"error: no model is called {name!r}; the models are {', '.join(known)}")
    if options.device == "cuda":
        need_gpu("`--tiny --device cpu` runs small models here")
    weft.set_default_backend(options.device)
    rows = []
    for case in cases():
        if any(fnmatch(case.name, name) for name in names):
            name = f"{case.name}, made small" if options.tiny else case.name
            print(name, flush=True)
            rows.append(row(replace(case, name=name), measured(case, options)))
            print(rows[-1], flush=True)
    print(
        "\n| model | weft ms | peers ms | best peer / weft | first calls s | peak GB |\n"
        "|---|---|---|---|---|---|"
    )
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
