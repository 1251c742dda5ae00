"""Index expressions as text: the form that `str` of an `Expr` or a `Guard` prints, read back.

    guard = "0 <=" expr "<" number
    expr  = ["-"] term (("+" | "-") term)*
    term  = [number "*"] atom | number
    atom  = axis | "$" param | "floor((" expr ")/" number ")" | "(" expr ")"

What is not affine (a product of two axes, a division that is not by a number) is E1405 NonAffine.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.index_expr import (
    Expr,
    Guard,
    Index,
    add,
    axis,
    constant,
    floordiv,
    param,
    scale,
)
from weft.foundation.whole_numbers import read_whole

NON_AFFINE: Final = "E1405 NonAffine"
_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_][A-Za-z0-9_.]*)|(\$[A-Za-z0-9_.]+)|(<=|[^\s]))")


def parse_expr(text: str) -> Expr:
    """The expression that prints as `text`."""
    parser = _Parser(text)
    found = parser.sum()
    parser.end()
    return found


def parse_index(texts: list[str]) -> Index:
    """One expression per axis."""
    return tuple(parse_expr(text) for text in texts)


def parse_guard(text: str) -> Guard:
    """The guard that prints as `text`."""
    parser = _Parser(text)
    parser.expect("0")
    parser.expect("<=")
    found = parser.sum()
    parser.expect("<")
    size = parser.number()
    parser.end()
    return Guard(found, size)


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [match.group().strip() for match in _TOKEN.finditer(text.rstrip())]
        self.position = 0

    @property
    def current(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.current
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            self.fail(f"{token!r} is missing")

    def end(self) -> None:
        if self.current == "*":
            self.fail("two axes are multiplied")
        if self.current in ("/", "%"):
            self.fail("only floor((...)/number) divides")
        if self.current:
            self.fail(f"{self.current!r} is not expected")

    def fail(self, why: str) -> NoReturn:
        raise SpecViolation(NON_AFFINE, f"the index expression {self.text!r} is not affine: {why}")

    def number(self) -> int:
        token = self.take()
        if not token.isdecimal():
            self.fail(f"a number is missing before {token!r}")
        found = read_whole(token)
        if found is None:
            shown = clipped(self.text, 100)
            raise SpecViolation(
                NON_AFFINE, f"the index expression {shown!r} has a number beyond 64 bits"
            )
        return found

    def sum(self) -> Expr:
        sign = -1 if self.current == "-" else 1
        if self.current == "-":
            self.take()
        total = scale(self.term(), sign)
        while self.current in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total = add(total, scale(self.term(), sign))
        return total

    def term(self) -> Expr:
        if not self.current.isdecimal():
            return self.atom()
        number = self.number()
        if self.current != "*":
            return constant(number)
        self.take()
        return scale(self.atom(), number)

    def atom(self) -> Expr:
        token = self.take()
        if token == "(":  # noqa: S105
            inner = self.sum()
            self.expect(")")
            return inner
        if token == "floor":  # noqa: S105
            return self.division()
        if token.startswith("$"):
            return param(token[1:])
        if not token or not (token[0].isalpha() or token[0] == "_"):
            self.fail(f"an axis is missing before {token!r}")
        return axis(token)

    def division(self) -> Expr:
        self.expect("(")
        inner = self.atom() if self.current == "(" else self.sum()
        self.expect("/")
        divisor = self.number()
        self.expect(")")
        if divisor == 0:
            self.fail("it divides by 0")
        return floordiv(inner, divisor)
