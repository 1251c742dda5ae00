"""JAX as a peer of the GPU benchmark, by the host's clock.

JAX works on streams of its own, which cannot be recorded with the other candidates. So it and we
are timed once more, both in the same way: as many calls as take about 20 ms are enqueued, the last
result is waited for, and the time by the host's clock is divided by their number; such blocks take
turns, and medians are compared. Consecutive calls have different operands where one set of them
would stay in the L2 cache. Operands are shared with torch through DLPack, not copied. Short lines
are left out: their calls would be measured, not their kernels.

The record's `host` has both times. Among those of the other peers (`us`) stands our time of there
times the ratio of these two.
"""

from __future__ import annotations

import importlib
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.gpu_device import FIRST_SEED, FLUSH_BYTES, Call, Machine, Ours
from benchmarks.gpu_jax_functions import function_of
from benchmarks.gpu_line import Line
from benchmarks.time_limit import GivenUp, limited

PEER: Final = "jax"
SHORTEST: Final = 50.0
"""Microseconds of our kernels from which a line is long enough."""
BLOCK_SECONDS: Final = 0.02
FEWEST_CALLS: Final = 4
ROUNDS: Final = 7

Wait = Callable[[Any], Any]
"""What waits for the result of the last call."""


class LeftOutError(Exception):
    """Why a line has no time in JAX, as a sentence."""


def measure(machine: Machine, line: Line, record: dict[str, Any], seconds: float) -> None:
    """Add JAX to the record of a line, or the reason why it is not there."""
    try:
        with limited(seconds):
            record["host"] = _times(machine, line, record)
    except (LeftOutError, GivenUp) as reason:
        record["notes"][PEER] = str(reason)
    except Exception as error:
        record["notes"][PEER] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    else:
        ours, theirs = (record["host"][name] for name in ("weft", PEER))
        record["us"][PEER] = record["us"]["weft"] * theirs / ours


def _times(machine: Machine, line: Line, record: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds of a call, ours and theirs, by the host's clock."""
    if "weft" not in record["us"]:
        raise LeftOutError("left out: there is no time of ours to compare it with")
    expected = record["us"]["weft"]
    if expected < SHORTEST:
        raise LeftOutError(f"left out: lines under {SHORTEST:.0f} µs would measure its calls")
    jax, function = _on_gpu(), function_of(line)
    if function is None:
        raise LeftOutError(f"left out: the family {line.family} is not written in JAX")
    machine.torch.cuda.empty_cache()
    sets = 1 + FLUSH_BYTES // record["bytes"]
    ours = [Ours(machine, line, _inputs(machine, line, number)) for number in range(sets)]
    compiled = jax.jit(partial(function, jax))
    theirs = [partial(compiled, *_shared(machine, jax, found.inputs)) for found in ours]
    _check(machine, line, ours[0], theirs[0])
    graphs: list[Call] = [machine.recorded(found.run)[0] for found in ours]
    calls: dict[str, Sequence[Call]] = {"weft": graphs, PEER: theirs}
    waits: dict[str, Wait] = {
        "weft": lambda _: machine.torch.cuda.synchronize(),
        PEER: jax.block_until_ready,
    }
    count = max(FEWEST_CALLS, int(BLOCK_SECONDS / (1e-6 * expected)))
    return by_turns(calls, waits, count)


def _on_gpu() -> Any:
    """The module, if it finds a GPU. It takes memory as it needs it, not most of it at once."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax = importlib.import_module("jax")
        jax.devices("gpu")
    except ImportError:
        raise LeftOutError("left out: JAX is not installed") from None
    except RuntimeError as error:
        why = str(error).splitlines()[0][:160]
        raise LeftOutError(f"left out: JAX finds no GPU ({why})") from None
    return jax


def _inputs(machine: Machine, line: Line, number: int) -> list[Any]:
    first = FIRST_SEED + number * len(line.inputs)
    return [machine.tensor(found, first + n) for n, found in enumerate(line.inputs)]


def _shared(machine: Machine, jax: Any, inputs: Sequence[Any]) -> list[Any]:
    """The same data as arrays of JAX, whose integers have 32 bits."""
    torch = machine.torch
    narrow = [x.to(torch.int32) if x.dtype is torch.int64 else x for x in inputs]
    torch.cuda.synchronize()
    return [jax.dlpack.from_dlpack(x) for x in narrow]


def _check(machine: Machine, line: Line, ours: Ours, call: Call) -> None:
    """That it computes the same."""
    result = machine.torch.from_dlpack(call().block_until_ready())
    problem = ours.compare(line, result)
    if problem:
        raise LeftOutError(f"left out: it computes something else, {problem}")


def by_turns(
    calls: Mapping[str, Sequence[Call]], waits: Mapping[str, Wait], count: int
) -> dict[str, float]:
    """Microseconds of a call by name: medians over rounds, in each of which every name has a block
    of calls, in random order. A name's calls are taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(FIRST_SEED)
    for name in calls:
        _block(calls[name], waits[name], count)
    for _ in range(ROUNDS):
        order = list(calls)
        shuffled.shuffle(order)
        for name in order:
            times[name].append(_block(calls[name], waits[name], count))
    return {name: 1e6 * statistics.median(found) for name, found in times.items()}


def _block(calls: Sequence[Call], wait: Wait, count: int) -> float:
    """Seconds of a call, `count` of them enqueued."""
    result = None
    started = time.perf_counter()
    for number in range(count):
        result = calls[number % len(calls)]()
    wait(result)
    return (time.perf_counter() - started) / count
