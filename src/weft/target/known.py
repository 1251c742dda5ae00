"""Targets by name."""

from __future__ import annotations

from weft.foundation.errors import UserError
from weft.target.cpu import PROCESSORS, host
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90
from weft.target.target import Target

GPUS = ("sm80", "sm90")
NAMES = ("cpu", *GPUS, *PROCESSORS)


def target_named(name: str | Target) -> Target:
    """The target called `name`; a target is itself."""
    match name:
        case Target():
            return name
        case "cpu":
            return host()
        case "sm80":
            return SM80
        case "sm90":
            return SM90
        case str() if name in PROCESSORS:
            return PROCESSORS[name]
        case _:
            why = f"there is no target {name!r}; the targets are {', '.join(NAMES)}"
            raise UserError(why, "UnknownTarget")
