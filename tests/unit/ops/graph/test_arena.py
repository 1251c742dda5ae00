"""Arenas and the program cache: what is computed when, how often it is compiled, what is kept."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import weft
from weft import functional
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.graph.arena import Arena
from weft.ops.graph.cache import PROGRAMS, ProgramCache
from weft.ops.graph.context import backend_named, current, default_arena
from weft.ops.graph.evaluate import Request, evaluate
from weft.ops.graph.forms import plain_form
from weft.ops.graph.node import Node, tensor_type
from weft.ops.session import Session
from weft.ptir import Builder, Program
from weft.ptir.passes import optimise
from weft.ptir.passes.log import PassLog


def data(*shape: int) -> weft.Tensor:
    elements = np.random.default_rng(len(shape)).standard_normal(shape)
    made: weft.Tensor = weft.asarray(elements.astype(np.float32))
    return made


@contextmanager
def compiles() -> Iterator[list[int]]:
    """How many programs were compiled inside the block."""
    before = PROGRAMS.statistics.compiled
    count = [0]
    yield count
    count[0] = PROGRAMS.statistics.compiled - before


def executed(tracer: object) -> Counter[str]:
    profile = tracer.profile  # type: ignore[attr-defined]
    return Counter(span.name for span in profile.spans)


# -- laziness ------------------------------------------------------------------------------------


def test_nothing_is_computed_until_it_is_read() -> None:
    x = data(3)
    with weft.trace() as tracer:
        y = weft.exp(x) + 1.0
        assert y.is_lazy
        assert not executed(tracer)
        y.numpy()
    assert not y.is_lazy
    assert executed(tracer)["exp"] == 1


def test_reading_twice_runs_once() -> None:
    y = weft.exp(data(4))
    with weft.trace() as tracer:
        y.numpy()
        y.numpy()
    assert executed(tracer)["exp"] == 1


def test_several_at_once_share_their_work() -> None:
    x = data(5)
    shared = weft.exp(x)
    a, b = shared + 1.0, shared * 2.0
    del shared
    with weft.trace() as tracer, compiles() as count:
        weft.eval(a, b)
    assert executed(tracer)["exp"] == 1
    assert count[0] == 1
    np.testing.assert_allclose(a.numpy() - 1.0, b.numpy() / 2.0, rtol=1e-6)


def test_what_the_user_still_holds_is_kept() -> None:
    middle = weft.exp(data(6))
    (middle + 1.0).eval()
    assert not middle.is_lazy
    with weft.trace() as tracer:
        (middle * 3.0).eval()
    assert "exp" not in executed(tracer)


def test_what_waiting_instructions_need_is_kept() -> None:
    x = data(3)
    shared = weft.exp(x)
    first, second = shared + 1.0, shared * 2.0
    node = shared._node
    del shared
    first.eval()
    assert node.storage is not None
    with weft.trace() as tracer:
        second.numpy()
    assert "exp" not in executed(tracer)


def test_what_only_dropped_instructions_used_is_not_kept() -> None:
    x = data(3)
    shared = weft.exp(x)
    first, second = shared + 1.0, shared * 2.0
    node = shared._node
    del shared, second
    first.eval()
    assert node.storage is None


def test_elements_of_a_tuple_that_somebody_holds_are_computed_with_the_others() -> None:
    values, positions = functional.top_k(data(6), 2)
    values.eval()
    assert not positions.is_lazy


def _descend(state: list[weft.Tensor]) -> weft.Tensor:
    loss, slope = weft.value_and_grad(lambda x: (weft.tanh(x) ** 2).sum())(state[0])
    state[0] = state[0] - 0.1 * slope
    return loss  # type: ignore[no-any-return]


def _count(state: list[weft.Tensor]) -> weft.Tensor:
    values, positions = functional.top_k(state[0], 2)
    state[0] = state[0] + positions.sum()
    return values.sum()


def _share(state: list[weft.Tensor]) -> weft.Tensor:
    slope = weft.exp(-(state[0] * 2.0 + 1.0))
    state[0] = state[0] - 0.1 * slope
    return (slope * slope).sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("turn", [_descend, _count, _share])
def test_a_loop_that_reads_a_value_on_the_side_runs_the_same_programs(
    turn: Callable[[list[weft.Tensor]], weft.Tensor],
) -> None:
    state, wanted = [data(5)], [data(5)]
    read: list[float] = []
    for _ in range(2):
        read.append(float(turn(state)))
    with compiles() as count:
        for _ in range(5):
            read.append(float(turn(state)))
    assert count == [0]
    for value in read:
        known = turn(wanted)
        weft.eval(known, wanted[0])
        assert value == pytest.approx(float(known), rel=1e-6)


def test_what_nobody_holds_is_freed() -> None:
    middle = weft.exp(data(7))
    node = weakref.ref(middle._node)
    result = middle + 1.0
    del middle
    assert node() is not None
    result.eval()
    gc.collect()
    assert node() is None


def test_an_expression_that_is_dropped_leaves_nothing() -> None:
    x = data(7)
    nodes = [weakref.ref((weft.exp(x) + float(i))._node) for i in range(10)]
    gc.collect()
    assert [node() for node in nodes] == [None] * 10


# -- compiling -----------------------------------------------------------------------------------


def test_equal_structures_share_one_program() -> None:
    with compiles() as count:
        for seed in range(4):
            x = weft.asarray(np.full((11, 3), seed, np.float32))
            np.testing.assert_allclose((weft.tanh(x) - x).numpy(), np.tanh(seed) - seed, rtol=1e-6)
    assert count[0] == 1


def test_other_shapes_dtypes_and_exports_are_other_programs() -> None:
    with compiles() as count:
        (weft.tanh(data(13)) - 1.0).eval()
        (weft.tanh(data(14)) - 1.0).eval()
        (weft.tanh(data(13).astype(weft.float64).eval()) - 1.0).eval()
        held = weft.tanh(data(13))
        (held - 1.0).eval()
    assert count[0] == 5  # and the cast


def test_only_numbers_that_change_become_parameters() -> None:
    x = data(17)

    def value(scale: float, shift: float) -> None:
        expected = np.asarray(x) * np.float32(scale) + np.float32(shift)
        np.testing.assert_allclose((x * scale + shift).numpy(), expected, rtol=1e-6)

    with compiles() as count:
        value(2.0, 0.25)
        value(3.0, 0.25)
        value(4.0, 0.25)
    assert count[0] == 2
    request = Request([(x * 5.0 + 0.25)._node])
    numbers = tuple(node.storage.data for node in request.literals)
    _, lifted = PROGRAMS.find(request.signature, numbers, request.build)
    assert len(lifted) == 1
    with compiles() as count:
        value(2.0, 0.5)
        value(7.0, 0.75)
    assert count[0] == 1


def test_a_number_that_changes_is_compiled_twice_and_never_again() -> None:
    x = data(17)
    with compiles() as count:
        for number in (0.5, 0.25, 7.0, -3.0, 0.5):
            np.testing.assert_allclose((x * number).numpy(), x.numpy() * np.float32(number))
    assert count[0] == 2


def test_the_cache_forgets_what_was_used_least() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [2])))
    backend = backend_named("reference")
    cache = ProgramCache(2)
    for name in ("a", "b", "a", "c", "a", "b"):
        cache.find((name,), (), lambda lifted: (program, backend))
    assert cache.statistics.hits == 2
    assert cache.statistics.misses == cache.statistics.compiled == 4
    assert cache.statistics.evicted == 2
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == 0


# -- arenas as programs --------------------------------------------------------------------------


def test_an_arena_is_compiled_again_only_when_it_grew() -> None:
    arena = Arena(backend_named("reference"))
    session = Session(arena)
    kind = tensor_type(weft.float32, (2,))
    x = arena.parameter(kind)
    arena.export(arena.emit(plain_form("exp", kind), (x,), None))
    inputs = [np.asarray([0.0, 1.0], np.float32)]
    with compiles() as count:
        first = arena.run(inputs)
        arena.run([np.asarray([1.0, 2.0], np.float32)])
    assert count[0] == 1
    np.testing.assert_allclose(first[0], np.exp(inputs[0]), rtol=1e-6)
    version = arena.version
    arena.export(arena.emit(plain_form("neg", kind), (x,), None))
    assert arena.version > version
    with compiles() as count:
        assert len(arena.run(inputs)) == 2
    assert count[0] == 1
    assert len(arena.program().main.body) == 2
    assert session.arena is arena


def test_an_arena_says_what_is_wrong_with_a_run() -> None:
    arena = Arena(backend_named("reference"))
    kind = tensor_type(weft.float32, (2,))
    x = arena.parameter(kind)
    leaf = data(2)._node
    arena.export(arena.emit(plain_form("add", kind, kind), (x, leaf), None))
    with pytest.raises(UserError, match="1 parameters but got 0 inputs"):
        arena.run([])
    with pytest.raises(UserError, match="not a parameter of the arena"):
        arena.program()


def test_a_graph_can_be_shared() -> None:
    with weft.graph() as arena:
        a = weft.exp(data(3))
    with weft.graph(arena):
        b = a + 1.0
    assert a.arena is b.arena is arena
    assert len(b.program().main.body) >= 2
    np.testing.assert_allclose(b.numpy(), np.exp(data(3).numpy()) + 1, rtol=1e-6)


def test_blocks_nest_and_end_with_an_error() -> None:
    outside = current()
    with weft.graph() as first:
        with contextlib.suppress(ZeroDivisionError), weft.graph() as second:
            assert current() is second
            raise ZeroDivisionError
        assert current() is first
    assert current() is outside


def test_a_block_can_choose_the_backend() -> None:
    with weft.graph(backend="cpu"):
        x = weft.ones((3,))
    assert x.backend == "cpu"
    with pytest.raises(UserError, match="nothing"):
        weft.graph(backend="nothing").__enter__()


def test_tensors_of_two_backends_do_not_meet() -> None:
    with weft.graph(backend="cpu"):
        far = weft.ones((3,))
    near = weft.ones((3,)) if weft.default_backend() != "cpu" else None
    assert near is not None
    with pytest.raises(SpecViolation, match=r"\.to\('reference'\)"):
        near + far
    assert (near + far.to("reference")).tolist() == [2.0] * 3


# -- threads -------------------------------------------------------------------------------------


def in_threads(count: int, work: object) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_every_thread_has_its_own_stack() -> None:
    seen: list[Arena] = []
    with weft.graph() as arena:
        in_threads(2, lambda index: seen.append(current()))
    assert arena not in seen
    assert seen[0] is not seen[1]
    assert default_arena(weft.default_backend()) not in seen


def test_two_threads_materialise_one_arena() -> None:
    x = np.linspace(0, 1, 50, dtype=np.float32)
    for _ in range(10):
        with weft.graph():
            base = weft.exp(weft.asarray(x))
            chain = [base]
            for step in range(20):
                chain.append(chain[-1] * 0.5 + float(step))
        barrier = threading.Barrier(4)

        def work(
            index: int, chain: list[weft.Tensor] = chain, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            chain[-1 - index].numpy()
            chain[index].numpy()

        in_threads(4, work)
        expected = np.exp(x)
        for step, tensor in enumerate(chain[1:]):
            expected = expected * np.float32(0.5) + np.float32(step)
            np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-5)


def test_a_request_is_the_graph_at_one_moment() -> None:
    """Another thread may compute a node between looking at the graph and writing the program."""
    x = data(4)
    middle = weft.exp(x)
    last = middle * 0.5 + x
    request = Request([last._node])
    weft.eval(middle)
    program, _ = request.build(())
    elements = x.numpy()
    first, second = weft.run(program, [elements])
    np.testing.assert_allclose(first, np.exp(elements), rtol=1e-6)
    np.testing.assert_allclose(second, np.exp(elements) * 0.5 + elements, rtol=1e-6)


def test_another_thread_may_have_computed_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    y = weft.exp(data(4)) + 1.0

    def late(roots: list[Node], alone: bool) -> Request:
        monkeypatch.undo()
        evaluate(roots)
        return Request(roots, alone)

    monkeypatch.setattr("weft.ops.graph.evaluate.Request", late)
    np.testing.assert_allclose(y.numpy(), np.exp(data(4).numpy()) + 1, rtol=1e-6)


# -- depth ---------------------------------------------------------------------------------------


def test_a_chain_may_be_deep() -> None:
    x = data(2)
    y = x
    for _ in range(3_000):
        y = y + x
    np.testing.assert_allclose(y.numpy(), x.numpy() * 3_001, rtol=1e-4)


def test_a_very_deep_chain_is_captured_and_dropped() -> None:
    x = data(2)
    y = x
    for _ in range(100_000):
        y = y + x
    node = weakref.ref(y._node)
    del y
    gc.collect()
    assert node() is None


@pytest.mark.slow
def test_a_very_deep_chain_is_computed() -> None:
    x = weft.ones((2,))
    y = x
    for _ in range(100_000):
        y = y + x
    assert y.tolist() == [100_001.0] * 2


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_violation_names_the_line_of_the_graph_that_runs(backend: str) -> None:
    """Two graphs of one structure share a compiled program, but not their lines."""
    x = weft.asarray(np.arange(4)).to(backend)
    outside = weft.asarray(np.array([7])).to(backend)
    first = weft.take(x, outside)
    second = weft.take(x, outside)
    places = []
    for lazy in (first, second):
        with pytest.raises(SpecViolation, match=r"\[take\]") as caught:
            lazy.numpy()
        places.append(caught.value.where)
        assert len(traceback.extract_tb(caught.value.__traceback__)) <= 4
    name, line = places[0].split(":")
    assert places[1] == f"{name}:{int(line) + 1}"


def test_long_chains_take_time_in_proportion() -> None:
    def seconds(length: int) -> float:
        x = y = weft.asarray(np.ones(2, np.float32))
        for _ in range(length):
            y = y + x
        started = time.thread_time()
        y.eval()
        return time.thread_time() - started

    seconds(10)
    short, long = seconds(400), seconds(3_200)
    assert long < 24 * short


@pytest.mark.parametrize(("backend", "before"), [("cpu", 0), ("reference", 1)])
def test_passes_run_before_a_backend_that_does_not_run_them(
    backend: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def watched(program: Program, log: PassLog) -> Program:
        ran.append(program)
        return optimise(program, log)

    monkeypatch.setattr("weft.ops.graph.cache.optimise", watched)
    b = Builder("doubled")
    x = b.param("f32", [3])
    made = ProgramCache(4).compile(b.build(x + x * 1.0), backend_named(backend))
    assert len(ran) == before
    chosen = backend_named(backend)
    (result,) = made.execute([chosen.store(np.arange(3, dtype=np.float32))])
    assert chosen.read_storage(result, made.results[0]).tolist() == [0, 2, 4]
