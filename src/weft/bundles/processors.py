"""What machine code asks of a processor: names, and expressions of C that look for it."""

from __future__ import annotations

import platform
from typing import Final

from weft.target.target import Target

_ON_X86: Final = (
    "avx", "avx2", "fma", "bmi", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
    "avx512vnni", "avx512vbmi", "avx512bf16",
)  # fmt: skip
_X86_LEVELS: Final = {"x86-64-v3": _ON_X86[:5], "x86-64-v4": _ON_X86[:10]}
_ON_ARM: Final = {
    "crc": 1 << 7, "lse": 1 << 8, "fullfp16": 1 << 10, "rdm": 1 << 12, "rcpc": 1 << 15,
    "dotprod": 1 << 20, "sve": 1 << 22,
}  # fmt: skip
"""Bits of what the system says about the processor."""


def machine_of(target: Target) -> str:
    """The kind of machine that a target's code runs on, as systems name it."""
    return target.code[0].partition("-")[0] or platform.machine()


def features_of(target: Target, host: str) -> list[str]:
    """What the code of a target may use beyond what every such machine has; `host` is what LLVM
    says about this processor."""
    there = {each[1:] for each in host.split(",") if each.startswith("+")}
    if machine_of(target) == "x86_64":
        used = _X86_LEVELS.get(target.machine, ()) if target.machine else there
        return [name for name in _ON_X86 if name in used]
    return [] if target.machine else [name for name in _ON_ARM if name in there]


def required(machine: str, features: list[str]) -> tuple[tuple[str, str], ...]:
    """The same with what asks for it."""
    if machine == "x86_64":
        return tuple((name, f'__builtin_cpu_supports("{name}")') for name in features)
    return tuple((name, f"getauxval(AT_HWCAP) & {_ON_ARM[name]}ul") for name in features)
