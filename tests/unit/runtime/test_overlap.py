"""Exchanges that go on while kernels run: when they begin, and that nothing reads their results
before they are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft.foundation.ranks import Begun, Meeting, World, as_rank
from weft.ptir import Builder
from weft.runtime.mpi import Row

Array = NDArray[Any]


class Slow(World):
    """A rank whose exchanges are over when somebody waits for them, and not before. Meanwhile
    their results are not numbers."""

    rank, count = 0, 1

    def __init__(self) -> None:
        self.events: list[str] = []
        self.at_once: list[bool] = []

    def begin_all_reduce(
        self,
        meeting: Meeting,
        parts: Sequence[Array],
        results: Sequence[Array],
        fn: str,
        at_once: bool,
    ) -> Begun:
        sums = [part * 2 for part in parts]
        for result in results:
            result[...] = np.nan
        self.events.append("begin")
        self.at_once.append(at_once)
        events = self.events

        class Late(Begun):
            def poll(self) -> None:
                events.append("poll")

            def wait(self) -> None:
                events.append("wait")
                for result, made in zip(results, sums, strict=True):
                    result[...] = made

        return Late()


def emit_reduced(b: Any, value: Any) -> Any:
    return b.emit("all_reduce", value, groups=[0], size=1, fn="sum")


def test_kernels_run_while_an_exchange_is_under_way() -> None:
    b = Builder("overlap")
    x, y = b.param("f32", (8, 8)), b.param("f32", (8, 8))
    total = emit_reduced(b, b.emit("sin", x))
    other = b.emit("dot_general", y, y, contract_lhs=[1], contract_rhs=[0])
    other = b.emit("dot_general", other, y, contract_lhs=[1], contract_rhs=[0])
    program = b.build(b.emit("add", total, other))
    world = Slow()
    given = [np.full((8, 8), 0.5, np.float32), np.eye(8, dtype=np.float32)]
    with as_rank(world):
        (found,) = weft.compile(program, "cpu")(*given)
    assert np.allclose(found, 2 * np.sin(np.float32(0.5)) + np.eye(8))
    assert (world.events[0], world.events[-1]) == ("begin", "wait")
    assert "poll" in world.events
    assert world.at_once == [False]


def test_an_exchange_with_nothing_beside_it_is_waited_for_at_once() -> None:
    b = Builder("at_once")
    program = b.build(b.emit("exp", emit_reduced(b, b.emit("sin", b.param("f32", (8,))))))
    world = Slow()
    with as_rank(world):
        (found,) = weft.compile(program, "cpu")(np.full(8, 0.5, np.float32))
    assert np.allclose(found, np.exp(2 * np.sin(np.float32(0.5))))
    assert world.events == ["begin", "wait"]
    assert world.at_once == [True]


def test_an_exchange_in_a_loop_is_over_when_its_turn_is() -> None:
    def step(x: Any, _: Any) -> Any:
        made = weft.sin(x)
        return weft.all_reduce(made, over="data") / 2, made

    @weft.spmd(weft.mesh(data=1))
    def scanned(x: Any) -> Any:
        return weft.scan(step, x, None, length=3)[0]

    x = np.full((4,), 0.5, np.float32)
    with as_rank(Slow()):
        found = weft.jit(scanned)(weft.asarray(x, device="cpu"))
    assert np.allclose(np.asarray(found), np.sin(np.sin(np.sin(x))), atol=1e-6)


def test_a_row_is_the_same_whatever_memory_tensors_lie_in() -> None:
    parts = [np.arange(5, dtype=np.float32), np.arange(40, dtype=np.float32).reshape(8, 5)]
    apart = Row(parts, [np.empty_like(part) for part in parts])
    memory = np.zeros(32 + 40, np.float32)
    beside = [memory[:5], memory[32:].reshape(8, 5)]
    for place, part in zip(beside, parts, strict=True):
        place[...] = part
    together = Row(beside, beside)
    assert (together.lies, apart.lies) == (True, False)
    assert np.array_equal(together.elements, apart.elements)
    together.elements += 1
    apart.elements += 1
    apart.hand_out()
    together.hand_out()
    for got, wanted, part in zip(beside, apart.results, parts, strict=True):
        assert np.array_equal(got, part + 1)
        assert np.array_equal(wanted, part + 1)


def test_a_row_of_truth_values_and_one_of_nothing() -> None:
    truth = [np.array([[True, False]]), np.array(True)]
    results = [np.zeros_like(part) for part in truth]
    Row(truth, results).hand_out()
    assert all(np.array_equal(a, b) for a, b in zip(truth, results, strict=True))
    nothing = [np.zeros((0, 3), np.float32)]
    assert Row(nothing, nothing).elements.size == 0
