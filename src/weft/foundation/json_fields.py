"""Reading JSON objects strictly: every field has a type, and one that nobody asked for is an
error.

Numbers that JSON cannot write are the strings "NaN", "Infinity" and "-Infinity"; a complex number
is `{"re": ..., "im": ...}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn, TypeVar

from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.whole_numbers import in_64_bits

Item = TypeVar("Item")
Choice = TypeVar("Choice", bound=Enum)
Scalar = bool | int | float | complex
ORIGIN = "origin"
"""The field of a remark in a dump: the instruction and the line that something comes from. Nothing
depends on it."""
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse(text: str, what: str) -> Any:
    """The document in a JSON text."""
    try:
        return json.loads(text)
    except ValueError as problem:
        raise SpecViolation("MalformedJson", f"the {what} is not JSON: {problem}") from None
    except RecursionError:
        why = f"the {what} is nested too deeply"
        raise SpecViolation("MalformedJson", why) from None


class Fields:
    """The fields of one JSON object, taken by name; `where` says which object it is."""

    def __init__(self, document: Any, where: str) -> None:
        self.where = where
        if not isinstance(document, dict):
            self.fail("it is not an object")
        self._left: dict[str, Any] = dict(document)

    def fail(self, why: str) -> NoReturn:
        raise SpecViolation("MalformedJson", why, where=self.where)

    def has(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str) -> Any:
        if name not in self._left:
            self.fail(f"field {name!r} is missing")
        return self._left.pop(name)

    @property
    def names(self) -> list[str]:
        """The fields that are left, for objects whose keys are names."""
        return list(self._left)

    def rest(self) -> list[tuple[str, Any]]:
        """Every field that is left, for objects whose keys are names; takes them all."""
        found, self._left = list(self._left.items()), {}
        return found

    def done(self) -> None:
        """No field may be left over, but a remark that says where something comes from."""
        if ORIGIN in self._left:
            self.text(ORIGIN)
        if self._left:
            self.fail(f"field {next(iter(self._left))!r} is not known here")

    # -- typed fields ----------------------------------------------------------------------------

    def text(self, name: str, default: str | None = None) -> str:
        return self._typed(name, str, "a string", default)

    def whole(self, name: str, default: int | None = None) -> int:
        found = self._typed(name, int, "a whole number", default)
        if isinstance(found, bool):
            self.fail(f"field {name!r} must be a whole number")
        self._check_bits(name, (found,))
        return found

    def flag(self, name: str, default: bool | None = None) -> bool:
        return self._typed(name, bool, "true or false", default)

    def dtype(self, name: str) -> DType:
        found = self.text(name)
        if found not in BY_NAME:
            self.fail(f"{found!r} is not a dtype; the dtypes are {', '.join(BY_NAME)}")
        return BY_NAME[found]

    def scalar(self, name: str) -> Scalar:
        found = read_scalar(self.take(name))
        if found is None:
            self.fail(f"field {name!r} must be a number")
        return found

    def choice(self, name: str, kind: type[Choice]) -> Choice:
        """A member of an enumeration, by its value."""
        found, known = self.text(name), {str(member.value): member for member in kind}
        if found not in known:
            self.fail(f"field {name!r} is {found!r}, not one of {', '.join(known)}")
        return known[found]

    def named(self, name: str) -> list[tuple[str, Any]]:
        """The entries of an object whose keys are names."""
        return Fields(self.take(name), f"{self.where}.{name}").rest()

    def documents(self, name: str) -> list[Any]:
        """A list of anything."""
        found: list[Any] = self._typed(name, list, "a list", None)
        return found

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return self._listed(name, str, "strings", default)

    def wholes(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        found = self._listed(name, int, "whole numbers", default)
        self._check_bits(name, found)
        return found

    def whole_lists(self, name: str) -> tuple[tuple[int, ...], ...]:
        """A list of lists of whole numbers."""
        found = self.documents(name)
        for part in found:
            if not isinstance(part, list) or any(type(item) is not int for item in part):
                self.fail(f"field {name!r} must be a list of lists of whole numbers")
            self._check_bits(name, part)
        return tuple(tuple(part) for part in found)

    def items(self, name: str, read: Callable[[Fields], Item]) -> tuple[Item, ...]:
        """A list of objects, each read by `read` and then checked to be read whole."""
        found = self._typed(name, list, "a list", None)
        result = []
        for number, document in enumerate(found):
            with reading(document, f"{self.where}.{name}[{number}]") as fields:
                result.append(read(fields))
        return tuple(result)

    def _check_bits(self, name: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            if not in_64_bits(number):
                self.fail(f"field {name!r} is beyond 64 bits: {clipped(str(number), 40)}")

    def _typed(self, name: str, kind: type[Item], what: str, default: Item | None) -> Item:
        if default is not None and name not in self._left:
            return default
        found = self.take(name)
        if not isinstance(found, kind):
            self.fail(f"field {name!r} must be {what}")
        return found

    def _listed(
        self, name: str, kind: type[Item], what: str, default: tuple[Item, ...] | None
    ) -> tuple[Item, ...]:
        if default is not None and name not in self._left:
            return default
        found = self.take(name)
        wrong = not isinstance(found, list) or any(type(item) is not kind for item in found)
        if wrong:
            self.fail(f"field {name!r} must be a list of {what}")
        return tuple(found)


@contextmanager
def reading(document: Any, where: str) -> Iterator[Fields]:
    """The fields of an object, which must all have been taken at the end."""
    fields = Fields(document, where)
    yield fields
    fields.done()


def write_scalar(value: Scalar) -> Any:
    """A number as JSON can hold it."""
    if isinstance(value, complex):
        return {"re": write_scalar(value.real), "im": write_scalar(value.imag)}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def read_scalar(document: Any) -> Scalar | None:
    """The number that `write_scalar` wrote; None for anything else."""
    if isinstance(document, dict) and set(document) == {"re", "im"}:
        parts = read_scalar(document["re"]), read_scalar(document["im"])
        if all(isinstance(part, int | float) for part in parts):
            return complex(*parts)  # type: ignore[arg-type]
        return None
    if isinstance(document, str):
        return _SPECIAL.get(document)
    return document if isinstance(document, bool | int | float) else None
