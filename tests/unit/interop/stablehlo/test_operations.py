"""Every operation of the dialects is read or refused with a reason, and the page says which."""

from __future__ import annotations

import pytest

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from docs import generate_interchange
from tests.stablehlo_oracle import function
from weft.foundation.errors import Unimplemented
from weft.interop import stablehlo
from weft.interop.stablehlo.reading.module import LOWERINGS
from weft.interop.stablehlo.reading.refused import REFUSED

OTHER_DIALECTS = {"func.call", "shape.shape_of"}


def test_every_operation_is_read_or_refused() -> None:
    dialects = generate_interchange.DIALECTS
    listed = {name for dialect in dialects for name in generate_interchange.names_of(dialect)}
    assert not listed - set(LOWERINGS) - set(REFUSED)
    assert not set(LOWERINGS) & set(REFUSED)
    assert set(LOWERINGS) - listed == OTHER_DIALECTS
    assert not set(REFUSED) - listed


def test_the_page_is_up_to_date() -> None:
    page = generate_interchange.PAGE.read_text()
    assert page.endswith("\n\n" + generate_interchange.render()), "run `make docs`"


def test_a_refusal_gives_the_reason_and_the_line() -> None:
    kind = "tensor<4xf32>"
    text = function(f"%x: {kind}", f"%0 = chlo.lgamma %x : {kind} -> {kind}", f"%0 : {kind}")
    with pytest.raises(Unimplemented) as caught:
        stablehlo.loads(text)
    assert str(caught.value) == (f"Unimplemented stablehlo.lgamma: {REFUSED['lgamma']}; line 2")


def test_a_collective_is_refused() -> None:
    kind = "tensor<4xf32>"
    body = (
        '%0 = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
        "%1 = stablehlo.add %a, %b : tensor<f32>\nstablehlo.return %1 : tensor<f32> }) "
        f"{{replica_groups = dense<[[0]]> : tensor<1x1xi64>}} : ({kind}) -> {kind}"
    )
    with pytest.raises(Unimplemented, match="it exchanges values between devices"):
        stablehlo.loads(function(f"%x: {kind}", body, f"%0 : {kind}"))
