"""The machine Weft runs on, as a CPU target.

Features come from what the operating system says about the processor; where it says nothing, the
least that the architecture guarantees is assumed. Rates are estimates from core count and vector
width, good enough to compare two ways of computing the same thing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from weft.target.target import Kind, Limits, Rates, Target

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CLOCK = 2.6e9
_USUAL_CORES = 4
"""Of a machine that is compiled for from another one: its clock and its cores."""
CORE_BANDWIDTH = 12e9
"""Bytes a second to and from one core; ..."""
_FILL_MEMORY = 8
"""... so many cores ask for all that memory gives."""
_SEEN = 0.25
"""One core took 13.6 ms for stencils that compute for 3.4 ms and move for 11.9 ms."""
_KNOWN = frozenset(
    {"avx", "avx2", "fma", "avx512f", "avx512dq", "avx512_bf16", "f16c", "asimd", "asimddp"}
    | {"asimdhp", "bf16", "sve", "amx_bf16", "amx_int8"}
)
MATRIX_TILES = frozenset({"amx_bf16", "amx_int8"})
"""What a program may use only after it has asked the system for the registers."""
_ARCH_PRCTL, _REQUEST, _TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: the call, what it shall do, and the registers that it is asked for."""


@cache
def host() -> Target:
    """The host, asked once."""
    flags = read_flags(_file_text(_CPUINFO))
    if flags & MATRIX_TILES and not allows_tiles():
        flags -= MATRIX_TILES
    return describe(platform.machine(), flags, available_cores(), read_caches(_CACHES))


def allows_tiles() -> bool:
    """Whether the system lets this process, all its threads and its children, use matrix tiles."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    answer: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA)
    return answer == 0


def describe(machine: str, flags: frozenset[str], cores: int, caches: tuple[int, ...]) -> Target:
    """A CPU target from an architecture name, its feature flags, its cores and its caches."""
    bits = vector_bits(machine, flags)
    lanes = bits // 32
    # Two fused multiply-adds a clock is what these cores reach with full vectors.
    peak = cores * lanes * 4 * _CLOCK
    rates = Rates(
        {"f32": peak, "f64": peak / 2, "bf16": peak, "f16": peak},
        {"f32": peak / 4, "f64": peak / 8},
        bandwidth=CORE_BANDWIDTH * min(cores, _FILL_MEMORY),
        launch_seconds=2e-6,
        seen=_SEEN,
    )
    limits = Limits(
        units=cores,
        vector_bits=bits,
        vector_registers=32 if machine in _ARM or bits == 512 else 16,
        cache_bytes=caches or (32 << 10, 1 << 20),
    )
    return Target("cpu", Kind.CPU, flags & _KNOWN, limits, rates)


_ARM = ("aarch64", "arm64")


def _elsewhere(name: str, machine: str, flags: str) -> Target:
    """Processors of a kind, wherever they are: code for them is built, and not run here."""
    made = describe(machine, frozenset(flags.split()), _USUAL_CORES, ())
    processor = name if name.startswith("x86") else "generic"
    return replace(made, machine=name, code=(f"{machine}-unknown-linux-gnu", processor, ""))


def vector_bits(machine: str, flags: frozenset[str]) -> int:
    """The width of the vectors that code is written for."""
    if machine in _ARM:
        return 128
    if "avx512f" in flags:
        return 512
    return 256 if {"avx2", "fma"} <= flags else 128


def available_cores() -> int:
    """Cores this process may use: the affinity mask where there is one."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def read_flags(text: str) -> frozenset[str]:
    """The feature flags of the first processor in a /proc/cpuinfo text."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def model_name(text: str | None = None) -> str:
    """What a /proc/cpuinfo text calls the processor; nothing where it does not."""
    for line in (_file_text(_CPUINFO) if text is None else text).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def read_caches(folder: Path) -> tuple[int, ...]:
    """Sizes of the data caches, from the nearest to the last; nothing where they are not told."""
    found: dict[int, int] = {}
    for entry in sorted(folder.glob("index*")):
        size, level = _file_text(entry / "size").strip(), _file_text(entry / "level").strip()
        if _file_text(entry / "type").strip() == "Instruction" or not size[:-1].isdecimal():
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
        found[int(level)] = int(size[:-1]) * unit
    return tuple(found[level] for level in sorted(found))


def _file_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_V3 = "avx avx2 fma f16c"
PROCESSORS = {
    "x86-64-v3": _elsewhere("x86-64-v3", "x86_64", _V3),
    "x86-64-v4": _elsewhere("x86-64-v4", "x86_64", f"{_V3} avx512f avx512dq"),
    "aarch64": _elsewhere("aarch64", "aarch64", "asimd"),
}
"""Kinds of processors that code can be built for, by name."""
