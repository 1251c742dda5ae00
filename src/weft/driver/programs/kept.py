"""Whole programs on disk: another process that compiles the same program links it and is done.

The key is made of everything that a compilation depends on: the program, what its inputs are, the
stages that were given as text, the target, the limits in force, what was tuned, Weft itself, and
what its linker names: for a CPU this machine's processor and LLVM, for a GPU the architecture that
is built for and NVRTC. So programs for a GPU may be compiled on one machine and run on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from weft.driver.signature import Signature
from weft.driver.stages.generators import Built, linker_for
from weft.driver.stages.levels import DEFAULT_LEVEL
from weft.foundation import limits
from weft.foundation.errors import WeftError
from weft.ptir.codecs import bincode
from weft.ptir.ir import Program
from weft.runtime import bundle, cache
from weft.runtime.bundle import Bundle
from weft.runtime.jit import host_cpu
from weft.target.target import Target

Array = NDArray[Any]
MOST_BYTES: Final = 64 << 20
"""Programs that take more are not kept: their constants are already somewhere on this disk."""
DAMAGED: Final = "what was kept of it on disk is damaged, so it was compiled again"


@dataclass(frozen=True)
class Found:
    """What the disk has of a program: the program, linked; where it is not, perhaps why."""

    built: Built | None = None
    note: str = ""


def key_of(
    program: Program,
    target: Target,
    signature: Signature,
    level: int = DEFAULT_LEVEL,
    overrides: Mapping[str, str] | None = None,
) -> str | None:
    """The key of a program without dynamic dims; None where it would not be kept."""
    made_by = None if cache.folder() is None else linker_for(target).facts(target)
    if made_by is None:
        return None
    try:
        digest = hashlib.sha256(bincode.encode(program)).hexdigest()
    except WeftError:
        # Not every program has a wire form: a region may return a tuple that it was given.
        return None
    lines = sorted(program.locations.items())
    inputs = (signature.roles, sorted(signature.donated))
    machine = (target.name, sorted(target.features), target.limits, target.rates)
    given = sorted((overrides or {}).items())
    facts = repr((lines, inputs, machine, level, given, limits.current()))
    return cache.key_of("program", digest, facts, *_tuned(target), *made_by)


def _tuned(target: Target) -> tuple[str, ...]:
    """What was tuned: other plans, another program."""
    data = cache.load(tuned_key(target))
    return () if data is None else (hashlib.sha256(data).hexdigest(),)


def tuned_key(target: Target) -> str:
    """The key of the plans that were measured to be best on a target. It outlives changes of Weft:
    a plan is no code, and one that no longer suits its kernel is not taken."""
    parts = ("tuned plans", target.fingerprint, *host_cpu())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str | None, target: Target, signature: Signature, state: Sequence[Array]) -> Found:
    """What there is under a key."""
    if key is None:
        return Found()
    entry = cache.look_up(key)
    found = None if entry.payload is None else bundle.unpack(entry.payload)
    if found is None:
        is_there = entry.is_damaged or entry.payload is not None
        return Found(note=DAMAGED if is_there else "")
    artifact = found.artifact
    program = linker_for(target).link(artifact, signature, state)
    reused, notes = len(artifact.kernels), list(found.notes)
    return Found(Built(program, artifact, found.symbols, compiled=0, reused=reused, notes=notes))


def save(key: str | None, built: Built) -> None:
    """Keep a program for the next process."""
    if key is None or sum(map(len, built.artifact.constants)) > MOST_BYTES:
        return
    data = bundle.pack(Bundle(built.artifact, built.symbols, tuple(built.notes)))
    if len(data) <= MOST_BYTES:
        cache.save(key, data)
