"""A backend whose machine is not there."""

from __future__ import annotations

from typing import Any

from weft.driver.reference import ReferenceBackend
from weft.foundation.errors import BackendUnavailable
from weft.ptir.ir import Program

WHY = "there is no such machine here"


class Absent(ReferenceBackend):
    """Compiles nothing: nothing could run."""

    name = "absent"

    def compile(self, program: Program) -> Any:
        raise BackendUnavailable(WHY)


BACKEND = Absent()
