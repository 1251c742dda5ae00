"""CUDA graphs of a program: each section of its steps is one graph, which runs replay.

A graph is replayed while the inputs and outputs it touches are where they were, and a few sets of
addresses are kept ready. For another set the graph that was not used for longest serves: of its
nodes those that touch what has moved are told the new addresses. Only a graph with branches or
loops, whose inner nodes cannot be told, is recorded anew.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

from weft.foundation.errors import ExecutionError
from weft.foundation.launches import note_nothing_started
from weft.runtime.artifact import (
    Artifact,
    CopyBuffer,
    Enter,
    HostCall,
    JumpUnless,
    Launch,
    Step,
)
from weft.runtime.cuda.driver import Stream
from weft.runtime.cuda.flow import Turns
from weft.runtime.cuda.graphs import (
    Graph,
    branch,
    condition,
    recording,
    recording_into,
    recording_place,
)
from weft.runtime.cuda.resident import EXTERNAL, Resident, memory_of
from weft.runtime.cuda.sections import Branch, Loop, Part, Section

_KEPT: Final = 4
"""Sets of addresses for which the graph of a stretch is kept ready."""

Place = tuple[str, int]


@dataclass
class _Recorded:
    """A graph, the addresses that it has been told, and the nodes of those steps that touch
    external memory."""

    graph: Graph
    key: tuple[int, ...]
    nodes: dict[int, Any] = field(default_factory=dict)
    untold: set[Place] = field(default_factory=set)
    """The external memory of exchanges, whose nodes are NCCL's."""


@dataclass
class Stretch:
    """A section, the external memory that it touches, and its graphs by where that was."""

    section: Section
    touched: tuple[Place, ...]
    users: Mapping[Place, Sequence[int]]
    """The steps that touch each of these places."""
    entered: Sequence[Enter] = ()
    graphs: OrderedDict[tuple[int, ...], _Recorded] = field(default_factory=OrderedDict)
    last: _Recorded | None = None
    """The graph of the last run."""

    @cached_property
    def addresses(self) -> Callable[[Mapping[Place, int]], tuple[int, ...]]:
        """Takes those of what it touches out of those of everything."""
        if len(self.touched) < 2:
            return lambda external: tuple([external[place] for place in self.touched])
        return itemgetter(*self.touched)


