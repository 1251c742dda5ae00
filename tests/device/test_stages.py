"""On a GPU: random programs whose kernels have stages. The seeds are those of programs of which
compilers made wrong code, and a few more."""

from __future__ import annotations

import pytest

from tests.random.stages import check
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(compute_capability() != (9, 0), reason="needs an SM90 GPU")


@pytest.mark.parametrize("seed", [175, 1859, 2116, 3205, 3673, 3929, *range(5000, 5010)])
def test_stages_agree(seed: int) -> None:
    check(seed, "cuda")
