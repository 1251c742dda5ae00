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
from weft.foundation.text import TokenStream
from weft.foundation.whole_numbers import read_whole

NON_AFFINE: Final = "E1405 NonAffine"
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)|(?P<param>\$[A-Za-z0-9_.]+)"
    r"|(?P<mark><=|\S)|(?P<end>\Z))"
)


def parse_expr(text: str) -> Expr:
    """The expression that prints as `text`."""
    reader = _read_alone(text)
    found = reader.sum()
    reader.end()
    return found


def parse_index(texts: list[str]) -> Index:
    """One expression per axis."""
    return tuple(parse_expr(text) for text in texts)


def parse_guard(text: str) -> Guard:
    """The guard that prints as `text`."""
    reader = _read_alone(text)
    found = reader.guard()
    reader.end()
    return found


def _read_alone(text: str) -> IndexReader:
    return IndexReader(TokenStream(text, NON_AFFINE, token=_TOKEN))


class IndexReader:
    """Recursive descent over the tokens of expressions."""

    def __init__(self, tokens: TokenStream) -> None:
        self.tokens = tokens

    def guard(self) -> Guard:
        self.expect("0")
        self.expect("<=")
        found = self.sum()
        self.expect("<")
        return Guard(found, self.number())

    def expect(self, text: str) -> None:
        if self.tokens.take().text != text:
            self.fail(f"{text!r} is missing")

    def end(self) -> None:
        text = self.tokens.current.text
        if text == "*":
            self.fail("two axes are multiplied")
        if text in ("/", "%"):
            self.fail("only floor((...)/number) divides")
        if text:
            self.fail(f"{text!r} is not expected")

    def fail(self, why: str) -> NoReturn:
        self.refuse(f"the index expression {self.tokens.text!r} is not affine: {why}")

    def refuse(self, why: str) -> NoReturn:
        raise SpecViolation(NON_AFFINE, why)

    def number(self) -> int:
        token = self.tokens.take()
        if token.kind != "number":
            self.fail(f"a number is missing before {token.text!r}")
        found = read_whole(token.text)
        if found is None:
            shown = clipped(self.tokens.text, 100)
            self.refuse(f"the index expression {shown!r} has a number beyond 64 bits")
        return found

    def sum(self) -> Expr:
        total = scale(self.term(), -1) if self.tokens.accept("-") else self.term()
        while self.tokens.current.text in ("+", "-"):
            sign = 1 if self.tokens.take().text == "+" else -1
            total = add(total, scale(self.term(), sign))
        return total

    def term(self) -> Expr:
        if self.tokens.current.kind != "number":
            return self.atom()
        number = self.number()
        return scale(self.atom(), number) if self.tokens.accept("*") else constant(number)

    def atom(self) -> Expr:
        kind, text, _ = self.tokens.take()
        if kind == "param":
            return param(text[1:])
        if text == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        if kind != "name":
            self.fail(f"an axis is missing before {text!r}")
        return self.division() if text == "floor" else axis(text)

    def division(self) -> Expr:
        self.expect("(")
        inner = self.atom() if self.tokens.current.text == "(" else self.sum()
        self.expect("/")
        divisor = self.number()
        self.expect(")")
        if divisor == 0:
            self.fail("it divides by 0")
        return floordiv(inner, divisor)
