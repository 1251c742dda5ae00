"""Signatures: which inputs of a program are data, parameters or state, and which are donated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from weft.foundation.errors import UserError
from weft.ptir.ir import Program
from weft.ptir.types import leaves


class Role(Enum):
    """How long an input lives, and who may write it."""

    DATA = "data"
    """New in every run."""
    PARAM = "param"
    """The same in many runs: converted and packed once."""
    STATE = "state"
    """Kept by the executable between runs, at a fixed address, and updated in place."""


@dataclass(frozen=True)
class Signature:
    """One role per (flattened) input; donated inputs may be overwritten by a run."""

    roles: tuple[Role, ...]
    donated: frozenset[int] = frozenset()

    @property
    def given(self) -> tuple[Role, ...]:
        """The roles of what a run is given: all inputs but the state."""
        return tuple(role for role in self.roles if role is not Role.STATE)

    @property
    def given_params(self) -> frozenset[int]:
        """The positions of the parameters in what a run is given."""
        return frozenset(n for n, role in enumerate(self.given) if role is Role.PARAM)

    @property
    def given_donated(self) -> frozenset[int]:
        """The positions of the donated inputs in what a run is given."""
        given = [n for n, role in enumerate(self.roles) if role is not Role.STATE]
        return frozenset(place for place, n in enumerate(given) if n in self.donated)

    def names(self, role: Role) -> list[str]:
        """The Tiny names of the inputs with a role."""
        return [input_name(i) for i, found in enumerate(self.roles) if found is role]

    @property
    def donated_names(self) -> list[str]:
        """The Tiny names of the donated inputs."""
        return [input_name(i) for i in sorted(self.donated)]

    @property
    def tensor_roles(self) -> dict[str, str]:
        """The roles as region tensors have them."""
        words = {Role.DATA: "input", Role.PARAM: "param", Role.STATE: "state"}
        return {input_name(i): words[role] for i, role in enumerate(self.roles)}


def input_name(index: int) -> str:
    """The name of the n-th input in every stage after the frontend."""
    return f"in{index}"


def make_signature(
    program: Program,
    params: Iterable[int] = (),
    state: Iterable[int] = (),
    donate: Iterable[int] = (),
) -> Signature:
    """A signature from lists of input positions; what is in none of them is data."""
    count = sum(1 for kind in program.main.parameters for _ in leaves(kind))
    given = {"params": params, "state": state, "donate": donate}
    chosen = {name: set(_check_positions(name, listed)) for name, listed in given.items()}
    for name, positions in chosen.items():
        for position in positions:
            if not 0 <= position < count:
                raise UserError(
                    f"{name} names input {position!r}; @{program.entry} has inputs 0 to {count - 1}"
                )
    both = chosen["params"] & chosen["state"]
    if both:
        raise UserError(f"input {min(both)} is named in both params and state")
    both = chosen["params"] & chosen["donate"]
    if both:
        raise UserError(
            f"input {min(both)} is named in both params and donate: parameters are the same in "
            "many runs, and what is donated may be overwritten by the first"
        )
    roles = [
        Role.STATE if i in chosen["state"] else Role.PARAM if i in chosen["params"] else Role.DATA
        for i in range(count)
    ]
    return Signature(tuple(roles), frozenset(chosen["donate"]))


def _check_positions(name: str, listed: Iterable[int]) -> list[int]:
    found = list(listed) if isinstance(listed, Iterable) else [listed]
    if not isinstance(listed, Iterable) or any(type(position) is not int for position in found):
        raise UserError(f"{name} is a list of positions of inputs such as [0, 2], not {listed!r}")
    return found
