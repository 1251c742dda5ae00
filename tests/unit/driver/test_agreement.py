"""Ranks that compare their programs before the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.agreement import agreement_on
from weft.driver.backends import get_backend
from weft.driver.execute import prepare
from weft.foundation.dtypes import F32
from weft.foundation.ranks import RankFailed, world_here
from weft.ptir import Builder, Program
from weft.ptir.compare_ranks import lines_of
from weft.ptir.ops.callback import Callback
from weft.ptir.types import TensorType
from weft.runtime.rendezvous import SimulatedRank, run_ranks


def scaled(factor: Any, line: str = "a.py:1", ranks: int = 2, more: bool = False) -> Program:
    """The sum over ranks of something times a constant."""
    b = Builder("scaled")
    x = b.param("f32", (3,))
    x = b.emit("mul", x, b.constant(np.broadcast_to(np.float32(factor), (3,))))
    x = b.emit("all_reduce", x, groups=range(ranks), size=ranks, fn="sum", line=line)
    return b.build(b.emit("neg", x) if more else x)


def run(programs: Sequence[Program], backend: str = "reference") -> list[Any]:
    ones = np.ones(3, np.float32)
    return run_ranks(
        len(programs), lambda rank: weft.run(programs[rank], [ones], backend=backend)[0]
    )


def test_a_constant_that_differs_is_told_with_both_values() -> None:
    with pytest.raises(RankFailed, match=r"^rank 1 traced another program than rank 0: constant\("
                       r"f32\[3\]<2\.0.*where rank 0 has constant\(f32\[3\]<1\.0.*"
                       r"weft.rank\(\)$"):  # fmt: skip
        run([scaled(1), scaled(2)])


def test_the_rank_that_differs_from_the_others_is_named() -> None:
    programs = [scaled(n, ranks=4) for n in (3, 1, 1, 1)]
    with pytest.raises(RankFailed, match=r"^rank 0 traced another program than rank 1: constant"):
        run(programs)
    with pytest.raises(RankFailed, match=r"^ranks 1, 3 traced another program than rank 0: "):
        run([programs[0], programs[1], programs[0], programs[2]])


def test_a_program_that_goes_on_is_told_by_its_next_line() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 traced another .*: neg\(.* where rank 0 has the "
                       r"results %\d+ of"):  # fmt: skip
        run([scaled(1), scaled(1, more=True)])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_where_a_program_was_written_makes_no_difference(backend: str) -> None:
    found = run([scaled(1.5, "a.py:1"), scaled(1.5, "b.py:7")], backend)
    assert [list(one) for one in found] == [[3.0] * 3] * 2


def test_compiled_programs_are_compared() -> None:
    compiled = [weft.compile(scaled(n), "cpu") for n in (1, 2)]
    with pytest.raises(RankFailed, match="rank 1 traced another program than rank 0"):
        run_ranks(2, lambda rank: compiled[rank](np.ones(3, np.float32)))


def test_names_of_arguments_belong_to_a_program() -> None:
    one = replace(scaled(1), input_names=("grads['a']",))
    other = replace(scaled(1), input_names=("grads['b']",))
    with pytest.raises(RankFailed, match=r"argument 0 grads\['b'\] of type f32\[3\] where rank 0 "
                       r"has argument 0 grads\['a'\]"):  # fmt: skip
        run([one, other])


def test_the_own_names_of_functions_do_not() -> None:
    def program() -> Program:
        b = Builder("called")
        x = b.param("f32", (3,))
        kind = TensorType(F32, (3,))
        x = b.append(Callback.of(lambda arrays: arrays, "twice", False, [kind]), [x])
        return b.build(b.emit("all_reduce", x, groups=range(2), size=2, fn="sum"))

    assert list(lines_of(program())) == list(lines_of(program()))


def called_with(program: Program, inputs: Sequence[Any]) -> list[Any]:
    ready = prepare(program, get_backend("cpu"))
    return run_ranks(2, lambda rank: ready.execute([inputs[rank]])[0].tolist())


def test_arguments_that_should_be_the_same_and_are_not_are_a_warning() -> None:
    own = [np.ones(3, np.float32), np.zeros(3, np.float32)]
    named = replace(scaled(1), input_names=("model.weight",))
    why = (
        r"^the argument model.weight of type f32\[3\] differs between rank 0 and rank 1 in the "
        r"first call of scaled, .* weft.replicate"
    )
    with pytest.warns(weft.WeftWarning, match=why) as told:
        assert called_with(named, own) == [[1.0] * 3] * 2
    assert len(told) == 1


def test_arguments_that_are_the_same_or_split_are_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    own = [np.ones(3, np.float32), np.zeros(3, np.float32)]
    b = Builder("split")
    x = b.emit("mark_varying", b.param("f32", (3,)), classes=[0, 1])
    split = b.build(b.emit("all_reduce", x, groups=range(2), size=2, fn="sum"))
    assert called_with(split, own) == [[1.0] * 3] * 2
    assert called_with(scaled(1), [own[0], own[0]]) == [[2.0] * 3] * 2
    b = Builder("cut")
    x = b.param("f32", (6,))
    start = b.emit("reshape", b.emit("mesh_rank", numbers=[0, 3]), new_shape=(1,))
    x = b.emit("dynamic_slice", x, start, sizes=(3,))
    cut = b.build(b.emit("all_reduce", x, groups=range(2), size=2, fn="sum"))
    wholes = [np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32)]
    wholes[0][3:] = 0
    assert called_with(cut, wholes) == [[3.0, 5.0, 7.0]] * 2
    assert not recwarn.list


def test_ranks_meet_once_for_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    meet = SimulatedRank.meet

    def counted(self: SimulatedRank, meeting: Any, array: Any) -> Any:
        met.append(meeting.name)
        return meet(self, meeting, array)

    monkeypatch.setattr(SimulatedRank, "meet", counted)
    ones = [np.ones(3, np.float32)]

    def program(rank: int) -> None:
        for _ in range(3):
            weft.run(scaled(1), ones, backend="reference")
        assert len(world_here().agreed) == 1

    run_ranks(2, program)
    assert met == ["the first run of a program"] * 2


def test_programs_that_exchange_nothing_are_not_compared() -> None:
    b = Builder("alone")
    assert agreement_on(b.build(b.emit("neg", b.param("f32", (3,))))) is None
