"""The tokens of the surface language: signs are operators there, not parts of numbers or names."""

from __future__ import annotations

import re
from typing import Final

from weft.core_ir.attribute_text import UNPARSABLE
from weft.foundation.text import SPACE, Token, TokenStream

_TOKEN: Final = re.compile(
    SPACE
    + r"""(?:
        (?P<number>[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?(?![A-Za-z0-9_]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<mark>[][(),:;=+*/@-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


class SurfaceTokens(TokenStream):
    """The tokens of an expression, with a look at the one after the current."""

    def __init__(self, text: str) -> None:
        super().__init__(text, UNPARSABLE, token=_TOKEN)

    def peek(self) -> Token:
        """The token after the current one."""
        position = self._position
        try:
            return self._scan()
        finally:
            self._position = position

    def integer(self, what: str = "a whole number") -> int:
        """A whole number with its sign."""
        return -super().integer(what) if self.accept("-") else super().integer(what)
