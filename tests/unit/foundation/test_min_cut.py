"""The cheapest cut, against trying every cut of small graphs."""

from __future__ import annotations

import itertools
import random
import time

from tests.support.cases import each
from weft.foundation.min_cut import UNCUTTABLE, Network

Edges = list[tuple[int, int, int]]


def network(count: int, edges: Edges) -> Network:
    made = Network()
    for _ in range(count):
        made.node()
    for edge in edges:
        made.edge(*edge)
    return made


def price(edges: Edges, sink_side: set[int]) -> int:
    return sum(c for a, b, c in edges if a not in sink_side and b in sink_side)


def cheapest(count: int, edges: Edges) -> int:
    inner = range(1, count - 1)
    sides = itertools.chain.from_iterable(
        itertools.combinations(inner, k) for k in range(len(inner) + 1)
    )
    return min(price(edges, {count - 1, *side}) for side in sides)


@each("seed", range(150))
def test_no_cut_is_cheaper(seed: int) -> None:
    source = random.Random(seed)
    count = source.randint(2, 8)
    capacities = [0, 1, 2, 3, 5, 8, UNCUTTABLE]
    edges = [
        (a, b, source.choice(capacities))
        for a in range(count)
        for b in range(count)
        if a != b and source.random() < 0.4
    ]
    best = cheapest(count, edges)
    side = network(count, edges).cut(0, count - 1)
    if best >= UNCUTTABLE:
        assert side is None
    else:
        assert side is not None
        assert 0 not in side
        assert count - 1 in side
        assert price(edges, side) == best


def test_the_side_of_the_sink_is_as_small_as_it_can_be() -> None:
    """Of two equally cheap cuts the one nearer to the sink."""
    assert network(4, [(0, 1, 5), (1, 2, 9), (2, 3, 5)]).cut(0, 3) == {3}


def test_parallel_edges_add_up() -> None:
    edges = [(0, 1, 2), (0, 1, 2), (1, 2, 3)]
    assert network(3, edges).cut(0, 2) == {2}


def test_a_long_chain() -> None:
    """A program of 20,000 instructions in a row, each of which is wanted and cheap to run again:
    nothing recurses, and it takes no square of its length."""
    made = Network()
    source, sink = made.node(), made.node()
    value = made.node()
    made.edge(source, value, 32)
    for _ in range(20_000):
        run, result = made.node(), made.node()
        made.edge(value, run, UNCUTTABLE)
        made.edge(source, run, 2)
        made.edge(run, result, 32)
        made.edge(result, sink, UNCUTTABLE)
        value = result
    started = time.process_time()
    side = made.cut(source, sink)
    assert time.process_time() - started < 60
    # The first result is kept, and everything after it is run again.
    assert side is not None
    assert len(side) == 2 * 20_000


def test_too_much_work_is_no_answer() -> None:
    edges = [(0, 1, 5), (1, 2, 9), (2, 3, 5)]
    assert network(4, edges).cut(0, 3, max_steps=3) is None
