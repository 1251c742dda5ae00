"""Which reductions over ranks are one exchange, when they are carried out, and where they lie."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.artifact.kernels import together
from weft.ptir import Builder
from weft.region import exchanges
from weft.runtime.artifact import HostCall

ALONE: dict[str, Any] = {"groups": [0], "size": 1, "fn": "sum"}


def compiled(build: Any) -> weft.Executable:
    b = Builder("exchanges")
    return weft.compile(b.build(*build(b)), "cpu")


def calls(executable: weft.Executable) -> list[HostCall]:
    return [step for step in executable.artifact.steps if isinstance(step, HostCall)]


def gradients(b: Any, count: int = 3, size: int = 16) -> list[Any]:
    """Values that are made one after the other."""
    made = [b.param("f32", (size, size))]
    for _ in range(count):
        made.append(b.emit("dot_general", made[-1], made[0], contract_lhs=[1], contract_rhs=[0]))
    return made[1:]


def read(b: Any, values: list[Any]) -> list[Any]:
    return [b.emit("reduce_max", value, axes=[0], keepdims=False) for value in values]


def test_neighbours_are_one_exchange_side_by_side() -> None:
    def build(b: Any) -> list[Any]:
        reduced = [b.emit("all_reduce", g, **ALONE) for g in reversed(gradients(b, size=5))]
        return read(b, reduced)

    found = compiled(build)
    (call,) = calls(found)
    slots = [found.artifact.buffers[number] for number, _ in call.outputs]
    assert [slot.space for slot in slots] == ["arena"] * 3
    assert [slot.offset - slots[0].offset for slot in slots] == [0, 128, 256]
    assert [n for n, _ in call.inputs] == [n for n, _ in call.outputs]
    x = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32)
    assert np.allclose(found(x)[0], (x @ x @ x @ x).max(0), atol=1e-4)


def test_what_is_handed_out_does_not_pull_an_exchange_apart() -> None:
    def build(b: Any) -> list[Any]:
        reduced = [b.emit("all_reduce", g, **ALONE) for g in gradients(b)]
        return [b.emit("exp", value) for value in reduced]

    found = compiled(build)
    (call,) = calls(found)
    assert {found.artifact.buffers[number].space for number, _ in call.outputs} == {"arena"}


@pytest.mark.parametrize("other", [
    {"fn": "max"},
    {"dtype": "f64"},
    {"after": True},
], ids=["function", "dtype", "dependence"])  # fmt: skip
def test_others_are_exchanges_of_their_own(other: dict[str, Any]) -> None:
    def build(b: Any) -> list[Any]:
        first, second = gradients(b, 2)
        reduced = b.emit("all_reduce", first, **ALONE)
        if "dtype" in other:
            second = b.emit("cast", second, dtype=other["dtype"])
        if "after" in other:
            second = reduced
        attrs = {**ALONE, "fn": other.get("fn", "sum")}
        return read(b, [reduced, b.emit("all_reduce", second, **attrs)])

    assert [len(call.inputs) for call in calls(compiled(build))] == [1, 1]


def test_full_buckets_go_off_in_the_order_of_making(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "BUCKET", 2 * 16 * 16 * 4)

    def build(b: Any) -> list[Any]:
        made = gradients(b, 4)
        # As a user's container has them: the one that is made last comes first.
        reduced = [b.emit("all_reduce", g, **ALONE) for g in reversed(made)]
        return read(b, reduced)

    found = compiled(build)
    kinds = [isinstance(step, HostCall) for step in found.artifact.steps]
    assert [len(call.inputs) for call in calls(found)] == [2, 2]
    assert kinds == [False, False, True, False, False, True, False, False, False, False]


TWO_OF_ONE_KERNEL = """
import weft
from weft.ptir import Builder
from weft.runtime.artifact import HostCall
b = Builder("two")
x, y = b.param("f32", (64, 16)), b.param("f32", (64, 16))
sums = [b.emit("reduce_sum", v, axes=[0], keepdims=False) for v in (x * y, x)]
reduced = [b.emit("all_reduce", s, groups=[0], size=1, fn="sum") for s in sums]
made = weft.compile(b.build(*(b.emit("exp", r) for r in reduced)), "cpu")
assert sum(not isinstance(s, HostCall) for s in made.artifact.steps) < 4, "one kernel makes both"
print([(s.label, s.inputs) for s in made.artifact.steps if isinstance(s, HostCall)])
"""


def test_every_process_exchanges_in_the_same_order() -> None:
    """Ranks are processes, and each has its own order of sets."""
    said = set()
    for seed in (1, 6, 8):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "WEFT_CACHE": "off"}
        command = [sys.executable, "-c", TWO_OF_ONE_KERNEL]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1
    assert "and 1 more (" in said.pop()


def test_the_name_of_an_exchange_stands_for_its_order() -> None:
    """By it ranks with other orders, on processors of other kinds, say so instead of adding up
    different tensors."""
    one = HostCall("all_reduce", (), (), "opaque2")
    first, second = (together([one, one], made) for made in (["v1", "v2"], ["v2", "v1"]))
    assert first.label.startswith("opaque2 and 1 more (")
    assert first.label != second.label
