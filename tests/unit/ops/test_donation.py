"""Donated arguments on the CPU backend: results are written where the arguments were, and nowhere
that anybody else can see."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft import nn, optim
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.runtime.executor import Program as CpuProgram

START = np.arange(4, dtype=np.float32)
jit_module: Any = sys.modules["weft.ops.jit"]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    before = weft.default_backend()
    weft.set_default_backend("cpu")
    yield
    weft.set_default_backend(before)


def add_one() -> Any:
    return weft.jit(lambda x: x + 1.0, donate="x")


def owned() -> weft.Tensor:
    """A tensor whose memory belongs to Weft alone."""
    made = add_one()(START)
    assert isinstance(made, weft.Tensor)
    return made


def addresses(tensors: Any) -> list[int]:
    return [tensor._node.storage.ctypes.data for tensor in tensors]


def test_the_result_lies_where_the_argument_was() -> None:
    x = owned()
    before = addresses([x])
    y = add_one()(x)
    assert addresses([y]) == before
    np.testing.assert_array_equal(y.numpy(), START + 2)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_donated_tensor_cannot_be_read(by_name: bool) -> None:
    x = owned()
    _ = add_one()(x=x) if by_name else add_one()(x)
    with pytest.raises(UserError, match=r"this tensor was donated at test_donation\.py:\d+"):
        x.numpy()


READS: dict[str, Callable[[weft.Tensor], Any]] = {
    "repr": repr,
    "print": print,
    "deepcopy": copy.deepcopy,
    "np.asarray": np.asarray,
    "np.from_dlpack": np.from_dlpack,
    "float": lambda x: float(x.sum()),
    "tolist": lambda x: x.tolist(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_who_reads_a_donated_tensor_is_told_where(read: Callable[[weft.Tensor], Any]) -> None:
    x = owned()
    add_one()(x)
    with pytest.raises(
        UserError, match=r"^DonatedValueRead at \S+\.py:\d+: .*was donated"
    ) as found:
        read(x)
    assert found.value.where.startswith("test_donation.py:")


FROM_ARRAY: dict[str, Callable[[Any], weft.Tensor]] = {
    "a copy": weft.asarray,
    "shared": lambda array: weft.asarray(array, copy=False),
    "through DLPack": weft.from_dlpack,
    "read-only": lambda array: weft.asarray(np.broadcast_to(array, (4,)), copy=False),
}
SEEN_BY: dict[str, Callable[[weft.Tensor], Any]] = {
    "np.asarray": np.asarray,
    "DLPack": np.from_dlpack,
    "numpy()": lambda x: x.numpy(),
    "another tensor": lambda x: x.reshape((2, 2)).eval(),
    "np.asarray and DLPack": lambda x: (np.asarray(x), np.from_dlpack(x)),
}


@pytest.mark.parametrize("take", FROM_ARRAY.values(), ids=FROM_ARRAY.keys())
def test_arrays_of_the_caller_are_never_overwritten(take: Callable[[Any], weft.Tensor]) -> None:
    array = START.copy()
    result = add_one()(take(array))
    np.testing.assert_array_equal(array, START)
    np.testing.assert_array_equal(result.numpy(), START + 1)


@pytest.mark.parametrize("look", SEEN_BY.values(), ids=SEEN_BY.keys())
def test_what_others_can_see_is_never_overwritten(look: Callable[[weft.Tensor], Any]) -> None:
    x = owned()
    seen = look(x)
    add_one()(x)
    for view in seen if isinstance(seen, tuple) else (seen,):
        np.testing.assert_array_equal(np.array(view).reshape(4), START + 1)


def test_a_constant_is_never_overwritten() -> None:
    """Equal numbers share one literal, wherever they are written."""
    step = weft.asarray(0.0, dtype="f32")
    assert float(add_one()(step)) == 1.0
    assert float(add_one()(weft.asarray(0.0, dtype="f32"))) == 1.0
    assert float(weft.asarray(0.0, dtype="f32")) == 0.0


def test_one_memory_for_two_arguments_is_parted() -> None:
    both = weft.jit(lambda a, b: (a + 1.0, b * 2.0), donate=("a", "b"))
    x = owned()
    first, second = both(x, x)
    np.testing.assert_array_equal(first.numpy(), START + 2)
    np.testing.assert_array_equal(second.numpy(), (START + 1) * 2)


def test_a_captured_tensor_survives_its_donation_to_the_same_call() -> None:
    x = owned()
    call = weft.jit(lambda a: (a + 1.0, weft.sum(a * x)), donate="a")
    moved, total = call(x)
    np.testing.assert_array_equal(moved.numpy(), START + 2)
    assert float(total) == float(((START + 1) ** 2).sum())


def test_results_of_one_donation_are_independent() -> None:
    same = weft.jit(lambda x: (x, x), donate="x")
    first, second = same(owned())
    add_one()(first)
    np.testing.assert_array_equal(second.numpy(), START + 1)


# -- a training step -----------------------------------------------------------------------------


def training() -> tuple[Any, nn.Module, dict[str, Any], tuple[Any, Any]]:
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), F.relu, nn.Linear(16, 3))
    optimiser = optim.AdamW(optim.warmup(1e-2, 5))

    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(model)
        model, state = optimiser.update(slopes, state, model)
        return model, state, loss

    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 8)).astype(np.float32)
    batch = (x, np.argmax(x[:, :3], axis=1).astype(np.int32))
    return weft.jit(step, donate=("model", "state")), model, optimiser.init(model), batch


def held(model: nn.Module, state: dict[str, Any]) -> list[weft.Tensor]:
    return [*model.parameters(), *state["mean"], *state["square"], state["step"]]


def test_parameters_and_moments_stay_in_their_buffers() -> None:
    step, model, state, batch = training()
    model, state, first = step(model, state, *batch)
    places = addresses(held(model, state))
    for _ in range(30):
        model, state, loss = step(model, state, *batch)
    assert addresses(held(model, state)) == places
    assert len(set(places)) == len(places)
    assert float(loss) < float(first) / 2
    assert step.explain().count("compiled") == 1
    assert float(state["step"]) == 31.0


def held_bytes() -> int:
    """What was allocated on lines of Weft and is still there; threads of the test runner allocate
    as well."""
    gc.collect()
    ours = tracemalloc.Filter(True, str(Path(weft.__file__).parent / "*"))
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)


def test_memory_does_not_grow_over_thousands_of_steps() -> None:
    step, model, state, batch = training()
    for _ in range(20):
        model, state, _ = step(model, state, *batch)
    tracemalloc.start()
    try:
        for _ in range(300):
            model, state, _ = step(model, state, *batch)
        before = held_bytes()
        for _ in range(3_000):
            model, state, _ = step(model, state, *batch)
        after = held_bytes()
    finally:
        tracemalloc.stop()
    # A step that left even one small object behind would leave three thousand; NumPy keeps some
    # hundreds of its own for later.
    assert after - before < 70_000


# -- threads -------------------------------------------------------------------------------------


def _at_once(call: Callable[[], Any], count: int = 4) -> list[Any]:
    """What threads that begin together get: results, or errors."""
    start, found = threading.Barrier(count), list[Any]()

    def work() -> None:
        start.wait()
        try:
            found.append(call())
        except UserError as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("nest", [lambda x: x, lambda x: [x, x + 1.0]], ids=["one", "a list"])
def test_one_of_several_threads_gets_what_they_all_donate(
    nest: Callable[[Any], Any], look: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call waits, before it runs, until all threads have come as far or are done."""
    call = weft.jit(lambda x: weft.tree.map(lambda a: a + 1.0, x), donate="x")
    x = call(call(nest(weft.asarray(START))))
    if look:
        weft.tree.map(lambda a: a.shape, x)
    real, inside = jit_module.execute, threading.Barrier(4)

    def slow(*args: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(0.2)
        return real(*args)

    monkeypatch.setattr(jit_module, "execute", slow)
    found = _at_once(lambda: call(x))
    errors = [each for each in found if isinstance(each, UserError)]
    (result,) = (each for each in found if not isinstance(each, UserError))
    assert {error.code for error in errors} == {"DonatedValueRead"}
    assert len(errors) == 3
    first = result[0] if isinstance(result, list) else result
    np.testing.assert_array_equal(first.numpy(), START + 3)


@pytest.mark.parametrize("look", [False, True])
def test_what_runs_cannot_be_read_and_is_given_back_where_nothing_was_started(
    look: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = weft.jit(lambda x: [a + 1.0 for a in x], donate="x")
    x = call(call([weft.asarray(START), weft.asarray(START)]))
    if look:
        assert x[1].shape == (4,)
    seen: list[str] = []

    def failing(*args: Any) -> Any:
        try:
            x[0].numpy()
        except UserError as error:
            seen.append(error.code)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CpuProgram, "_memory", failing)
        with pytest.raises(ResourceExceeded, match="out of memory while running"):
            call(x)
    assert seen == ["DonatedValueRead"]
    np.testing.assert_array_equal(x[0].numpy(), START + 2)
    np.testing.assert_array_equal(call(x)[1].numpy(), START + 3)


# -- calls that fail on their way -----------------------------------------------------------------

FAILED = (
    r"DonatedValueRead at test_donation\.py:\d+: .*donated at .* to a call that failed on its way"
)


class Refusal(Exception):
    """What a callback of the user's raises."""


def stopped(step: Any, *given: Any, error: type[BaseException] = Refusal) -> None:
    """A call that ends in this error."""
    with pytest.raises(error):
        step(*given)


@pytest.mark.parametrize("calls", [0, 3], ids=["the first call", "a later call"])
@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize("error", [Refusal, KeyboardInterrupt])
def test_what_a_call_that_fails_on_its_way_was_given_cannot_be_read(
    calls: int, look: bool, error: type[BaseException]
) -> None:
    patience = [calls]

    def impatient(_: Any) -> None:
        if not patience[0]:
            raise error
        patience[0] -= 1

    def step(x: Any) -> Any:
        made = [a + 1.0 for a in x]
        weft.debug.callback(impatient, made[0])
        return made

    call = weft.jit(step, donate="x")
    x = [owned(), owned()]
    for _ in range(calls):
        x = call(x)
    if look:
        assert x[1].shape == (4,)
    stopped(call, x, error=error)
    for read in (
        lambda: x[0].numpy(),
        lambda: (x[1] + 1.0).eval(),
        lambda: call(x),
        lambda: repr(x[1]),
    ):
        with pytest.raises(UserError, match=FAILED):
            read()


def test_a_step_with_an_index_out_of_range_has_spent_what_it_was_given() -> None:
    def step(x: Any, table: Any, at: Any) -> Any:
        return x + 1.0, weft.take(table, at, axis=0)

    call, table = weft.jit(step, donate="x"), weft.asarray(START)
    x, _ = call(owned(), table, np.array([0, 1]))
    stopped(call, x, table, np.array([0, 9]), error=SpecViolation)
    with pytest.raises(UserError, match=FAILED):
        x.numpy()


def test_a_module_and_its_moments_are_spent_with_the_step_that_failed() -> None:
    _, model, state, batch = training()
    optimiser = optim.AdamW(1e-2)
    turns = iter([True, True, False])

    def look(_: Any) -> None:
        if not next(turns):
            raise Refusal

    @weft.jit(donate=("model", "state"))  # type: ignore[untyped-decorator]
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(model)
        model, state = optimiser.update(slopes, state, model)
        weft.debug.callback(look, loss)
        return model, state

    for _ in range(2):
        model, state = step(model, state, *batch)
    stopped(step, model, state, *batch)
    for tensor in held(model, state):
        with pytest.raises(UserError, match=FAILED):
            tensor.numpy()


def test_a_backend_that_overwrites_nothing_gives_back_what_it_was_given() -> None:
    def step(x: Any) -> Any:
        weft.debug.callback(_refuse, x + 1.0)
        return x * 2.0

    x = weft.asarray(START).to("reference").eval()
    stopped(weft.jit(step, donate="x"), x)
    np.testing.assert_array_equal(x.numpy(), START)


def _refuse(_: Any) -> None:
    raise Refusal


def test_a_run_inside_a_callback_that_finds_no_memory_says_nothing_of_the_run_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner, real = weft.jit(lambda x: x * 3.0), CpuProgram._memory
    inside: list[bool] = []

    def failing(program: Any, inputs: Any) -> Any:
        if inside:
            raise MemoryError
        return real(program, inputs)

    def look(value: Any) -> None:
        inside.append(True)
        try:
            inner(weft.asarray(value))
        finally:
            inside.clear()

    def step(x: Any) -> Any:
        made = x + 1.0
        weft.debug.callback(look, made)
        return made

    x, call = owned(), weft.jit(step, donate="x")
    inner(weft.asarray(START))
    monkeypatch.setattr(CpuProgram, "_memory", failing)
    stopped(call, x, error=ResourceExceeded)
    with pytest.raises(UserError, match=FAILED):
        x.numpy()


# -- what was made of an argument before it is donated --------------------------------------------


def _tied() -> list[Any]:
    twice = owned()
    return [twice, {"a": twice, "b": weft.asarray(1.0)}]


@pytest.mark.parametrize(
    "make", [owned, _tied, lambda: training()[1:3]], ids=["one", "tied", "model"]
)
@pytest.mark.parametrize("read", [False, True])
def test_a_deep_copy_outlives_the_donated_original(make: Callable[[], Any], read: bool) -> None:
    state = make()
    if not read:
        state = weft.tree.map(lambda x: x + 0 if x.dtype is weft.float32 else x, state)
    twin = copy.deepcopy(state)
    want = [x.numpy() for x in weft.tree.leaves(twin)]
    after = weft.jit(lambda s: weft.tree.map(lambda x: x + 1, s), donate="s")(state)
    for leaf, value, moved in zip(*map(weft.tree.leaves, (twin, want, after)), strict=True):
        np.testing.assert_array_equal(leaf.numpy(), value)
        np.testing.assert_array_equal(moved.numpy(), value + 1)
    with pytest.raises(UserError, match="was donated"):
        copy.deepcopy(state)


def test_a_copy_by_asarray_outlives_the_donated_original() -> None:
    x = owned()
    twin = weft.asarray(x, copy=True)
    add_one()(x)
    np.testing.assert_array_equal(twin.numpy(), START + 1)


def test_what_waits_for_a_donated_tensor_is_computed_first() -> None:
    step, model, state, batch = training()
    for _ in range(3):
        predicted = F.softmax(model(weft.asarray(batch[0])))
        large = predicted.sum(axis=1) > 0.5
        want = model(batch[0]).eval()
        model, state, _ = step(model, state, *batch)
        assert not predicted.is_lazy
        np.testing.assert_allclose(predicted.numpy(), F.softmax(want).numpy(), rtol=1e-6)
        assert large.numpy().all()


def test_what_waits_for_a_tensor_that_was_computed_meanwhile_is_computed_first() -> None:
    x = owned() * 2.0
    late = x + 5.0
    x.eval()
    add_one()(x)
    np.testing.assert_array_equal(late.numpy(), (START + 1) * 2 + 5)


def test_what_waits_and_cannot_be_computed_does_not_stop_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*args: Any) -> Any:
        raise ResourceExceeded("out of memory")

    x = owned()
    large = weft.exp(x - 1.0)
    monkeypatch.setattr("weft.ops.graph.evaluate.execute", failing)
    moved = add_one()(x)
    monkeypatch.undo()
    np.testing.assert_array_equal(moved.numpy(), START + 2)
    with pytest.raises(UserError, match="was donated"):
        large.numpy()


def test_a_weight_does_not_keep_what_was_made_of_it() -> None:
    x = owned()
    waits = x + 0.5
    for turn in range(300):
        (x * float(turn)).eval()
    assert len(x._node.users or ()) < 70
    add_one()(x)
    np.testing.assert_array_equal(waits.numpy(), START + 1.5)
