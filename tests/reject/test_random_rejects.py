"""What the random ops refuse, with the exact reason."""

from __future__ import annotations

import pytest

from tests.support.one_op import NoScope, infer
from weft.foundation.dtypes import CF32, F32, FP8_E4M3, FP8_E5M2, I1, SI32, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.ops.random import RngNormal, RngUniform
from weft.ptir.types import Symbol, tensor

OPS = [RngUniform, RngNormal]
NAMES = {RngUniform: "rng_uniform", RngNormal: "rng_normal"}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [I1, SI32, FP8_E4M3, FP8_E5M2, CF32], ids=str)
def test_dtypes(op: type[RngUniform | RngNormal], dtype: DType) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op((2,), dtype))
    why = f"{NAMES[op]} is not defined for dtype of dtype {dtype}"
    assert (caught.value.code, caught.value.why) == ("DTypeNotSupported", why)
    assert caught.value.hint == "defined for bf16, f16, f32, f64"


@pytest.mark.parametrize("op", OPS)
def test_streams(op: type[RngUniform | RngNormal]) -> None:
    assert infer(op((2,), F32, 2**32 - 1)) == tensor("f32", [2])
    with pytest.raises(SpecViolation) as caught:
        infer(op((2,), F32, 2**32))
    why = f"stream 4294967296 of {NAMES[op]} does not fit 32 bits"
    assert (caught.value.code, caught.value.why) == ("InvalidAttributeValue", why)
    with pytest.raises(SpecViolation) as caught:
        op((2,), F32, -1)
    assert caught.value.why == (
        f"attribute stream of {NAMES[op]}: -1 is not a whole number from 0 on"
    )


@pytest.mark.parametrize("op", OPS)
def test_operands(op: type[RngUniform | RngNormal]) -> None:
    with pytest.raises(SpecViolation) as caught:
        infer(op((2,), F32), tensor("f32"))
    why = f"{NAMES[op]} takes operands (none) but got 1"
    assert (caught.value.code, caught.value.why) == ("ArityMismatch", why)


class Unbound(NoScope):
    def is_bound(self, symbol: Symbol) -> bool:
        return False


@pytest.mark.parametrize("op", OPS)
def test_unbound_symbols(op: type[RngUniform | RngNormal]) -> None:
    with pytest.raises(SpecViolation) as caught:
        op((2, Symbol("B")), F32).result_type([], Unbound())
    why = f"the shape of {NAMES[op]} uses ?B, which no parameter or earlier instruction binds"
    assert (caught.value.code, caught.value.why) == ("DynamicDimensionMismatch", why)


def test_huge_shapes_cost_nothing_to_check() -> None:
    huge = 2**64 - 1
    assert infer(RngNormal((huge, huge), F32)) == tensor("f32", [huge, huge])
