"""Matrix products by their sizes, as programs: what a tuner of plans is asked to measure.

4096x14336x4096      rows x columns x summed elements, both operands as they are multiplied
16x4096x4096 NT      the second operand stored the other way round, as weights often are
192*1024x1024x64 NT  a batch of products
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import UserError
from weft.ptir.builder import Builder
from weft.ptir.ir import Program

_TEXT: Final = re.compile(
    r"(?:(?P<batch>\d{1,9})\*)?(?P<m>\d{1,9})x(?P<n>\d{1,9})x(?P<k>\d{1,9})"
    r"(?: (?P<layout>[NT]{2}))?"
)


@dataclass(frozen=True)
class Product:
    """A matrix product: its sizes, and whether each operand is stored as it is multiplied (N) or
    the other way round (T)."""

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = "NN"

    def __str__(self) -> str:
        lead = f"{self.batch}*" if self.batch > 1 else ""
        tail = "" if self.layout == "NN" else f" {self.layout}"
        return f"{lead}{self.m}x{self.n}x{self.k}{tail}"

    def program(self, dtype: str = "bf16") -> Program:
        """The product of two inputs, its sums in f32."""
        lead = [self.batch] if self.batch > 1 else []
        left = [self.m, self.k] if self.layout[0] == "N" else [self.k, self.m]
        right = [self.k, self.n] if self.layout[1] == "N" else [self.n, self.k]
        builder = Builder("product")
        x, w = (builder.param(dtype, [*lead, *sizes]) for sizes in (left, right))
        first = len(lead)
        summed = ([first + (self.layout[0] == "N")], [first + (self.layout[1] == "T")])
        batch = tuple(range(first))
        return builder.build(builder.dot_general(x, w, contract=summed, batch=(batch, batch)))


def product_named(text: str) -> Product:
    """The product that a text stands for."""
    found = _TEXT.fullmatch(" ".join(text.split()))
    if found is None:
        raise UserError(
            f"{text!r} is not a matrix product: write MxNxK or BATCH*MxNxK, and how the "
            "operands are stored if that is not NN, as in '16x4096x4096 NT'"
        )
    sizes = {name: int(found[name] or 1) for name in ("m", "n", "k", "batch")}
    if 0 in sizes.values():
        raise UserError(f"the product {text!r} has no elements: every size is at least 1")
    return Product(**sizes, layout=found["layout"] or "NN")
