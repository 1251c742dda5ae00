"""A tokeniser for Weft's text formats, with positions good enough for error messages.

A token is one of: a name (`reduce`, `weft.sqrt.v1`), a number, a quoted string (JSON escapes), a
hex blob (`0x00ff`), or a punctuation mark. Comments run from `#` to the end of the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, NamedTuple, NoReturn, TypeVar

from weft.foundation.errors import SpecViolation

Item = TypeVar("Item")

SPACE: Final = r"(?:[ \t\r\n]++|\#[^\n]*+)*+"
"""Spaces and comments. It never gives back what it has matched: no text makes it try twice."""
MARKS: Final = r"->|[][(){}<>=,:;@%?^!*+/-]"
"""The punctuation of programs, as a pattern."""
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,40}")


@cache
def _token(marks: str) -> re.Pattern[str]:
    """Spaces and then one token, the longest mark first."""
    return re.compile(
        SPACE
        + rf"""(?:
            (?P<hex>0x[0-9a-f]*)
          | (?P<number>[-+]?(?:[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?|inf|nan)(?![A-Za-z_]))
          | (?P<name>[A-Za-z_][A-Za-z0-9_.$-]*(?<![.-]))
          | (?P<string>"(?:[^"\\\n]|\\.)*")
          | (?P<mark>{marks})
          | (?P<end>\Z)
        )""",
        re.VERBOSE,
    )


class Token(NamedTuple):
    """A piece of text, its class, and where it starts."""

    kind: str
    text: str
    offset: int


_NEW: Final = tuple.__new__
"""Makes a `Token` without a call of its constructor: a text has millions."""


class TokenStream:
    """The tokens of a text, read from front to back. `marks` is its punctuation, as a pattern;
    `token` is a whole pattern, for languages that have another idea of names and numbers."""

    def __init__(
        self,
        text: str,
        code: str = "MalformedText",
        marks: str = MARKS,
        token: re.Pattern[str] | None = None,
    ) -> None:
        self.text = text
        self.code = code
        self._token = token or _token(marks)
        self._position = 0
        self.current = self._scan()

    # -- looking and taking ----------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        return self.current.kind == "end"

    def take(self) -> Token:
        """The current token; moves on."""
        token = self.current
        self.current = self._scan()
        return token

    def accept(self, text: str) -> bool:
        """Take the current token if it is exactly this name or mark."""
        token = self.current
        if token.text == text and token.kind in ("name", "mark"):
            self.current = self._scan()
            return True
        return False

    def continue_at(self, position: int) -> None:
        """Go on behind a piece of text that somebody has understood without its tokens."""
        self._position = position
        self.current = self._scan()

    def expect(self, text: str) -> None:
        token = self.current
        if token.text != text or token.kind not in ("name", "mark"):
            self.fail(f"expected {text!r}")
        self.current = self._scan()

    def name(self, what: str = "a name") -> str:
        if self.current.kind != "name":
            self.fail(f"expected {what}")
        return self.take().text

    def label(self, what: str = "a name") -> str:
        """A bare name or number, or any text in quotes."""
        if self.current.kind == "string":
            return self.string()
        if self.current.kind not in ("name", "number"):
            self.fail(f"expected {what}")
        return self.take().text

    def string(self) -> str:
        if self.current.kind != "string":
            self.fail("expected a quoted string")
        try:
            text = str(json.loads(self.current.text, strict=False))
            text.encode()
        except UnicodeEncodeError:
            self.reject("the string has a lone surrogate and is not text", self.current.offset)
        except ValueError:
            self.fail("the string has an escape that is not JSON's")
        self.take()
        return text

    def integer(self, what: str = "a whole number") -> int:
        kind, text, _ = self.current
        if kind != "number" or not _INTEGER.fullmatch(text):
            self.fail(f"expected {what}")
        self.current = self._scan()
        return int(text)

    def number(self) -> float:
        if self.current.kind != "number" or len(self.current.text) > 400:
            self.fail("expected a number")
        number = float(self.current.text)
        if math.isinf(number) and "inf" not in self.current.text:
            self.fail("expected a number that 64-bit floats can hold")
        self.take()
        return number

    def listed(self, item: Callable[[], Item], open_: str = "[", close: str = "]") -> list[Item]:
        """Comma-separated items between two marks."""
        self.expect(open_)
        items: list[Item] = []
        while not self.accept(close):
            if items:
                self.expect(",")
            items.append(item())
        return items

    # -- errors ----------------------------------------------------------------------------------

    def where(self, offset: int | None = None) -> str:
        at = self.current.offset if offset is None else offset
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return f"line {line}, column {column}"

    def fail(self, why: str) -> NoReturn:
        found = (
            self.current.text if len(self.current.text) <= 30 else self.current.text[:27] + "..."
        )
        shown = "the end of the text" if self.at_end else repr(found)
        raise SpecViolation(self.code, f"{why} but found {shown}", where=self.where())

    def reject(self, why: str, offset: int, code: str = "") -> NoReturn:
        """A complaint about what stands at `offset`, which need not be the current token."""
        raise SpecViolation(code or self.code, why, where=self.where(offset))

    def _scan(self) -> Token:
        match = self._token.match(self.text, self._position)
        if match is None:
            # The character that is wrong stands behind what may be skipped.
            space = re.match(SPACE, self.text[self._position :])
            at = self._position + (space.end() if space else 0)
            self.reject(f"unexpected character {self.text[at]!r}", at)
        kind = match.lastgroup or ""
        text, self._position = match[kind], match.end()
        return _NEW(Token, (kind, text, self._position - len(text)))


def quoted(text: str) -> str:
    """Text in quotes, with JSON escapes: ASCII only, on one line."""
    return json.dumps(text)


def label(text: str) -> str:
    """A name as it is where it can be, else in quotes."""
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) else quoted(text)


def commas(parts: Iterable[object]) -> str:
    return ", ".join(map(str, parts))
