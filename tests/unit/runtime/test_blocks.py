"""Large blocks come back when the last array that views them is gone, and not before."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.ptir import Builder
from weft.runtime.blocks import ALIGNMENT, BLOCKS, Blocks

Array = NDArray[Any]
F4 = np.dtype("f4")
SIZE = 1 << 20


def address(array: Array) -> int:
    return int(array.ctypes.data)


def test_a_block_is_used_again() -> None:
    blocks = Blocks()
    first = blocks.tensor((512, 512), F4, SIZE)
    place = address(first)
    assert place % ALIGNMENT == 0
    del first
    assert blocks.idle_bytes == SIZE
    assert address(blocks.tensor((256, 1024), F4, SIZE)) == place


VIEWS: dict[str, Callable[[Array], Array]] = {
    "slice": lambda x: x[3:5],
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(-1),
    "other dtype": lambda x: x.view("i4"),
    "view of a view": lambda x: x[0, :4].T[::2],
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_keeps_its_block(view: str) -> None:
    blocks = Blocks()
    whole = blocks.tensor((512, 512), F4, SIZE)
    whole[...] = 7
    part = VIEWS[view](whole)
    copy = part.copy()
    del whole
    gc.collect()
    other = blocks.tensor((512, 512), F4, SIZE)
    other[...] = 0
    np.testing.assert_array_equal(part, copy)
    del part
    assert blocks.idle_bytes == SIZE


def test_other_holders_of_the_buffer_keep_it_too() -> None:
    blocks = Blocks()
    held = blocks.tensor((SIZE,), np.dtype("u1"), SIZE).data
    assert blocks.idle_bytes == 0
    held.release()
    del held
    assert blocks.idle_bytes == SIZE


def test_what_is_idle_is_bounded_and_the_oldest_goes_first() -> None:
    blocks = Blocks(most_idle=3 * SIZE)
    old = weakref.ref(blocks.tensor((SIZE,), np.dtype("u1"), SIZE))
    assert old() is None
    held = [blocks.tensor((2 * SIZE,), np.dtype("u1"), 2 * SIZE) for _ in range(2)]
    held.clear()
    assert blocks.idle_bytes == 2 * SIZE
    blocks.tensor((4 * SIZE,), np.dtype("u1"), 4 * SIZE)
    assert blocks.idle_bytes == 2 * SIZE


def test_threads_never_share_a_block() -> None:
    blocks, wrong = Blocks(), []

    def work(number: int) -> None:
        for _ in range(200):
            mine = blocks.tensor((16, 1024), F4, 1 << 16)
            mine[...] = number
            if not (mine == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # A thread has the next block before it lets go of the last one.
    assert blocks.idle_bytes <= 2 * 4 << 16


def test_results_of_runs() -> None:
    """Results that are alive are never written by a later run; dropped ones are."""
    b = Builder("add")
    exe = weft.compile(b.build(b.param("f32", [300, 300]) + 1.0))
    kept = [exe(np.full((300, 300), i, "f4"))[0] for i in range(3)]
    places = {address(array) for array in kept}
    assert len(places) == 3
    assert [float(array[299, 299]) for array in kept] == [1.0, 2.0, 3.0]
    before = BLOCKS.idle_bytes
    kept.clear()
    assert BLOCKS.idle_bytes > before
    assert address(exe(np.zeros((300, 300), "f4"))[0]) in places
