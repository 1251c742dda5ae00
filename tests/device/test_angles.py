"""Sine, cosine and tangent on a GPU: angles of every size, and those nearest to a multiple of pi/2,
are right to the last digits."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.angles import ULPS, samples, wrong_by
from weft.ptir import Builder
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")

OPS = {"sin": "sine", "cos": "cosine", "tan": "tangent"}
WIDER = {"f32": np.float64, "f64": np.longdouble}


@pytest.mark.parametrize(("dtype", "kind"), [("f32", "float"), ("f64", "double")])
@pytest.mark.parametrize("op", OPS)
def test_angles_of_every_size(op: str, dtype: str, kind: str) -> None:
    x = samples(kind)
    b = Builder()
    program = b.build(b.emit(op, b.param(dtype, [x.size])))
    (got,) = weft.run(program, [x], backend="cuda")
    error = wrong_by(got, getattr(np, op)(x.astype(WIDER[dtype])))
    assert error.max() < ULPS[OPS[op]], (float(x[error.argmax()]).hex(), error.max())
