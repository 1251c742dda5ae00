"""Bounds on what an untrusted program may ask for, read once from the environment.

They exist so that a small file cannot claim a huge machine: each is checked before memory is taken,
or a kernel is launched that nobody lives to see the end of.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from weft.foundation.errors import ResourceExceeded, UserError


@dataclass(frozen=True)
class Limits:
    """How much one program may use, and how long it may take, by the compiler's estimate, before
    somebody is warned. Change with `WEFT_MAX_TENSOR_BYTES`, `WEFT_MAX_LOOP_STEPS`,
    `WEFT_MAX_KERNEL_STEPS`, `WEFT_WARN_SECONDS`."""

    tensor_bytes: int = 16 << 30
    loop_steps: int = 2_000_000
    kernel_steps: int = 1 << 44
    warned_seconds: int = 10
    rank: int = 64
    nesting: int = 64


def _read_limit(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise UserError(f"the environment variable {name} is {text!r}; it must be a whole number")
    return int(text)


def current() -> Limits:
    """The limits in force: the defaults, overridden by the environment."""
    return Limits(
        tensor_bytes=_read_limit("WEFT_MAX_TENSOR_BYTES", Limits.tensor_bytes),
        loop_steps=_read_limit("WEFT_MAX_LOOP_STEPS", Limits.loop_steps),
        kernel_steps=_read_limit("WEFT_MAX_KERNEL_STEPS", Limits.kernel_steps),
        warned_seconds=_read_limit("WEFT_WARN_SECONDS", Limits.warned_seconds),
    )


def check_bytes(count: int, what: str, limits: Limits) -> None:
    """Refuse an allocation before it is made."""
    if count > limits.tensor_bytes:
        raise ResourceExceeded(
            f"{what} would need {count:,} bytes, over the limit of {limits.tensor_bytes:,}; "
            "raise WEFT_MAX_TENSOR_BYTES if this is meant"
        )


def check_steps(count: int, what: str, limits: Limits) -> None:
    """Refuse a kernel that would go through too many elements."""
    if count > limits.kernel_steps:
        raise ResourceExceeded(
            f"{what} would take {count:,} steps, over the limit of {limits.kernel_steps:,}; "
            "raise WEFT_MAX_KERNEL_STEPS if this is meant"
        )