class Stretches:
    """All stretches of a program on a device, by their first step."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident
        artifact = resident.artifact
        found = [_stretch(artifact, section) for section in resident.sections]
        self.by_step = {stretch.section.first: stretch for stretch in found}
        self.shorter: dict[int, Stretch] = {}
        """The same without steps that make what is kept."""
        self._graphs = [stretch.graphs for stretch in found]
        self._release = weakref.finalize(self, _close_graphs, self._graphs)
        self._release.atexit = False

    def at(self, step: int, *, kept: bool = False) -> Stretch | None:
        """The stretch that begins at a step; where what is `kept` is there, what is left of it."""
        return (self.shorter if kept else self.by_step).get(step)

    def leave_out(self, steps: Collection[int]) -> None:
        """Some results have moved to memory of their own, and runs may leave out the steps that
        make them."""
        # Graphs with the old addresses may still be running.
        self.resident.gpu.stream.synchronize()
        _close_graphs(self._graphs)
        for stretch in self.by_step.values():
            stretch.graphs.clear()
            stretch.last = None
        for first, stretch in self.by_step.items():
            parts = tuple(part for part in stretch.section.parts if part not in steps)
            left = replace(stretch.section, parts=parts)
            self.shorter[first] = _stretch(self.resident.artifact, left, steps)
        self._graphs += [stretch.graphs for stretch in self.shorter.values()]

    def replay(self, stretch: Stretch) -> None:
        """Start the steps of a stretch."""
        try:
            found = self.ready(stretch)
        except BaseException as error:
            note_nothing_started(error)
            raise
        if found is not None:
            found.graph.launch(self.resident.gpu.stream)

    def ready(self, stretch: Stretch) -> _Recorded | None:
        """The graph of a stretch for what lies where it does; None where there is nothing to do."""
        resident, found = self.resident, stretch.last
        if not stretch.section.parts:
            return None
        key = stretch.addresses(resident.external)
        if found is None or found.key != key:
            found = stretch.graphs.get(key)
            if found is None:
                found = stretch.graphs[key] = self._make_graph(stretch, key)
            else:
                stretch.graphs.move_to_end(key)
            stretch.last = found
        return found

    def _make_graph(self, stretch: Stretch, key: tuple[int, ...]) -> _Recorded:
        """A graph for a new set of addresses."""
        if len(stretch.graphs) < _KEPT:
            return self._record_graph(stretch, key)
        # Should telling it fail, the graph is one of no set of addresses: nobody may find it as the
        # last one.
        stretch.last = None
        _, old = stretch.graphs.popitem(last=False)
        if stretch.section.turns:
            old.graph.close()
            return self._record_graph(stretch, key)
        pairs = zip(stretch.touched, old.key, key, strict=True)
        moved = [place for place, before, now in pairs if before != now]
        # Nobody but NCCL knows how to tell its nodes: the graph is recorded again where one of its
        # places has moved.
        if not old.untold.isdisjoint(moved):
            old.graph.close()
            return self._record_graph(stretch, key)
        self._tell(old, dict.fromkeys(n for place in moved for n in stretch.users[place]))
        old.key = key
        return old

    def _tell(self, old: _Recorded, numbers: Iterable[int]) -> None:
        """Tell the nodes of steps that touch what has moved."""
        resident = self.resident
        for number in numbers:
            step, node = resident.artifact.steps[number], old.nodes.get(number)
            if node is None:
                continue
            if isinstance(step, CopyBuffer):
                source, target = resident.ends(step)
                old.graph.set_copy(node, target, source, step.bytes)
            elif isinstance(step, Launch):
                kernel = resident.kernels[step.kernel]
                assert kernel is not None
                old.graph.set_kernel(node, kernel.node(resident.operands(step, number)))

    # -- recording -------------------------------------------------------------------------------

    def _record_graph(self, stretch: Stretch, key: tuple[int, ...]) -> _Recorded:
        resident, stream = self.resident, self.resident.gpu.stream
        turns, nodes, untold = resident.turns, dict[int, Any](), set[Place]()
        with recording(stream) as graph:
            if stretch.section.turns and turns is not None:
                self._record_parts(stretch.section.parts, stream, turns, 0)
            else:
                numbers = [part for part in stretch.section.parts if isinstance(part, int)]
                for number in resident.put_straight(numbers, stream):
                    places = set(_external(resident.artifact, resident.artifact.steps[number]))
                    if number in resident.exchanges:
                        untold |= places
                    elif places:
                        (nodes[number],) = recording_place(stream).nodes
        return _Recorded(graph, key, nodes, untold)

    def _record_parts(
        self, parts: Sequence[Part], stream: Stream, turns: Turns, depth: int
    ) -> None:
        """Record parts with a stream; the bodies in them with streams of their own."""
        for part in parts:
            if isinstance(part, int):
                self.resident.put(part, stream)
                continue
            if isinstance(part, Loop):
                self._record_parts(part.head, stream, turns, depth)
            value, words = condition(stream), self._words(part)
            turns.put_tell(stream, value, part, *words)
            bodies = branch(stream, value, loops=isinstance(part, Loop))
            inner = turns.stream_at(depth)
            for body, inside in zip(bodies, _insides(part), strict=True):
                with recording_into(inner, body):
                    self._record_parts(inside, inner, turns, depth + 1)
                    if isinstance(part, Loop):
                        # The value that the loop looks at for the next turn is told at the end of
                        # the body, after the head.
                        turns.put_tell(inner, value, part, *words)

    def _words(self, part: Branch | Loop) -> tuple[int, int, int]:
        """The addresses of a part's flag and of the error words at which it ends, and how many of
        these there are."""
        resident = self.resident
        flag = resident.address(resident.artifact.buffers[part.flag])
        first, last = (part.first, part.last) if isinstance(part, Loop) else (0, 0)
        return flag, resident.error_word(first), last - first


def _insides(part: Branch | Loop) -> list[tuple[Part, ...]]:
    """What each body of a part does; that of a loop ends with the head of the next turn."""
    if isinstance(part, Loop):
        return [(*part.body, *part.head)]
    return [part.taken, part.otherwise]


def _stretch(artifact: Artifact, section: Section, without: Collection[int] = ()) -> Stretch:
    users: dict[Place, list[int]] = {}
    for number in (n for n in range(section.first, section.last) if n not in without):
        for place in _external(artifact, artifact.steps[number]):
            users.setdefault(place, []).append(number)
    return Stretch(section, tuple(users), users, section.entered(artifact.steps))


def _external(artifact: Artifact, step: Step) -> Iterator[Place]:
    """The external memory that a step touches."""
    numbers: Sequence[int] = ()
    match step:
        case CopyBuffer(source=source, target=target):
            numbers = (source, target)
        case Launch(buffers=buffers):
            numbers = buffers
        case JumpUnless(buffer=buffer):
            numbers = (buffer,)
        case HostCall(inputs=inputs, outputs=outputs):
            numbers = [number for number, _ in (*inputs, *outputs)]
    for number in numbers:
        place = memory_of(artifact.buffers[number])
        if place[0] in EXTERNAL:
            yield place


def _close_graphs(graphs: Sequence[Mapping[tuple[int, ...], _Recorded]]) -> None:
    for kept in graphs:
        for found in kept.values():
            with contextlib.suppress(ExecutionError):
                found.graph.close()
