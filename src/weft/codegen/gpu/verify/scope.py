"""The context of a statement for the verifier: which names and declarations are visible there."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Lit, Name, Op, Scalar, TableAt, Wide
from weft.codegen.gpu.spelling.names import is_free
from weft.codegen.gpu.spelling.text import spelling
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.target.target import Target

NAME: Final = "KernelName"
FIELD: Final = "KernelField"
TYPE: Final = "KernelType"
WARP: Final = 32
_LEAST: Final = {"div": 1, "mod": 1, "shl": 0, "shr": 0}
"""The least literal on the right of some operations."""
_BARRIERS: Final = 16
"""Named barriers of a block."""


@dataclass(frozen=True)
class Known:
    """What a name stands for: a number, a value, a variable, registers, or a descriptor."""

    what: str
    dtype: DType | None = None
    count: int = 0


@dataclass
class Scope:
    """What is known where a statement stands, and what was found wrong up to there."""

    kernel: ir.Kernel
    target: Target
    findings: list[Finding] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    statement: ir.Stmt | None = None
    number: int = 0

    def wrong(self, code: str, why: str) -> None:
        what = spelling(type(self.statement))
        where = f"kernel {self.kernel.name}, statement {self.number} ({what})"
        self.findings.append(Finding(code, where, why))

    def need(self, holds: object, why: str, code: str = FIELD) -> None:
        if not holds:
            self.wrong(code, why)

    # -- names

    def define(self, name: str, what: Known) -> None:
        if not is_free(name):
            self.wrong(NAME, f"{name!r} cannot be a name")
        if name in self.known:
            self.wrong(NAME, f"{name} is defined already")
        self.known[name] = what

    def use(self, name: str, *kinds: str) -> Known:
        found = self.known.get(name)
        if found is None or found.what not in kinds:
            self.wrong(NAME, f"there is no {kinds[0]} {name} here")
            return Known(kinds[0])
        return found

    def value(self, name: str, dtype: DType | None = None) -> DType | None:
        """Use a value, of a dtype where one is asked for; its own dtype."""
        found = self.use(name, "value", "variable").dtype
        if dtype is not None and found is not None and found is not dtype:
            self.wrong(TYPE, f"{name} is {found}, not {dtype}")
        return found

    def registers(self, place: ir.RegAt, count: int, dtype: DType | None = None) -> None:
        """Use `count` registers of an array, of a dtype or, as none, 32 bits of anything."""
        found = self.use(place.array, "registers")
        if found.count and not 0 <= place.index <= found.count - count:
            why = f"{count} registers from {place.array}[{place.index}] on are not in the array"
            self.wrong(FIELD, f"{why} of {found.count}")
        if found.count and found.dtype is not dtype:
            self.wrong(TYPE, f"{place.array} holds {found.dtype or 'words'}")

    def whole_array(self, name: str, count: int) -> None:
        found = self.use(name, "registers")
        self.need(found.count == count, f"{name} does not have {count} registers")

    # -- numbers of the thread

    def scalar(self, value: Scalar) -> None:
        # The frequent ones first, and no patterns, which take twice as long.
        if isinstance(value, Op):
            rhs = value.rhs
            self.scalar(value.lhs)
            self.scalar(rhs)
            # What is not a literal is for the interpreter to find out.
            if isinstance(rhs, Lit) and rhs.value < _LEAST.get(value.fn, rhs.value):
                self.wrong(FIELD, f"{value.fn} by {rhs.value}")
        elif isinstance(value, Name):
            self.use(value.name, "number")
        elif isinstance(value, Lit):
            if not -(1 << 63) <= value.value < 1 << 63:
                self.wrong(FIELD, f"{value.value} does not fit 64 bits")
        elif isinstance(value, Wide):
            self.scalar(value.value)
        elif isinstance(value, TableAt):
            tables = [table.name for table in self.kernel.tables]
            self.need(value.table in tables, f"there is no table {value.table}", NAME)
            self.scalar(value.index)

    # -- parts of the frame

    def tile(self, name: str) -> None:
        tiles = [known.name for known in self.kernel.tiles]
        self.need(name in tiles, f"there is no tile {name}", NAME)

    def barriers(self, name: str) -> None:
        arrays = [array.name for array in self.kernel.barriers]
        self.need(name in arrays, f"there are no barriers {name}", NAME)

    def map(self, name: str, rank: int | None = None, taps: int = 0) -> None:
        found = [known for known in self.kernel.maps if known.name == name]
        self.need(found, f"there is no map {name}", NAME)
        for known in found:
            own = len(known.sizes)
            self.need(rank in (None, own), f"{rank} places in a map of rank {own}")
            moving = len(known.window.steps) if known.window and rank is not None else 0
            self.need(taps == moving, f"{taps} taps where windows move over {moving} axes")

    def meeting(self, number: Scalar, threads: int) -> None:
        whole = threads % WARP == 0 and 0 < threads <= self.kernel.threads
        self.need(whole, f"{threads} threads cannot meet")
        inside = not isinstance(number, Lit) or 0 <= number.value < _BARRIERS
        self.need(inside, f"there are {_BARRIERS} barriers with numbers")
