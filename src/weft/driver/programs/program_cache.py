"""The cache of whole programs on disk: another process that compiles the same program links it and
is done.

The key is made of everything that a compilation depends on: the program, what its inputs are, the
stages that were given as text, the target, the limits in force, what was tuned, Weft itself, and
what its linker names: for a CPU this machine's processor and LLVM, for a GPU the architecture that
is built for and NVRTC. So programs for a GPU may be compiled on one machine and run on another.

The user's lines are not part of it, though errors of a run name them: what is kept says which
values of the program each line wrote, and a program that is found gets the lines as they are now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from numpy.typing import NDArray

from weft.driver.signature import Role, Signature
from weft.driver.stages.compilation import DEFAULT_LEVEL
from weft.driver.stages.generators import Built, linker_for
from weft.foundation import limits
from weft.foundation.errors import WeftError
from weft.ptir.codecs import bincode
from weft.ptir.ir import Program, ValueKey
from weft.ptir.types import leaves
from weft.runtime import cache, packing
from weft.runtime.artifact import Artifact, Enter, Launch
from weft.runtime.jit import host_cpu
from weft.runtime.packing import Packed
from weft.runtime.verify import Given, is_sound
from weft.target.target import Target

Array = NDArray[Any]
MOST_BYTES: Final = 64 << 20
"""Programs that take more are not kept: their constants are already somewhere on this disk."""
MOST_LINES: Final = 3
"""How many lines an error names where it does not know which of them it is."""
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
    if made_by is None or any(i.op.foreign for body in program.bodies for i in body.body):
        # A function of the user's is not written down.
        return None
    try:
        digest = hashlib.sha256(bincode.encode(program)).hexdigest()
    except WeftError:
        # Not every program has a wire form: a region may return a tuple that it was given.
        return None
    lined = sorted(program.locations)
    inputs = (signature.roles, sorted(signature.donated))
    machine = (target.name, target.machine, sorted(target.features), target.limits, target.rates)
    given = sorted((overrides or {}).items())
    facts = repr((lined, inputs, machine, level, given, limits.current()))
    # What was tuned since makes other plans, and so another program.
    data = cache.load(tuned_key(target))
    plans = () if data is None else (hashlib.sha256(data).hexdigest(),)
    return cache.key_of("program", digest, facts, *plans, *made_by)


def tuned_key(target: Target) -> str:
    """The key of the plans that were measured to be best on a target. It outlives changes of Weft:
    a plan is no code, and one that no longer suits its kernel is not taken."""
    parts = ("tuned plans", target.fingerprint, *host_cpu())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_kept(
    key: str | None, target: Target, program: Program, signature: Signature, state: Sequence[Array]
) -> Found:
    """What there is under a key."""
    if key is None:
        return Found()
    entry = cache.look_up(key)
    found = None if entry.payload is None else packing.unpack(entry.payload)
    is_there = entry.is_damaged or entry.payload is not None
    missing = Found(note=DAMAGED if is_there else "")
    if found is None or not is_sound(found.artifact, _given_to(program, signature)):
        return missing
    artifact = _with_lines(found, program)
    try:
        linked = linker_for(target).link(artifact, signature, state)
    except (WeftError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        # What is wrong with more than the entry is told when the program is compiled.
        return missing
    reused, said = len(artifact.kernels), (list(found.notes), list(found.warned))
    return Found(Built(linked, artifact, found.symbols, 0, reused, *said))


def _given_to(program: Program, signature: Signature) -> Given:
    """What an artifact of a program has to agree with."""
    kinds = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    results = [leaf for kind in program.main.results for leaf in leaves(kind)]
    states = [role is Role.STATE for role in signature.roles]
    return Given(
        [(kind.dtype.name, kind.static_shape) for kind in kinds],
        [(kind.dtype.name, kind.static_shape) for kind in results],
        [kind.bytes for kind, held in zip(kinds, states, strict=True) if not held],
        [kind.bytes for kind, held in zip(kinds, states, strict=True) if held],
    )


def save_kept(key: str | None, program: Program, built: Built) -> None:
    """Keep a program for the next process."""
    if key is None or sum(map(len, built.artifact.constants)) > MOST_BYTES:
        return
    lines = _lines_of(built.artifact, program)
    notes, warned = tuple(built.notes), tuple(built.warned)
    data = packing.pack(Packed(built.artifact, built.symbols, notes, lines, warned))
    if len(data) <= MOST_BYTES:
        cache.save(key, data)


def _lines_of(artifact: Artifact, program: Program) -> dict[str, tuple[ValueKey, ...]]:
    """The lines that an artifact names, and the values of the program that they wrote."""
    steps = (step for step in artifact.steps if isinstance(step, Launch | Enter))
    named = {site.line for step in steps for site in step.where if site.line}
    wrote: dict[str, list[ValueKey]] = {line: [] for line in named}
    for value, line in sorted(program.locations.items()) if named else ():
        if line in wrote:
            wrote[line].append(value)
    return {line: tuple(values) for line, values in wrote.items()}


def _with_lines(found: Packed, program: Program) -> Artifact:
    """An artifact with the lines that its program has now. What one line wrote may stand on several
    now, and then all of them are named."""
    now = {
        line: _join_lines(program.locations.get(value, "") for value in values)
        for line, values in found.lines.items()
    }
    steps = (
        replace(step, where=tuple(replace(s, line=now.get(s.line, "")) for s in step.where))
        if isinstance(step, Launch | Enter) and step.where
        else step
        for step in found.artifact.steps
    )
    return replace(found.artifact, steps=tuple(steps)) if now else found.artifact


def _join_lines(lines: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, lines)))
    more = ", ..." if len(distinct) > MOST_LINES else ""
    return " or ".join(distinct[:MOST_LINES]) + more
