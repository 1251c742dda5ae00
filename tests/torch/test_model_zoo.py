"""The models of `benchmarks.models`: Weft's take torch's weights by name, and give the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")
from benchmarks.model_zoo import WEFT, torch_library  # noqa: E402
from benchmarks.models import Case, cases  # noqa: E402

CASES = {case.name.split()[0]: case for case in cases() if not case.trains}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_same_model_on_both_sides(case: Case) -> None:
    torch.manual_seed(0)
    theirs, ours = case.tiny(torch_library(torch)).eval(), case.tiny(WEFT)
    weights = {name: weft.asarray(w.numpy()) for name, w in theirs.state_dict().items()}
    assert {n for n in weights if "num_batches" not in n} == ours.state_dict().keys()
    data = case.data(True)
    got = ours.with_state({name: weights[name] for name in ours.state_dict()})(*data).numpy()
    with torch.no_grad():
        wanted = theirs(*map(torch.from_numpy, data)).numpy()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
