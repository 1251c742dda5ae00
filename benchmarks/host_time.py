"""What a call costs the host on a GPU: its time without the work that it starts, and what it asks
the driver for.

    python -m benchmarks.models --host --models "gpt2 generation b1"

Calls are made in a loop, and nothing is waited for between them. The functions of the driver are
timed in calls of their own, since looking at them takes time too.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

from weft.runtime.cuda import driver

CALLS: Final = 30


def told(call: Callable[[], Any], wait: Callable[[], None]) -> str:
    """A line on what calls cost, and one for each function of the driver that they use."""
    for _ in range(8):
        call()
    seconds = _timed(call, wait)
    gc.disable()
    try:
        alone = statistics.median(_timed(call, wait))
    finally:
        gc.enable()
    with _watched() as seen:
        for _ in range(CALLS):
            call()
    wait()
    spent = statistics.median(seconds)
    lines = [
        f"host {1e6 * spent:.0f} us a call, at best {1e6 * min(seconds):.0f}, "
        f"{1e6 * alone:.0f} without Python's collector"
    ]
    for name, times in sorted(seen.items(), key=lambda pair: -sum(pair[1])):
        each = 1e6 * statistics.median(times)
        lines.append(f"  {len(times) / CALLS:7.2f} x {name}, {each:.1f} us each")
    return "\n".join(lines)


def _timed(call: Callable[[], Any], wait: Callable[[], None]) -> list[float]:
    wait()
    seconds = []
    for _ in range(CALLS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    wait()
    return seconds


@contextmanager
def _watched() -> Iterator[dict[str, list[float]]]:
    """How often each function of the driver is called inside the block, and what it takes."""
    bindings, seen = driver.bindings(), dict[str, list[float]]()
    found = {n: f for n, f in vars(bindings).items() if n.startswith("cu") and n[2:3].isupper()}
    own = {n: f for n, f in found.items() if callable(f) and not isinstance(f, type)}

    def timed(name: str, function: Any) -> FunctionType:
        def ask(*args: Any) -> Any:
            started = time.perf_counter()
            answer = function(*args)
            seen.setdefault(name, []).append(time.perf_counter() - started)
            return answer

        return ask  # type: ignore[return-value]

    for name, function in own.items():
        setattr(bindings, name, timed(name, function))
    try:
        yield seen
    finally:
        for name, function in own.items():
            setattr(bindings, name, function)
