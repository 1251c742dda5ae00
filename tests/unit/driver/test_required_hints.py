"""A Required hint is met, by one kernel that computes all of it, or the program is refused with the
reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.ptir import Builder, HintKind, HintPolicy, HintRegion, Program

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def chain(policy: str) -> Program:
    b = Builder()
    x = b.param("f32", [3, 4])
    with b.hint("elementwise_dag", policy):
        y = b.exp(b.neg(x))
    return b.build(y)


def sorted_between(policy: str) -> Program:
    """What is wished for as one kernel has a sort in between, which is a kernel of its own."""
    b = Builder()
    x = b.param("f32", [3, 4])
    y = b.neg(x)
    ordered = b.sort(y, axis=1, descending=False)
    z = b.exp(ordered)
    program = b.build(z, y)
    both = [i for i in program.main.body if i.op.mnemonic in ("neg", "exp")]
    wish = HintRegion(
        0, HintKind.ELEMENTWISE_DAG, HintPolicy[policy.upper()],
        tuple(sorted({u for i in both for u in i.uses})), (both[0].id, both[1].id), tuple(both),
    )  # fmt: skip
    return program.with_main(replace(program.main, hints=(wish,)))


def test_a_required_hint_that_is_met_runs() -> None:
    (found,) = weft.run(chain("required"), [X], backend="cpu")
    np.testing.assert_allclose(found, np.exp(-X), rtol=1e-6)


def test_one_that_is_not_met_is_refused_with_the_reason() -> None:
    why = r"hint 0 of function @main: it is a required elementwise_dag, but .* become \d kernels"
    with pytest.raises(weft.Unimplemented, match=why):
        weft.run(sorted_between("required"), [X], backend="cpu")
    with pytest.raises(weft.Unimplemented, match=why):
        weft.compile(sorted_between("required"), "cpu")
    (found, _) = weft.run(sorted_between("preferred"), [X], backend="cpu")
    np.testing.assert_allclose(found, np.exp(np.sort(-X, axis=1)), rtol=1e-6)


def test_an_interpreter_meets_none() -> None:
    with pytest.raises(weft.Unimplemented, match="cannot run a required elementwise_dag as one"):
        weft.run(chain("required"), [X], backend="reference")
    (found,) = weft.run(chain("preferred"), [X], backend="reference")
    np.testing.assert_allclose(found, np.exp(-X), rtol=1e-6)


def test_one_is_not_lost_on_the_way() -> None:
    """Programs that others are made of: over a batch, and filled up to larger sizes."""
    with pytest.raises(weft.Unimplemented, match="hint 0: it is Required, and the program over a"):
        weft.ptir.vmap(chain("required"), 0, 5)
    b = Builder()
    x = b.param("f32", ["?B", 4])
    with b.hint("elementwise_dag", "required"):
        y = b.exp(b.neg(x))
    shaped = weft.compile(b.build(y), "cpu", shapes=weft.ShapeSet())
    np.testing.assert_allclose(shaped(X)[0], np.exp(-X), rtol=1e-6)
    assert "B is exact: hint 0 is required, and padding adds instructions" in shaped.explain()
