"""What a bundle has code for: a target, or several, each with a variant of the model.

A library has the variants of one kind of machine, those that ask for most first: a program is the
first of them that its processor, or its GPU, can run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from weft.bundles.model import Model
from weft.bundles.processors import features_of, machine_of, required
from weft.bundles.versions import Ranges, Versions, compile_versions
from weft.foundation.errors import UserError
from weft.runtime.jit import host_cpu
from weft.target.cpu import MATRIX_TILES
from weft.target.known import target_named
from weft.target.target import Kind, Target


@dataclass(frozen=True)
class Variant:
    """The compiled programs of a model for one target."""

    target: Target
    compiled: Versions

    @property
    def name(self) -> str:
        return _target_name(self.target)

    @property
    def machine(self) -> str:
        """The kind of machine whose library it is in."""
        return machine_of(self.target)

    @property
    def architecture(self) -> str:
        """Of a GPU, what its machine code is for: `sm_90a`; else nothing."""
        on_gpu = self.target.kind is Kind.GPU
        return self.compiled.versions[0].artifact.target if on_gpu else ""

    @property
    def capability(self) -> tuple[int, int, int]:
        """What a GPU must be: its generation, the least of it, and whether it must be just that."""
        digits = self.architecture.removeprefix("sm_").rstrip("a")
        if not digits:
            return 0, 0, 0
        return int(digits[:-1]), int(digits[-1]), int(self.architecture.endswith("a"))

    @property
    def words(self) -> str:
        """The target, for people."""
        if self.architecture:
            return f"{self.name} ({self.architecture})"
        return self.target.machine or f"{self.machine} ({host_cpu()[1]})"

    @cached_property
    def features(self) -> list[str]:
        """What the code may use beyond what every such machine has."""
        return _features(self.target)

    @property
    def required(self) -> tuple[tuple[str, str], ...]:
        """The same, with the expressions of C that ask for it."""
        return required(self.machine, self.features)

    @property
    def listed(self) -> dict[str, Any]:
        """The target as the manifest lists it."""
        triple, processor, _ = self.target.code if self.target.machine else host_cpu()
        if self.architecture:
            triple, processor = "", self.architecture
        names = {"name": self.name, "machine": self.machine}
        return {**names, "triple": triple, "processor": processor, "features": self.features}


def targets_of(given: str | Target | Sequence[str | Target]) -> list[Target]:
    """The targets of a bundle, those that ask for most first: processors, or GPUs."""
    several = [given] if isinstance(given, str | Target) else list(given)
    found = [_for_any_machine(target_named(each)) for each in several]
    names = [_target_name(target) for target in found]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if not found or twice:
        raise UserError(f"the target {twice} is given twice" if twice else "no target is given")
    kinds = {target.kind: _target_name(target) for target in reversed(found)}
    if len(kinds) > 1:
        raise UserError(
            f"one bundle cannot be for both processors and GPUs: build one for "
            f"{kinds[Kind.CPU]} and one for {kinds[Kind.GPU]}"
        )
    return sorted(found, key=lambda target: -len(_features(target)))


def variants_of(model: Model, targets: Sequence[Target], ranges: Ranges) -> tuple[Variant, ...]:
    """The model compiled for each target."""
    return tuple(Variant(target, compile_versions(model, target, ranges)) for target in targets)


def by_machine(variants: Sequence[Variant]) -> Mapping[str, tuple[Variant, ...]]:
    """The variants of each kind of machine."""
    machines = dict.fromkeys(variant.machine for variant in variants)
    return {each: tuple(v for v in variants if v.machine == each) for each in machines}


def _for_any_machine(target: Target) -> Target:
    """Code for GPUs is for those of its kind, whichever this machine has. Code for processors uses
    no matrix tiles, for which a program would have to ask its system."""
    target = replace(target, features=target.features - MATRIX_TILES)
    return replace(target, machine=target.name) if target.kind is Kind.GPU else target


def _target_name(target: Target) -> str:
    return target.name if target.kind is Kind.GPU else target.machine or "cpu"


def _features(target: Target) -> list[str]:
    return [] if target.kind is Kind.GPU else features_of(target, host_cpu()[2])
