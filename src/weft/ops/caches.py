"""What Weft caches in this process: counts, and how to release it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from weft.driver.loading.lazy_modules import load_part
from weft.foundation.calls import told_methods
from weft.foundation.memo import forget
from weft.ops.calls import public
from weft.ops.graph.cache import PROGRAMS
from weft.ops.jit import FUNCTIONS
from weft.ops.shapes import ByShape

_DEVICES: Final = "weft.driver.devices"


@told_methods
@dataclass(frozen=True)
class CacheInfo:
    """The caches of this process. Programs are those of lazy tensors; functions are under `jit`."""

    programs: int
    most_programs: int
    hits: int
    misses: int
    evicted: int
    functions: int
    versions: int
    """Compiled versions of functions: one for each kind of arguments."""
    clusters: int
    """Programs compiled for sizes of dynamic dims."""
    compiled: int
    """Programs compiled so far, for lazy tensors and functions alike."""


@public
def cache_info() -> CacheInfo:
    """How much is compiled, and how often it was found again."""
    functions = list(FUNCTIONS)
    versions = [version for function in functions for version in list(function.versions.values())]
    dynamic = [v.compiled for v in versions if isinstance(v.compiled, ByShape)]
    counted = PROGRAMS.statistics
    return CacheInfo(
        programs=len(PROGRAMS),
        most_programs=PROGRAMS.size,
        hits=counted.hits,
        misses=counted.misses,
        evicted=counted.evicted,
        functions=len(functions),
        versions=len(versions),
        clusters=sum(len(compiled.clusters.clusters) for compiled in dynamic),
        compiled=counted.compiled,
    )


@public
def clear_caches() -> None:
    """Forget every compiled program of lazy tensors and functions, and what was worked out on the
    way. What is kept on disk stays."""
    PROGRAMS.clear()
    for function in list(FUNCTIONS):
        function.clear()
    forget()


@public
def gpu_memory(*, reset_peak: bool = False) -> Any:
    """How the memory of the GPU is used, in bytes: `in_use` by purpose, the `peak`, what is `kept`
    for whoever asks next, what is `free`, and the `whole`. With `reset_peak` the peak begins
    anew."""
    return load_part(_DEVICES).gpu_memory(reset_peak=reset_peak)
