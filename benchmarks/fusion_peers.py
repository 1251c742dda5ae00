"""The twelve programs of `fusion_programs`, compiled by Weft, JAX and torch.compile.

    python -m benchmarks.fusion_peers [--programs blur4,harris] [--rounds N] [--peers jax,torch]

Everything runs on one core, in turn, and the least processor time of all rounds counts: a clock on
the wall also tells who else was at work. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.fusion_programs import PROGRAMS, Line

Array: TypeAlias = NDArray[Any]
Run: TypeAlias = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--peers", default="jax,torch")
    options = parser.parse_args()
    names = [name for name in options.programs.split(",") if name in PROGRAMS]
    one_core()
    peers = [peer for peer in options.peers.split(",") if peer]
    print("| program | kernels | ms, weft | " + " | ".join(peers) + " | best peer / weft |")
    print("|---|---:|---:|" + "---:|" * (len(peers) + 1))
    for name in names:
        print(row(name, PROGRAMS[name], peers, options.rounds), flush=True)


def one_core() -> None:
    """Let all libraries see one core; before they are loaded."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["OMP_NUM_THREADS"] = "1"


def row(name: str, line: Line, peers: Sequence[str], rounds: int) -> str:
    rng = np.random.default_rng(0)
    arrays = [0.3 * rng.standard_normal(shape).astype(np.float32) for shape in line.shapes]
    kernels, ours = weft_run(line, arrays)
    runs = [ours, *(PEERS[peer](line, arrays) for peer in peers)]
    wanted = ours()
    for peer, run in zip(peers, runs[1:], strict=True):
        agree(name, peer, wanted, run())
    times = [min(seconds(run) for _ in range(3)) for run in runs]
    for _ in range(rounds):
        times = [min(t, seconds(run)) for t, run in zip(times, runs, strict=True)]
    shown = " | ".join(f"{1e3 * t:.2f}" for t in times)
    ratio = f"{min(times[1:]) / times[0]:.2f}" if peers else ""
    return f"| {name} | {kernels} | {shown} | {ratio} |"


def seconds(run: Run) -> float:
    """Processor time of one run."""
    started = time.process_time()
    run()
    return time.process_time() - started


def agree(name: str, peer: str, ours: Any, theirs: Any) -> None:
    pairs = zip(as_list(ours), as_list(theirs), strict=True)
    for one, other in pairs:
        error = np.abs(one - other).max() / max(1e-6, np.abs(other).max())
        if error > 1e-3:
            raise SystemExit(f"{name}: weft and {peer} differ by {error:g}")


def as_list(found: Any) -> list[Array]:
    parts = found if isinstance(found, list | tuple) else [found]
    return [np.asarray(part) for part in parts]


# -- libraries: loaded once all of them see one core -----------------------------------------------


def weft_program(line: Line, arrays: Sequence[Array]) -> Any:
    import weft  # noqa: PLC0415
    from weft import functional as f  # noqa: PLC0415

    functions = SimpleNamespace(
        rsqrt=lambda x: 1 / weft.sqrt(x),
        mean=lambda x: weft.mean(x, axis=-1, keepdims=True),
        softmax=f.softmax,
        layer_norm=lambda x: f.layer_norm(x, x.shape[-1]),
        conv2d=lambda x, w: f.conv2d(x, w, padding=1),
        max_pool2d=lambda x: f.max_pool2d(x, 2),
        relu=f.relu,
        gelu=f.gelu,
        logsumexp=lambda x: f.logsumexp(x, axis=-1),
    )
    given = [weft.tensor(array) for array in arrays]
    return weft.jit(lambda *xs: line.program(functions, *xs)).program(*given)


def weft_run(line: Line, arrays: Sequence[Array]) -> tuple[int, Run]:
    import weft  # noqa: PLC0415

    made = weft.compile(weft_program(line, arrays), "cpu")
    return len(made.artifact.steps), lambda: made.run(list(arrays), threads=1)


def jax_run(line: Line, arrays: Sequence[Array]) -> Run:
    import jax  # noqa: PLC0415
    from jax import numpy as jnp  # noqa: PLC0415

    def layer_norm(x: Any) -> Any:
        mean = jnp.mean(x, -1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5)

    functions = SimpleNamespace(
        rsqrt=jax.lax.rsqrt,
        mean=lambda x: jnp.mean(x, -1, keepdims=True),
        softmax=jax.nn.softmax,
        layer_norm=layer_norm,
        conv2d=lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"),
        max_pool2d=lambda x: jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"
        ),
        relu=jax.nn.relu,
        gelu=lambda x: jax.nn.gelu(x, approximate=False),
        logsumexp=lambda x: jax.scipy.special.logsumexp(x, -1),
    )
    given = [jnp.asarray(array) for array in arrays]
    compiled = jax.jit(lambda *xs: line.program(functions, *xs))
    return lambda: jax.block_until_ready(compiled(*given))


def torch_run(line: Line, arrays: Sequence[Array]) -> Run:
    import torch  # noqa: PLC0415
    from torch.nn import functional as f  # noqa: PLC0415

    torch.set_num_threads(1)
    functions = SimpleNamespace(
        rsqrt=torch.rsqrt,
        mean=lambda x: x.mean(-1, keepdim=True),
        softmax=lambda x: f.softmax(x, -1),
        layer_norm=lambda x: f.layer_norm(x, (x.shape[-1],)),
        conv2d=lambda x, w: f.conv2d(x, w, padding=1),
        max_pool2d=lambda x: f.max_pool2d(x, 2),
        relu=f.relu,
        gelu=f.gelu,
        logsumexp=lambda x: torch.logsumexp(x, -1),
    )
    given = [torch.from_numpy(array) for array in arrays]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *xs: line.program(functions, *xs))

    def run() -> Any:
        with torch.no_grad():
            return compiled(*given)

    return run


PEERS: dict[str, Callable[[Line, Sequence[Array]], Run]] = {"jax": jax_run, "torch": torch_run}


if __name__ == "__main__":
    main()
