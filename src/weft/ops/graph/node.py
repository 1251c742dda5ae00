"""The nodes of the lazy graph.

    Node = leaf                 a tensor in a backend's memory, a constant, or a traced argument
         | form(operands)       an instruction that has not been carried out yet
         | element i of a node  one tensor of a tuple

A `Form` is an instruction without its operands: op, result type, regions. Forms are made once per
(op, operand types) and found again by a dictionary, so that capturing an instruction that was seen
before checks nothing twice. Types are canonical objects here: equal types are one object.

A node is immutable but for `storage`, which is set once, when the node has been computed; from then
on it is a leaf, until its memory is given away. Readers take `operands` before they look at
`storage`, writers set `storage` before they clear `operands`: that order makes two threads on one
graph safe without a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol
from weakref import ref

from weft.driver.backends import Backend
from weft.foundation.dims import Shape
from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.foundation.lines import Line, reading_line, shown
from weft.foundation.tracebacks import ending_outside
from weft.ptir.ir import Region
from weft.ptir.op import Op
from weft.ptir.types import TensorType, TupleType, ValueType

_TYPES: dict[ValueType, ValueType] = {}
_TENSORS: dict[tuple[DType, Shape], TensorType] = {}
_next_form: Final[Callable[[], int]] = count().__next__
_next_node: Final[Callable[[], int]] = count().__next__
_MANY_USERS: Final = 64


def tensor_type(dtype: DType, shape: Shape) -> TensorType:
    """The one object that stands for this tensor type."""
    found = _TENSORS.get((dtype, shape))
    if found is None:
        found = _TENSORS.setdefault((dtype, shape), TensorType(dtype, shape))
    return found


def canonical(kind: ValueType) -> ValueType:
    """The one object that stands for this type."""
    if isinstance(kind, TensorType):
        return tensor_type(kind.dtype, kind.shape)
    elements = tuple(canonical(element) for element in kind.elements)
    return _TYPES.setdefault(kind, TupleType(elements))


@dataclass(frozen=True)
class Fragment:
    """A region as a thing of its own: it has id 0, and the regions inside it follow, by id."""

    regions: tuple[Region, ...]

    @property
    def signature(self) -> Region:
        return self.regions[0]


class Form:
    """An instruction without its operands. `number` is its identity in program signatures."""

    __slots__ = ("element", "fragments", "number", "op", "output")

    def __init__(
        self,
        op: Op | None,
        output: ValueType,
        fragments: tuple[Fragment, ...] = (),
        element: int = 0,
    ) -> None:
        self.op = op
        """None: the node is an element of its only operand, a tuple."""
        self.output = canonical(output)
        self.fragments = fragments
        """The regions of a control-flow op, which names them by their position here."""
        self.element = element
        self.number = _next_form()


class Donated:
    """What a node holds after its memory was given away."""

    __slots__ = ("failed", "line")

    def __init__(self, line: Line | None) -> None:
        self.line = line
        self.failed = False
        """Whether the call failed after it had begun to write."""

    def error(self) -> UserError:
        """The tensor cannot be read any more."""
        where = shown(self.line)
        given = f" at {where}" if where else ""
        if self.failed:
            why = (
                f"this tensor was donated{given} to a call that failed on its way: what is in its "
                "memory is neither the old value nor the new one; go on from a copy "
                "(copy.deepcopy, weft.save) that was made before, or do not donate it"
            )
        else:
            why = (
                f"this tensor was donated{given}: its memory belongs to a result of that call; use "
                "the result, or do not donate it"
            )
        return ending_outside(UserError(why, "DonatedValueRead", shown(reading_line())))


class Changes:
    """When something that was computed came to show something else: a tensor was assigned to, or
    memory was given away. `last` is another object after each of these, so that whoever kept it can
    tell whether he has to look again. Writers change first and tell then."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = object()

    def tell(self) -> None:
        self.last = object()


CHANGES: Final = Changes()


class Home(Protocol):
    """What a node knows of the arena it was captured in."""

    backend: Backend
    name: str
    tracing: bool

    def arguments(self) -> dict[Node, str]:
        """The arguments of a traced function, with what they are called there."""
        ...


class Node:
    """A value of the lazy graph. `id` grows with time, so it orders nodes topologically."""

    __slots__ = (
        "__weakref__",
        "arena",
        "form",
        "id",
        "line",
        "operands",
        "owner",
        "storage",
        "type",
        "users",
    )

    def __init__(
        self,
        arena: Home,
        form: Form | None,
        operands: tuple[Node, ...],
        kind: ValueType,
        line: Line | None,
        storage: Any = None,
    ) -> None:
        self.arena = arena
        self.form = form
        self.operands = operands
        self.type = kind
        self.line = line
        self.storage = storage
        """What a backend stored; a `TensorLiteral` for a constant; None: not computed yet."""
        self.owner: ref[Any] | None = None
        """The tensor that shows this node to the user, as long as it lives."""
        self.users: list[ref[Node]] | None = None
        """The instructions on this node, outside of traces, that wait to be computed; among them
        some that do not any more."""
        self.id = _next_node()

    @property
    def tensor(self) -> TensorType:
        """The type of a node that is no tuple."""
        assert isinstance(self.type, TensorType)
        return self.type

    @property
    def is_element(self) -> bool:
        """Whether it waits to be taken out of a tuple."""
        form = self.form
        return form is not None and form.op is None

    @property
    def is_owned(self) -> bool:
        """Whether the user still holds a tensor that shows this node."""
        owner = self.owner
        return owner is not None and owner() is not None

    def used_by(self, node: Node) -> None:
        """An instruction on this node was captured."""
        users = self.users
        if users is None:
            self.users = [ref(node)]
            return
        users.append(ref(node))
        count = len(users)
        if count >= _MANY_USERS and not count & (count - 1):
            # Those that are done go, so that a weight that is used for ever has few.
            self.users = [user for user in users if _is_pending(user())]

    def waiting(self, inside: Collection[Node]) -> list[Node]:
        """The instructions on this node that somebody can still ask for, other than these."""
        alive = [user() for user in tuple(self.users or ())]
        return [user for user in alive if user is not None and user not in inside]

    def settle(self, storage: Any) -> None:
        """The node has been computed: it keeps the result and lets go of how it was made."""
        self.storage = storage
        self.form = None
        self.operands = ()


def _is_pending(node: Node | None) -> bool:
    """Whether it is there, and waits to be computed."""
    return node is not None and node.storage is None
