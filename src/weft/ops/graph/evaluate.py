"""Evaluation of captured nodes: from nodes to a signature, a compiled program, and results.

Whatever the user still holds a tensor for is computed along with what was asked for, and so is what
instructions need that stay behind: no work is done twice, and a loop that reads one value of many
runs the same programs in every turn. Everything else in between exists only inside the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

from weft.driver.backends import Backend, DirectBackend
from weft.foundation.errors import UserError, WeftError
from weft.foundation.lines import shown, user_line
from weft.foundation.tracebacks import ending_outside
from weft.ops.graph.cache import PROGRAMS, Positions, Signature, Single
from weft.ops.graph.faults import told_by_line
from weft.ops.graph.hooks import execute
from weft.ops.graph.node import Donated, Node
from weft.ops.graph.program import created, program_of, reachable, taken
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.ops.elementwise import Cast
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.types import TensorType

_NO_DATA: Final = frozenset({type(None), TensorLiteral, Donated})
"""What a node has that is no tensor in a backend's memory."""
_DIRECT: Final = frozenset({BroadcastTo, Cast})
"""What a backend may need no program for."""


class Request:
    """What must run: the nodes in order, taken apart into leaves, numbers and exports. It is the
    graph at one moment: other threads may compute some of its nodes from then on."""

    __slots__ = ("exports", "leaves", "literals", "made", "signature")

    def __init__(self, roots: Sequence[Node], alone: bool = False) -> None:
        nodes = reachable(roots)
        wanted = set(roots)
        if not alone:
            nodes = _with_needed(nodes, wanted)
        self.made = taken(nodes)
        self.leaves: list[Node] = []
        self.literals: list[Node] = []
        self.exports: list[Node] = []
        key, used = self._walk(wanted, alone)
        position = dict(zip(nodes, count(), strict=False))
        backend = nodes[-1].arena.backend.name
        self.signature: Signature = (backend, *key, *map(position.__getitem__, used))

    def _walk(self, roots: set[Node], alone: bool) -> tuple[list[Any], list[Node]]:
        """What the nodes are, each in turn, and the operands of all instructions, one after the
        other: an instruction's form says how many are its own."""
        key: list[Any] = []
        used: list[Node] = []
        for node, operands, form, storage in self.made:
            if storage is None and form is not None:
                key.append(form.number)
                used += operands
                owner = node.owner
                held = not alone and owner is not None and owner() is not None
                if held or node in roots:
                    self.exports.append(node)
                    key.append("export")
                continue
            if storage is None:
                raise unknown_value(node)
            if type(storage) is Donated:
                raise storage.error()
            kind = node.type
            assert isinstance(kind, TensorType)
            key.append(kind.dtype)
            key.append(kind.shape)
            if type(storage) is TensorLiteral:
                self.literals.append(node)
                key.append(None)
            else:
                self.leaves.append(node)
        return key, used

    def build(self, lifted: Positions) -> tuple[Program, Backend]:
        """The program for this request, with the numbers at these positions as parameters, and the
        backend to run it on."""
        parameters = [*self.leaves, *[self.literals[at] for at in lifted]]
        program, _ = program_of("main", parameters, self.exports, self.made)
        return program, self.exports[0].arena.backend


def _with_needed(nodes: list[Node], wanted: set[Node]) -> list[Node]:
    """The nodes, with what else of their results is needed after them among the wanted: where a
    tuple is, those of its elements that somebody holds."""
    inside, added = set(nodes), False
    for node in nodes:  # which grows meanwhile
        waiting = node.waiting(inside) if node.users and node.storage is None else ()
        if not waiting:
            continue
        if isinstance(node.type, TensorType):
            wanted.add(node)
            continue
        elements = [user for user in waiting if user.is_element]
        nodes += elements
        inside.update(elements)
        added = True
    return sorted(nodes, key=created) if added else nodes


