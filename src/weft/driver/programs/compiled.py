"""What every compiled program has in common: it stays in its process."""

from __future__ import annotations

from typing import NoReturn

from weft.foundation.errors import UserError


class Compiled:
    """The base of what holds machine code at addresses of this process, and memory that runs write
    into: it is neither pickled nor copied."""

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"{type(self).__name__}, a compiled program, can be neither pickled nor copied: it "
            "belongs to its process; send the program and compile it there, which finds the "
            "machine code in Weft's cache",
            "CannotBePickled",
        )
