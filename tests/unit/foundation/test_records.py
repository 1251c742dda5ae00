"""Frozen dataclasses that are made fast are dataclasses in all that can be seen of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from weft.foundation.records import dataclass, replace


@dataclass(frozen=True)
class Ours:
    """A class with everything that a field can have."""

    a: int
    b: tuple[int, ...] = (1, 2)
    c: list[int] = field(default_factory=list, hash=False)
    d: str = field(default="seen", repr=False, compare=False)
    e: list[str] = field(default_factory=lambda: ["made"], init=False, hash=False)
    f: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self.e.append(str(self.a))


@dataclasses.dataclass(frozen=True)
class Further(Ours):
    more: int = 0


@dataclass(frozen=True)
class Equal:
    """A class that says itself what is equal."""

    a: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 7


@dataclass(frozen=True, eq=False)
class Same:
    a: int


@dataclass(frozen=True)
class Plain:
    """A class whose objects are what they are given."""

    a: int
    b: str = "b"

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


@dataclass(frozen=True)
class Counted:
    """A class that does something when an object is made, and has a field that is not compared."""

    a: int
    note: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", [self.a])

    found: ClassVar[list[int]]


def test_it_is_made_shown_compared_and_hashed_alike() -> None:
    ours, again = Ours(1, (3,), f=5), Ours(1, b=(3,), d="other", f=5)
    assert repr(ours) == "Ours(a=1, b=(3,), c=[], e=['made', '1'], f=5)"
    assert ours == again
    assert hash(ours) == hash(again) == hash((1, (3,), 5))
    assert ours != Ours(2, (3,), f=5)
    assert Ours(1).c is not Ours(1).c
    assert replace(ours, a=4) == Ours(4, (3,), f=5)
    assert Ours.__match_args__ == ("a", "b", "c", "d")
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied == ours
    assert Ours.__init__.__qualname__ == "Ours.__init__"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: setattr(x, "a", 1), "cannot assign to field 'a'"),
        (lambda x: setattr(x, "other", 1), "cannot assign to field 'other'"),
        (lambda x: delattr(x, "a"), "cannot delete field 'a'"),
    ],
)
def test_it_does_not_change(change: Callable[[Any], None], said: str) -> None:
    with pytest.raises(FrozenInstanceError, match=said):
        change(Ours(1))
    with pytest.raises(FrozenInstanceError, match=said):
        change(Further(1, more=2))


def test_what_a_class_writes_itself_stays() -> None:
    assert Equal(1) == Equal(2)
    assert {Equal(1): 3}[Equal(2)] == 3
    assert Same(1) != Same(1)


def test_a_class_that_inherits_compares_as_its_own() -> None:
    class Child(Ours):
        pass

    assert Child(1) == Child(1) != Ours(1)
    child = Child(1)
    child.other = 2  # type: ignore[attr-defined]
    assert child.other == 2  # type: ignore[attr-defined]
    assert Further(1, more=2) == Further(1, more=2) != Further(1)


def test_plain_ones_are_made_compared_and_hashed_as_python_does_it() -> None:
    with pytest.raises(TypeError, match=r"^Plain.__init__\(\) missing 1 required .*'a'$"):
        Plain()  # type: ignore[call-arg]
    assert Counted(3, "seen") == Counted(3) != Counted(4)
    assert hash(Counted(3)) == hash((3,))
    assert Counted(1).__eq__(Plain(1)) is NotImplemented
    assert Counted.__hash__.__qualname__ == "Counted.__hash__"
    assert Counted(3).found == [3]


def test_one_with_other_fields_knows_nothing_of_what_the_first_has_found_out() -> None:
    first = Plain(1)
    assert first.twice == 2
    other = replace(first, a=3)
    assert (other, other.twice, first.twice) == (Plain(3), 6, 2)
    assert vars(replace(first)) == {"a": 1, "b": "b"}
    assert replace(Further(1, more=2), more=3) == Further(1, more=3)
    with pytest.raises(TypeError, match="other"):
        replace(first, other=1)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        other.a = 4  # type: ignore[misc]
