"""On the host, too, what a program makes of inputs that stay is kept: the steps that make it are
left out while the same holder comes, and run again for anybody else."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft import nn
from weft.driver.compile import compile_program
from weft.ptir import Builder, Program
from weft.runtime import executor, native

Array = NDArray[Any]


class Holder:
    """Somebody whose inputs stay, and what is in them."""

    elements_stay = True


class Owner:
    """Somebody whose inputs stay where they are, and may be written to."""


def scaled() -> Program:
    """Images by what filters add up to, which one kernel makes of the filters and another takes."""
    b = Builder()
    x, w = b.param("f32", [300, 64]), b.param("f32", [64, 96])
    return b.build(x * b.broadcast_to(b.reduce_sum(w, [1]), [300, 64]))


class Scaled:
    """The program, and calls of it."""

    def __init__(self, donated: tuple[int, ...] = ()) -> None:
        made = compile_program(scaled(), "cpu", donate=donated)
        program = made._latest.built.program
        assert isinstance(program, executor.Program)
        self.program = program
        rng = np.random.default_rng(0)
        self.image, self.filters = (
            rng.standard_normal(shape).astype(np.float32) for shape in ((300, 64), (64, 96))
        )

    def call(self, holder: object, data: tuple[int, ...] = (0,)) -> Array:
        self.image = np.roll(self.image, 1)
        (made,) = self.program.run([self.image, self.filters], holder=holder, data=data)
        return made

    def is_right(self, holder: object, data: tuple[int, ...] = (0,)) -> bool:
        made = self.call(holder, data)
        want = self.image * self.filters.sum(1)
        return bool(np.allclose(made, want, rtol=1e-4, atol=1e-4))

    def left_out(self) -> int:
        """The steps that the next run of the workspace that was used last leaves out."""
        workspace = self.program._idle[-1]
        return int(np.count_nonzero(workspace.steps[:, 0] == native.JUMP))


def test_the_second_run_of_a_holder_keeps_and_the_third_leaves_out() -> None:
    scaled, holder = Scaled(), Holder()
    counts = []
    for _ in range(4):
        assert scaled.is_right(holder)
        counts.append(scaled.left_out())
    assert counts == [0, 1, 1, 1], "what a run has made the next one leaves out"
    scaled.filters[:] = 0
    assert scaled.call(holder).any(), "nobody looks at what does not change"


@pytest.mark.parametrize("other", [None, Holder(), Owner()])
def test_another_holder_has_everything_made(other: object) -> None:
    scaled, holder = Scaled(), Holder()
    own, others = scaled.filters, 2 * scaled.filters
    for _ in range(3):
        assert scaled.is_right(holder)
    scaled.filters = others
    assert scaled.is_right(other)
    assert scaled.left_out() == 0
    scaled.filters = own
    for _ in range(3):
        assert scaled.is_right(holder), "nothing of what the other one has"
    assert scaled.left_out() == 1


def test_holders_that_come_in_turn_keep_each_for_itself() -> None:
    one, holders = Scaled(), [Holder() for _ in range(6)]
    rng = np.random.default_rng(1)
    filters = [rng.standard_normal((64, 96)).astype(np.float32) for _ in holders]
    for count in (2, 6, 1, 6):
        for _ in range(4):
            for holder, own in zip(holders[:count], filters, strict=False):
                one.filters = own
                assert one.is_right(holder)
        assert len(one.program._idle) <= 4
    kept = Scaled()
    for _ in range(3):
        for holder, own in zip(holders[:2], filters, strict=False):
            kept.filters = own
            assert kept.is_right(holder)
    assert [each.kept.is_made for each in kept.program._idle] == [True, True]
    holders.clear()
    del holder
    gc.collect()
    assert kept.is_right(Holder())
    assert len(kept.program._idle) == 2, "what is kept for nobody is given to the next"


def test_nothing_is_kept_for_those_who_do_not_say_that_elements_stay() -> None:
    scaled, owner, holder = Scaled(), Owner(), Holder()
    for _ in range(4):
        scaled.filters *= 2
        assert scaled.is_right(owner)
    for _ in range(3):
        assert scaled.is_right(holder)
    assert scaled.left_out() == 1, "a holder that comes after is served as any other"


def test_nothing_is_kept_of_data_and_of_what_is_donated() -> None:
    for scaled, data in ((Scaled(), (0, 1)), (Scaled(donated=(1,)), (0,))):
        holder = Holder()
        for _ in range(4):
            scaled.filters *= 2
            assert scaled.is_right(holder, data)
        assert scaled.left_out() == 0


def test_a_run_that_fails_has_made_nothing() -> None:
    b = Builder()
    x, w, at = b.param("f32", [64]), b.param("f32", [64, 96]), b.param("si32", [64])
    program = b.build(b.take(x * b.reduce_sum(w, [1]), at))
    made = compile_program(program, "cpu")._latest.built.program
    assert isinstance(made, executor.Program)
    rng, holder = np.random.default_rng(0), Holder()
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((64,), (64, 96))]
    good, bad = np.arange(64, dtype=np.int32), np.full(64, 99, np.int32)
    for places in (good, bad, bad, good, good):
        if places is bad:
            with pytest.raises(weft.WeftError):
                made.run([*arrays, places], holder=holder, data=(0, 2))
            continue
        (found,) = made.run([*arrays, places], holder=holder, data=(0, 2))
        np.testing.assert_allclose(found, arrays[0] * arrays[1].sum(1), rtol=1e-4, atol=1e-4)


def test_parameters_that_are_bound_stay() -> None:
    made = compile_program(scaled(), "cpu", params=[1])
    rng = np.random.default_rng(0)
    image, filters = (rng.standard_normal(s).astype(np.float32) for s in ((300, 64), (64, 96)))
    bound = made.bind([filters])
    for _ in range(4):
        image = np.roll(image, 1)
        np.testing.assert_allclose(bound(image)[0], image * filters.sum(1), rtol=1e-4, atol=1e-4)
    program = made._latest.built.program
    assert isinstance(program, executor.Program)
    (workspace,) = program._idle
    assert np.count_nonzero(workspace.steps[:, 0] == native.JUMP) == 1


def test_threads_keep_each_for_itself() -> None:
    scaled, holders, wrong = Scaled(), [Holder(), Holder()], list[int]()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        image, filters = (rng.standard_normal(s).astype(np.float32) for s in ((300, 64), (64, 96)))
        want = image * filters.sum(1)
        for _ in range(60):
            (made,) = scaled.program.run([image, filters], holder=holders[number], data=(0,))
            if not np.allclose(made, want, rtol=1e-4, atol=1e-4):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


class Scale(nn.Module):
    """A module with filters."""

    def __init__(self, filters: Array) -> None:
        self.filters = weft.tensor(filters).to("cpu")

    def __call__(self, x: weft.Tensor) -> weft.Tensor:
        made: weft.Tensor = x * self.filters.sum(1)
        return made


def test_a_module_that_changes_is_seen() -> None:
    rng = np.random.default_rng(0)
    image, filters = (rng.standard_normal(s).astype(np.float32) for s in ((300, 64), (64, 96)))
    module, x = Scale(filters), weft.tensor(image).to("cpu")
    function = weft.jit(lambda module, x: module(x))
    for factor in (1.0, 2.0, 3.0):
        if factor > 1:
            module.filters = weft.tensor(np.float32(factor) * filters).to("cpu")
        for _ in range(4):
            want = image * (np.float32(factor) * filters).sum(1)
            np.testing.assert_allclose(function(module, x).numpy(), want, rtol=1e-4, atol=1e-3)
    gc.collect()
    other = Scale(2 * filters)
    np.testing.assert_allclose(
        function(other, x).numpy(), image * (2 * filters).sum(1), rtol=1e-4, atol=1e-3
    )
