"""The cheapest way to separate a source from a sink in a graph with capacities.

Dinic's algorithm on whole numbers: as long as there is a path with room from source to sink,
shortest first, fill it. Nothing recurses, and the work is bounded: who asks for a cut of a huge and
contrived graph gets None instead of an answer.
"""

from __future__ import annotations

from collections import deque

UNCUTTABLE = 1 << 62
"""The capacity of an edge that no cut may contain."""
MAX_STEPS = 5_000_000


class Network:
    """A directed graph whose nodes are numbers. Each edge is stored beside its reverse: edge `e`
    and `e ^ 1` belong together."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []
        self._target: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, source: int, target: int, capacity: int) -> None:
        for start, end, room in ((source, target, capacity), (target, source, 0)):
            self._edges[start].append(len(self._target))
            self._target.append(end)
            self._room.append(min(room, UNCUTTABLE))

    def cut(self, source: int, sink: int, max_steps: int = MAX_STEPS) -> set[int] | None:
        """The nodes on the sink's side of a cheapest cut, as few as possible. None where every cut
        contains an edge that may not be cut, or the work exceeds `max_steps`."""
        flow, steps = 0, max_steps
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return self._nodes_reaching(sink)
            # A round looks at every edge once to find levels.
            steps -= len(self._target)
            pushed, steps = self._fill(source, sink, level, steps)
            flow += pushed
            # What may be cut is bytes, whose sums stay far below 2^62: such a flow went through
            # edges of which every cut has one.
            if flow >= UNCUTTABLE or steps < 0:
                return None

    def _levels(self, source: int) -> list[int]:
        """How many edges with room each node is away from the source; -1 for out of reach."""
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                target = self._target[edge]
                if self._room[edge] and level[target] < 0:
                    level[target] = level[node] + 1
                    queue.append(target)
        return level

    def _fill(self, source: int, sink: int, level: list[int], steps: int) -> tuple[int, int]:
        """Fill shortest paths until there are none; how much they took, and the steps left."""
        total = 0
        position = [0] * len(self._edges)
        path: list[int] = []
        node = source
        while steps >= 0:
            steps -= 1
            if node == sink:
                total += self._push(path)
                # Go on from the first edge that is now full.
                full = next(i for i, edge in enumerate(path) if not self._room[edge])
                node = self._target[path[full] ^ 1]
                del path[full:]
                continue
            edges = self._edges[node]
            while position[node] < len(edges):
                edge = edges[position[node]]
                if self._room[edge] and level[self._target[edge]] == level[node] + 1:
                    break
                position[node] += 1
            if position[node] < len(edges):
                path.append(edges[position[node]])
                node = self._target[path[-1]]
            elif path:
                node = self._target[path.pop() ^ 1]
                position[node] += 1
            else:
                break
        return total, steps

    def _push(self, path: list[int]) -> int:
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return amount

    def _nodes_reaching(self, sink: int) -> set[int]:
        """The nodes from which the sink can still be reached."""
        # Whatever cheapest cut there is, these nodes are on the sink's side of it: so this is the
        # one with the fewest there.
        found = {sink}
        queue = deque([sink])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                source = self._target[edge]
                if self._room[edge ^ 1] and source not in found:
                    found.add(source)
                    queue.append(source)
        return found
