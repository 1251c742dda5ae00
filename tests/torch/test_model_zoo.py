"""The models of `benchmarks.models`: Weft's take torch's weights by name, and give the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")
from benchmarks.model_cases import Case, Weft, cases  # noqa: E402
from benchmarks.model_zoo import WEFT, torch_library  # noqa: E402
from benchmarks.models import main, torch_generation, with_weights  # noqa: E402

CASES = {case.name.split()[0]: case for case in cases() if not case.trains and not case.cache}
GENERATING = {case.name: case for case in cases() if case.cache}


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


@pytest.mark.parametrize("case", GENERATING.values(), ids=list(GENERATING))
def test_the_same_tokens_on_both_sides(case: Case) -> None:
    torch.manual_seed(0)
    theirs = case.tiny(torch_library(torch)).eval()
    weights = {name: w.clone() for name, w in theirs.state_dict().items()}
    assert case.cache is not None
    data, caches = case.data(True), case.cache(True)
    model = with_weights(case.tiny(WEFT), weights)
    mine = Weft(case, model, data, weft.float32).call(case, caches)
    other = torch_generation(theirs, [torch.as_tensor(d) for d in data], caches, "eager")
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(mine()), other().numpy(), rtol=1e-4, atol=1e-4)


def test_who_names_no_model_is_told_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["models", "--models", "gpt2*,nosuch", "--device", "cpu", "--tiny"]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as ended:
        main()
    told = str(ended.value.code)
    assert "usage" not in capsys.readouterr().err
    assert "error: no model is called 'nosuch'; the models are " in told
    assert all(case.name in told for case in cases())
