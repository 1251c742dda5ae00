"""Backends that do not come back: one ends its process, one waits for ever."""

from __future__ import annotations

import os
import time
from typing import Any

from weft.driver.reference import ReferenceBackend
from weft.ptir.ir import Program


class Deadly(ReferenceBackend):
    """Ends its process where a program has a tanh, and sleeps where it has a sine."""

    name = "deadly"

    def compile(self, program: Program) -> Any:
        names = {instruction.op.mnemonic for instruction in program.main.body}
        if "tanh" in names:
            os._exit(3)
        if "sin" in names:
            time.sleep(600)
        return super().compile(program)


BACKEND = Deadly()
