"""`weft.data`: what batches hold, in which order, and that the thread comes and goes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import data
from weft.foundation.errors import SpecViolation, UserError

X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)
WRONG: Any = 0


def key(seed: int = 0) -> Any:
    return weft.random.key(seed)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "weft.data"]


# -- batches -------------------------------------------------------------------------------------


def test_arrays_in_their_order() -> None:
    found = list(data.batches({"x": X, "y": [Y]}, 4, drop_last=False))
    np.testing.assert_array_equal(found[1]["x"], X[4:8])
    assert [len(batch["y"][0]) for batch in found] == [4, 4, 2]
    assert len(list(data.batches((X, Y), 4))) == 2
    (rows,) = data.batches(weft.asarray(X), 10)
    np.testing.assert_array_equal(rows, X)


def test_a_key_makes_an_order_for_every_epoch() -> None:
    found = [y for _, y in data.batches((X, Y), 5, key=key(3), epochs=2)]
    again = [y for _, y in data.batches((X, Y), 5, key=key(3), epochs=2)]
    np.testing.assert_array_equal(found, again)
    epochs = [np.concatenate(found[:2]), np.concatenate(found[2:])]
    assert all(sorted(epoch) == list(Y) for epoch in epochs)
    assert (epochs[0] != epochs[1]).any()
    other = np.concatenate([y for _, y in data.batches((X, Y), 5, key=key(4))])
    assert (other != epochs[0]).any()


@pytest.mark.parametrize("start", [0, 1, 3, 4, 7])
def test_a_start_gives_the_batches_that_would_have_come(start: int) -> None:
    options: dict[str, Any] = {"key": key(1), "epochs": None}
    whole, later = data.batches(Y, 3, **options), data.batches(Y, 3, **options, start=start)
    expected = [next(whole) for _ in range(12)]
    for batch in expected[start:]:
        np.testing.assert_array_equal(next(later), batch)


def test_samples_of_an_object_and_of_an_iterator() -> None:
    class Squares:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return {"n": index, "square": np.float32(index * index)}

    found = list(data.batches(Squares(), 2, drop_last=False))
    np.testing.assert_array_equal(found[1]["square"], [4, 9])
    assert found[2]["n"].tolist() == [4]
    rows = list(data.batches(((X[i], Y[i]) for i in range(7)), 3))
    assert len(rows) == 2
    np.testing.assert_array_equal(rows[1][0], X[3:6])
    later = list(data.batches(iter(Y), 3, start=2))
    np.testing.assert_array_equal(later[0], [6, 7, 8])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: data.batches((X, Y[:3]), 2), SpecViolation, r"source\[0\] 10, source\[1\] 3"),
        (lambda: data.batches(X, 0), UserError, r"\[batches\] size is 0; it must be a whole num"),
        (lambda: data.batches(X, 11), UserError, "there are 10 samples, fewer than a batch of 11"),
        (lambda: data.batches((X, 3), 2), UserError, r"source\[1\] is an int; arrays with an axis"),
        (lambda: data.batches(WRONG, 2), UserError, "the source is an int; give arrays, an object"),
        (lambda: data.batches(iter(X), 2, key=key()), UserError, "an iterator gives its samples"),
        (
            lambda: list(data.batches(iter([X[0], X[:2]]), 2)),
            SpecViolation,
            r"the samples of a batch have different shapes: \(2,\) and \(2, 2\)",
        ),
        (
            lambda: data.batches({}, 2),
            UserError,
            r"\[batches\] the source is \{\}, in which there is no array; give arrays",
        ),
        (lambda: data.batches(([], {"a": ()}), 2), UserError, "in which there is no array"),
        (lambda: data.prefetch(WRONG), UserError, r"\[prefetch\] the source is an int"),
        (lambda: data.prefetch([X], 0), UserError, "depth is 0; it must be a whole number over 0"),
    ],
)
def test_mistakes_are_told(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# -- prefetch ------------------------------------------------------------------------------------


def test_items_come_ahead_as_tensors() -> None:
    made = threading.Semaphore(0)

    def source() -> Iterator[Any]:
        for number in range(4):
            made.release()
            yield {"x": X[number], "n": number}

    items = data.prefetch(source(), depth=2, backend="reference")
    assert made.acquire(timeout=30)
    assert made.acquire(timeout=30)  # Two are made before the first is asked for, and no more.
    assert not made.acquire(blocking=False)
    found = list(items)
    assert [item["n"] for item in found] == [0, 1, 2, 3]
    assert found[2]["x"].backend == "reference"
    np.testing.assert_array_equal(found[2]["x"].numpy(), X[2])
    assert next(items, "over") == "over"
    assert threads() == []


def test_a_training_step_takes_what_was_made_ahead() -> None:
    step = weft.jit(lambda total, x: total + weft.sum(x), donate="total")
    total: Any = weft.asarray(np.float32(0))
    for batch in data.prefetch(data.batches(X, 2)):
        total = step(total, batch)
    assert float(total) == X.sum()
    assert len(step.versions) == 1


def test_an_error_is_raised_where_its_item_would_have_been() -> None:
    def source() -> Iterator[Any]:
        yield X
        raise KeyError("the third shelf")

    items = data.prefetch(source())
    assert next(items).shape == (10, 2)
    with pytest.raises(KeyError, match="the third shelf"):
        next(items)
    assert next(items, "over") == "over"
    assert threads() == []


def test_an_item_that_is_no_tensor_is_told_with_the_line_that_takes_it() -> None:
    items = data.prefetch(iter([np.array(["a"])]))
    with pytest.raises(
        UserError, match=r"^InvalidCall at test_batches\.py:\d+: \[\w+\] .*not an array of numbers"
    ):
        next(items)


def test_no_thread_is_left_behind() -> None:
    closed = []

    def endless() -> Iterator[Any]:
        try:
            while True:
                yield X
        finally:
            closed.append(True)

    for item in data.prefetch(endless()):
        assert item.shape == (10, 2)
        break
    gc.collect()
    assert threads() == []
    with data.prefetch(endless()) as items:
        next(items)
    assert threads() == []
    items.close()
    held = data.prefetch(endless())
    next(held)
    held.close()
    assert next(held, "over") == "over"
    assert threads() == []
    assert len(closed) == 3


def test_a_traced_function_makes_nothing_ahead() -> None:
    with pytest.raises(UserError, match="make items ahead outside of it"):
        weft.jit(lambda x: next(data.prefetch([X])) + x)(X)


def _consumed_by(count: int, items: Any) -> list[Any]:
    """What several threads get of prefetched items: items, and errors."""
    found: list[Any] = []

    def consume() -> None:
        try:
            found.extend(float(item[0]) for item in items)
        except ValueError as error:
            found.append(str(error))

    consumers = [threading.Thread(target=consume, daemon=True) for _ in range(count)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(30.0)
        assert not consumer.is_alive(), "it waits for an item that never comes"
    return found


@pytest.mark.parametrize("fails", [False, True])
def test_several_threads_share_the_items(fails: bool) -> None:
    def source() -> Iterator[Any]:
        for number in range(20):
            yield np.array([number], np.float32)
        if fails:
            raise ValueError("no more")

    found = _consumed_by(4, data.prefetch(source()))
    assert sorted(found, key=str) == sorted([*map(float, range(20)), *["no more"] * fails], key=str)
    assert not threads()


def test_who_waits_for_an_item_gets_the_end_when_another_thread_closes() -> None:
    go = threading.Event()

    def source() -> Iterator[Any]:
        yield np.zeros(1, np.float32)
        go.wait(30.0)

    items = data.prefetch(source())

    def end() -> None:
        go.set()
        items.close()

    closer = threading.Timer(0.2, end)
    closer.start()
    assert _consumed_by(3, items) == [0.0]
    closer.join()
