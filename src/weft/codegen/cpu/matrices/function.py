"""A function of machine code under construction, for matrices whose rows lie in memory.

Rows are filled up to 4, 8 or a whole multiple of 16 columns, but for the b of a triangle of few
rows; only what is read by single numbers, `t` and the `a` of a product, may lie in any direction.
Strides count elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.codegen.cpu.code import Code, Val, number

WIDE: Final = 16
"""Columns of a panel, and of which rows have whole multiples."""
NARROW: Final = (4, 8)
"""Columns of matrices that have fewer."""


@dataclass
class Function:
    """A function under construction, whose parameters are numbers of 64 bits and places."""

    name: str
    scalar: str
    numbers: Sequence[str]
    places: Sequence[str]
    linkage: str = "internal "
    code: Code = field(default_factory=Code)

    def n(self, name: str) -> Val:
        """A number that is given."""
        return Val(f"%{name}", "i64")

    def at(self, place: str, *terms: tuple[Val, Val | int], kind: str = "") -> str:
        """A place some strides further on."""
        index = whole(0)
        for count, stride in terms:
            step = whole(stride) if isinstance(stride, int) else stride
            index = self.code.binary("add", index, self.code.binary("mul", count, step))
        return self.code.far_pointer(place, kind or self.scalar, index)

    def one(self, place: str) -> Val:
        return self.code.load(self.scalar, place, 1, 4)

    def row(self, place: str, lanes: int = WIDE) -> Val:
        return self.code.load(self.scalar, place, lanes, 4)

    def each(self, stop: Val, body: Callable[[Val], None], *, start: Val | None = None) -> None:
        self.code.loop(start or whole(0), stop, 1, body)

    def plus(self, a: Val, b: Val | int) -> Val:
        return self.code.binary("add", a, whole(b) if isinstance(b, int) else b)

    def minus(self, a: Val, b: Val) -> Val:
        return self.code.binary("sub", a, b)

    def least(self, a: Val, b: Val) -> Val:
        return self.code.intrinsic("llvm.smin", a, b)

    def half(self, count: Val) -> Val:
        """About a half, a whole multiple of 16: of more than 16, never nothing and never all."""
        groups = self.code.binary("sdiv", self.plus(count, WIDE - 1), whole(2 * WIDE))
        return self.code.binary("mul", groups, whole(WIDE))

    def filled(self, count: Val) -> Val:
        """Columns of a row that has so many."""
        return self.code.binary("and", self.plus(count, WIDE - 1), whole(-WIDE))

    def call(self, name: str, numbers: Sequence[Val | int], *places: str) -> None:
        given = [f"i64 {whole(n).text if isinstance(n, int) else n.text}" for n in numbers]
        given += [f"ptr {place}" for place in places]
        self.code.line(f"call void @{name}({', '.join(given)})")

    def by_width(self, row: Val, body: Callable[[int], None]) -> None:
        """`body` for the columns that rows are filled up to, given how far apart they are."""
        narrow, wider = NARROW
        is_narrow, is_wider = (self.code.compare("icmp sle", row, whole(n)) for n in NARROW)
        self.code.either(
            is_narrow,
            lambda: body(narrow),
            lambda: self.code.either(is_wider, lambda: body(wider), lambda: body(WIDE)),
        )

    def text(self) -> str:
        parameters = [f"i64 %{name}" for name in self.numbers]
        parameters += [f"ptr noalias %{name}" for name in self.places]
        head = f"define {self.linkage}void @{self.name}({', '.join(parameters)}) nounwind {{"
        return f"{head}\nentry:\n{self.code.text()}\n  ret void\n}}"


def whole(value: int) -> Val:
    """A number of 64 bits."""
    return number(value, "i64")
