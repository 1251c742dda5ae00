"""Reading attributes and types from tokens, for every text that Core IR has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from weft.core_ir.instructions import I64_MAX, I64_MIN, Kind, Padding
from weft.core_ir.literals import (
    CONSTANT,
    Data,
    Unreadable,
    literal_of,
    literal_of_bytes,
)
from weft.core_ir.types import DTYPES, Shape, TensorType
from weft.foundation.dtypes import DType
from weft.foundation.limits import Limits
from weft.foundation.text import TokenStream

Item = TypeVar("Item")
UNPARSABLE: Final = "E0101"
_CLOSERS: Final = {"[": "]", "(": ")"}


@dataclass(frozen=True)
class RawData:
    """Data until the type of the constant is known: numbers, or the digits of hex bytes."""

    rows: Any
    """The text of a number, nested lists of such texts, or None."""
    digits: str = ""

    def literal(self, dtype: DType, shape: Shape) -> Data:
        """The tensor; bytes take the declared shape, numbers have their own."""
        if self.rows is not None:
            return literal_of(self.rows, dtype)
        source = f"0x{self.digits}"
        if len(self.digits) % 2:
            why = "hex bytes come in pairs; a digit is missing"
            return Unreadable(source, CONSTANT, why)
        return literal_of_bytes(bytes.fromhex(self.digits), dtype, shape, source)


def settle_data(opcode: str, given: dict[str, Any], kind: TensorType | None) -> None:
    """Raw data become a tensor of the declared type; what `kind` says need not be repeated."""
    if opcode == "ConstTensor" and kind is not None:
        given.setdefault("dtype", kind.dtype)
        given.setdefault("shape", kind.shape)
    for name, value in given.items():
        if isinstance(value, RawData):
            dtype = given.get("dtype", None if kind is None else kind.dtype)
            if dtype is not None:
                given[name] = value.literal(dtype, tuple(given.get("shape", ())))


class AttributeReader:
    """Reads one attribute after the other from a stream of tokens."""

    def __init__(self, tokens: TokenStream) -> None:
        self.tokens = tokens

    def attribute(self, kind: Kind) -> Any:
        match kind:
            case Kind.WHOLES:
                return self.wholes()
            case Kind.WHOLE:
                return self.whole()
            case Kind.FLAG:
                return self.flag()
            case Kind.TEXT:
                return self.tokens.label()
            case Kind.DTYPE:
                return self.dtype()
            case Kind.PADDING:
                return self.padding()
            case Kind.DATA:
                return self.data()

    def whole(self) -> int:
        offset = self.tokens.current.offset
        number = self.tokens.integer()
        if not I64_MIN <= number <= I64_MAX:
            self.tokens.reject("the number does not fit in 64 bits", offset)
        return number

    def wholes(self) -> tuple[int, ...]:
        """A list; other writers put round brackets around it."""
        if self.tokens.current.text == "(":
            return tuple(self.listed(self.whole, "(", ")"))
        return tuple(self.listed(self.whole))

    def flag(self) -> bool:
        if self.tokens.current.text.lower() not in ("true", "false"):
            self.tokens.fail("expected true or false")
        return self.tokens.take().text.lower() == "true"

    def dtype(self) -> DType:
        token = self.tokens.current
        if token.kind == "name" and token.text not in DTYPES:
            self.tokens.reject(
                f"{token.text[:40]!r} is not a dtype of Core IR; they are {', '.join(DTYPES)}",
                token.offset,
                "E2005",
            )
        return DTYPES[self.tokens.name("a dtype")]

    def padding(self) -> Padding:
        if self.tokens.accept("Custom"):
            self.tokens.expect("(")
            pairs = self.listed(self.wholes)
            self.tokens.expect(")")
            return Padding("Custom", tuple(pairs))
        if self.tokens.current.text not in ("Valid", "Same"):
            self.tokens.fail("expected Valid, Same or Custom([[low, high], [low, high]])")
        return Padding(self.tokens.take().text)

    def data(self) -> RawData:
        """Hex bytes, a number, or nested lists of numbers."""
        tokens = self.tokens
        if tokens.current.kind == "hex":
            return RawData(None, tokens.take().text[2:])
        done: list[Any] = []
        lists, closers = [done], [""]
        while True:
            if tokens.current.text in _CLOSERS:
                if len(lists) > Limits.rank:
                    tokens.fail(f"expected lists that nest at most {Limits.rank} deep")
                closers.append(_CLOSERS[tokens.take().text])
                lists.append([])
                if tokens.current.text != closers[-1]:
                    continue
            else:
                lists[-1].append(self.number())
            while len(lists) > 1 and not self.more(closers[-1]):
                closers.pop()
                lists[-2].append(lists.pop())
            if len(lists) == 1:
                return RawData(done[0])

    def more(self, closer: str) -> bool:
        """Whether another item follows in a list; its end is taken."""
        if self.tokens.accept(",") and self.tokens.current.text != closer:
            return True
        self.tokens.expect(closer)
        return False

    def number(self) -> str:
        if self.tokens.current.kind != "number":
            self.tokens.fail("expected a number")
        return self.tokens.take().text

    def type(self) -> TensorType:
        if self.tokens.current.text not in ("tensor", "Tensor"):
            self.tokens.fail("expected a type such as tensor<f32[2, 3]>")
        self.tokens.take()
        self.tokens.expect("<")
        dtype = self.dtype()
        self.tokens.accept(",")
        shape = tuple(self.listed(self.dim))
        self.tokens.expect(">")
        return TensorType(dtype, shape)

    def dim(self) -> int:
        if self.tokens.current.text == "?":
            self.tokens.reject(
                "a dim is a number; Core IR has no dynamic dims",
                self.tokens.current.offset,
                "E3006",
            )
        return self.whole()

    def listed(self, item: Callable[[], Item], open_: str = "[", close: str = "]") -> list[Item]:
        """Items between two marks; a comma may follow the last."""
        self.tokens.expect(open_)
        items: list[Item] = []
        while not self.tokens.accept(close):
            if items:
                self.tokens.expect(",")
                if self.tokens.accept(close):
                    break
            items.append(item())
        return items