def evaluate(roots: Sequence[Node], alone: bool = False) -> None:
    """Compute these nodes, all in one program; `alone` leaves what else the user holds as it is."""
    wanted = [node for node in roots if node.storage is None and not _direct(node)]
    if not wanted or (len(wanted) == 1 and _single(wanted[0])):
        return
    for node in wanted:
        if node.arena.tracing:
            raise unknown_value(node)
    request = Request(wanted, alone)
    if not request.exports:
        return
    numbers = tuple([node.storage.data for node in request.literals])
    lifted: Positions = ()
    try:
        program, lifted = PROGRAMS.find(request.signature, numbers, request.build)
        inputs = [node.storage for node in request.leaves]
        backend = wanted[0].arena.backend
        inputs += [backend.store(request.literals[at].storage.array) for at in lifted]
        results = execute(program, inputs)
    except WeftError as error:
        raise told_by_line(error, lambda: request.build(lifted)[0]) from None
    single = _of_data(wanted[0]) if len(request.made) - len(request.leaves) == 1 else None
    if single is not None:
        PROGRAMS.singles[single[0]] = program
    for node, storage in zip(request.exports, results, strict=True):
        node.settle(storage)


def compute_users(nodes: Sequence[Node]) -> None:
    """Compute what the user holds of what waits for these nodes, whose memory goes. Whatever goes
    wrong is told to whoever reads it."""
    found = dict.fromkeys(user for node in nodes if node.users for user in _pending_users(node))
    held = []
    for node in (order := list(found)):  # which grows meanwhile
        more = _pending_users(node)
        if isinstance(node.type, TensorType) and (node.is_owned or not more):
            held.append(node)
        order += [user for user in more if user not in found]
        found.update(dict.fromkeys(more))
    with suppress(WeftError):
        evaluate(held)


def _pending_users(node: Node) -> list[Node]:
    return [user for user in node.waiting(()) if user.storage is None]


def _single(node: Node) -> bool:
    """Compute a node that is one instruction on data, as most are that are read at once, if its
    program is known. What goes wrong is told by whoever tries again."""
    found = _of_data(node)
    program = PROGRAMS.singles.get(found[0]) if found is not None else None
    if found is None or program is None:
        return False
    try:
        (result,) = execute(program, found[1])
    except WeftError:
        return False
    PROGRAMS.statistics.hits += 1
    node.settle(result)
    return True


def _direct(node: Node) -> bool:
    """Compute a node that is one number everywhere, as zeros are, or a cast of data, as parameters
    of a model are, if its backend needs no program for that: every shape would have one of its
    own."""
    operands, form = node.operands, node.form
    if form is None or type(form.op) not in _DIRECT or node.arena.tracing:
        return False
    given, kind, backend = operands[0], node.type, node.arena.backend
    if not isinstance(backend, DirectBackend):
        return False
    assert isinstance(kind, TensorType)
    storage = None
    if isinstance(form.op, Cast):
        if type(given.storage) not in _NO_DATA:
            storage = backend.cast(given.storage, kind)
    elif type(given.storage) is TensorLiteral and not given.storage.type.shape:
        storage = backend.repeat(given.storage.array, kind)
    if storage is not None:
        node.settle(storage)
    return storage is not None


def _of_data(node: Node) -> tuple[Single, list[Any]] | None:
    """What tells the program of one instruction on one or two tensors that are data from others,
    and its inputs, the older one first; None for any other node."""
    operands, form = node.operands, node.form
    if form is None or not 1 <= len(operands) <= 2:
        return None
    first, last = operands[0], operands[-1]
    if type(first.storage) in _NO_DATA or type(last.storage) in _NO_DATA:
        return None
    name = node.arena.backend.name
    if first is last:
        return (name, form.number, 0), [first.storage]
    if first.id < last.id:
        return (name, form.number, 1), [first.storage, last.storage]
    return (name, form.number, -1), [last.storage, first.storage]


def unknown_value(node: Node) -> UserError:
    """A traced value has no elements that Python could look at."""
    why = (
        f"[{node.arena.name}] the elements of {_describe(node)} are needed, but they are known "
        "only when the function runs; inside weft.jit use weft.where, weft.cond or weft.while_loop "
        "instead of Python's if and while, name an argument that Python must know in static=, and "
        "return what you want to look at"
    )
    return ending_outside(UserError(why, "TracedValueRead", shown(user_line())))


def _describe(node: Node) -> str:
    """A traced value as the user knows it: an argument, or what was made of arguments and where."""
    arguments = node.arena.arguments()
    if node in arguments:
        return f"the argument {arguments[node]}, {node.type},"
    sources = [arguments[found] for found in reachable([node]) if found in arguments]
    listed = ", ".join(sources[:3]) + (", ..." if len(sources) > 3 else "")
    made = f" made at {shown(node.line)}" if shown(node.line) else ""
    of = f" of the argument{'s' if len(sources) > 1 else ''} {listed}" if sources else ""
    return f"a traced value of type {node.type}{made}{of}"
