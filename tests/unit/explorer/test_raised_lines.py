"""An op that took the place of several lines leads to all of them."""

from __future__ import annotations

import pickle
from typing import Any

import weft
from weft import functional as F
from weft.explorer.collect import of_program
from weft.foundation.lines import Place


def loss(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(0, 1, 3, 2) * 0.25
    weights = F.softmax(scores, axis=-1)
    mixed = weights @ v
    return weft.sum(mixed * mixed)


def test_attention_found_in_a_formula_belongs_to_every_line_of_it() -> None:
    first = loss.__code__.co_firstlineno + 1
    x = weft.ones((1, 2, 8, 16))
    program = weft.jit(lambda *given: weft.value_and_grad(loss)(*given)).program(x, x, x)
    assert any(i.op.mnemonic == "weft.attention" for i in program.main.body)
    (record,) = of_program("step", program, run=False).records()
    beside = {line: ids for file, line, ids in record["beside"] if file == __file__}
    assert set(beside) == {first, first + 1}
    computed = {number for kernel in record["kernels"] for number in kernel["values"]}
    for line, ids in beside.items():
        assert computed & set(ids)
        name = f"test_raised_lines.py:{line}"
        assert any(name in kernel["lines"] for kernel in record["kernels"])
    # The line of the result stays the first.
    product = next(kernel for kernel in record["kernels"] if kernel["pattern"] == "matmul")
    assert product["line"] == first + 2


def test_a_place_keeps_what_stands_beside_it() -> None:
    one, two, three = (Place("a.py", number) for number in (1, 2, 3))
    both = one.with_beside([two, None, one, "b.py:4"])
    assert both == one
    assert both.beside == (two,)
    assert three.with_beside([both]).beside == (one, two)
    assert one.with_beside([one]) is one
    assert pickle.loads(pickle.dumps(both)).beside == (two,)
