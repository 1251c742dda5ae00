"""Why kernels are what they are: each choice comes with the price of what was not chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weft
from weft.driver.compile import compile_program
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.links import links_of
from weft.driver.tuning import tuned
from weft.driver.tuning.tuned import Tuned
from weft.explorer.choices import choices_of, races_of
from weft.explorer.plans import shown_fields
from weft.plan.candidates import candidates


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    def rows(x: Any, w: Any) -> Any:
        y = x @ w
        return weft.exp(y - weft.max(y, axis=1, keepdims=True))

    program = weft.jit(rows).program(weft.ones((64, 128)), weft.ones((128, 96)))
    (cluster,) = compile_program(program, "cpu").clusters.values()
    return cluster.compilation


def test_what_goes_through_memory_says_why_and_what_does_not_what_it_saves(
    compilation: Compilation,
) -> None:
    links = links_of(compilation)
    found = choices_of(compilation, links.tiny)
    assert set(found) == set(links.kernels)
    (product,) = (name for name in found if name.startswith("matmul"))
    (row,) = (name for name in found if name.startswith("row"))
    stored = [choice for choice in found[product] if choice["kind"] == "stored"]
    assert [choice["ids"] for choice in stored] == [list(links.kernels[product].values)]
    assert "kernels of their own" in stored[0]["why"]
    inside = [choice for choice in found[row] if choice["kind"] == "inside"]
    assert inside
    for choice in inside:
        assert choice["together"] < choice["apart"]
        assert set(choice["ids"]) <= set(links.kernels[row].values)


def test_kernels_that_stayed_apart_are_told_with_both_prices() -> None:
    """Two maps over one large tensor: one kernel for both is weighed against two."""

    def two(x: Any) -> Any:
        return weft.exp(x), weft.sum(weft.tanh(x), axis=1)

    program = weft.jit(two).program(weft.ones((32, 64)))
    (cluster,) = compile_program(program, "cpu").clusters.values()
    module = cluster.compilation["region"]
    pairs = [w for w in module.weighed if w.beside]
    one = len(module.kernels) == 1
    assert all((w.together < w.apart) == one for w in pairs)


def names(compilation: Compilation) -> list[str]:
    return [kernel.name for kernel in compilation["region"].kernels]


def test_the_dearest_kernels_alone_have_other_plans(
    compilation: Compilation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.explorer.choices._RACED", 1)
    for dearest in (names(compilation), names(compilation)[::-1]):
        races = races_of(compilation, dearest)
        keys = [compilation["plan"].kernels[name] for name in dearest]
        assert races[keys[0]]["others"]
        assert not races[keys[1]]["others"]


def test_other_plans_have_their_fields_and_estimates(compilation: Compilation) -> None:
    plans = compilation["plan"].plans
    for key, race in races_of(compilation, names(compilation)).items():
        own = shown_fields(plans[key])
        assert race["told"] == ""
        assert race["measured"] == []
        assert race["others"] == sorted(race["others"], key=lambda row: row[1])
        for changed, seconds in race["others"]:
            assert seconds > 0
            assert changed
            assert all(own.get(name) != value for name, value in changed)


def test_a_tuned_kernel_has_the_race_of_its_plans(
    compilation: Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    (kernel,) = (k for k in compilation["region"].kernels if k.name.startswith("matmul"))
    key = compilation["plan"].kernels[kernel.name]
    plan = compilation["plan"].plans[key]
    other = candidates(kernel, compilation.target, plan)[1]
    found = Tuned(plan, 1e-5, 3e-5, 2, 2, ((plan, 1e-5), (other, 3e-5)))
    assert tuned.save_tuned(compilation.target, {key: found})
    race = races_of(compilation, names(compilation))[key]
    (own, first), (changed, second) = race["measured"]
    assert (own, first, second) == ([], 1e-5, 3e-5)
    assert changed
    assert race["others"] == []
    assert "2 of 2 plans measured" in race["told"]
