"""Loop nests as text: what is printed reads back, and what is edited is understood or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import kernels
from tests.support.native_kernels import plans_for, row_major
from weft.codegen.cpu import ir
from weft.codegen.cpu.compile import lower
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.foundation.errors import SpecViolation
from weft.region.ir import Module

MODULES: dict[str, Callable[[], Module]] = {
    "linear": kernels.linear,
    "softmax": kernels.softmax,
    "fold": kernels.softmax_fold,
    "layer_norm": kernels.layer_norm,
    "elementwise": kernels.elementwise,
    "window": kernels.shifted_window,
    "cache": kernels.cache_update,
    "mask": kernels.causal_mask,
}


def routines_of(module: Module) -> list[ir.Routine]:
    refs = row_major(module.tensors)
    return [
        lower(kernel, module.tensors, refs, plan, f"k{number}_{which}")
        for number, kernel in enumerate(module.kernels)
        for which, plan in enumerate(plans_for(kernel))
    ]


@pytest.mark.parametrize("name", MODULES)
def test_text_reads_back(name: str) -> None:
    routines = routines_of(MODULES[name]())
    assert parse_routines(print_routines(routines)) == routines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "MalformedText at line 2, column 1: cannot read 'nonsense'"),
        ("}", "MalformedText at line 2, column 1: there is a '}' too many before here"),
        ("parallel p in 0..4 {", "MalformedText at line 2, column 21: a '}' is missing"),
        ("let v:f99 = exp(x)", "MalformedText at line 2, column 7: 'f99' is not a dtype"),
        ("let v:f32 = const 1.x", "MalformedText at line 2, column 19: '1.x' is not a number"),
        ("let v:f32 = v", "MalformedText at line 2, column 13: 'v' is not a function of values"),
        (
            "# a sum\n  init a:f32 sum over [u=2 unrolled, l=4 serial]",
            "MalformedText at line 3, column 24: 'l=4 serial' is not 'variable=count kind'",
        ),
        (
            "load v = b0[i*j] if 0 <= i < 3 else 0.0",
            "E1405 NonAffine at line 2, column 13: the index expression 'i*j' is not affine: two "
            "axes are multiplied",
        ),
        (
            "load v = b0[$p] where $p = w under 3",
            "MalformedText at line 2, column 23: '$p = w under 3' is not '$param = value below "
            "size'",
        ),
        (
            f"scratch f32[{10**20}]\nfinish s = a",
            "MalformedText at line 2, column 13: 100000000000000000000 is beyond 64 bits",
        ),
    ],
)
def test_a_wrong_line_is_named(line: str, message: str) -> None:
    with pytest.raises(SpecViolation) as caught:
        parse_routines(f"routine k0 pieces=1\n{line}\n")
    assert str(caught.value) == message
