"""Random numbers as functions of keys: their bits, their distributions, and where keys may go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import weft
from tests.support.cases import one_in
from weft import random
from weft.foundation import philox
from weft.foundation.errors import SpecViolation, UserError, WeftError
from weft.ops.graph.cache import PROGRAMS

COUNT, MANY = 20_000, 100_000


def on(backend: str, draw: Callable[[], Any]) -> Any:
    with weft.graph(backend=backend):
        return draw().numpy()


def reference(draw: Callable[[], Any]) -> Any:
    return on("reference", draw)


# -- keys ------------------------------------------------------------------------------------------


def test_a_key_is_an_ordinary_tensor() -> None:
    key = random.key(7)
    assert str(key.type) == "si64[2]"
    assert key.tolist() == [7, 0]
    assert random.key(2**64 - 1).tolist() == [-1, 0]
    assert random.key(weft.asarray(5)).tolist() == [5, 0]
    assert random.key(np.int32(5)).tolist() == [5, 0]


def test_the_bits_are_those_of_the_generator() -> None:
    key = random.key(7)
    assert random.bits(key, 6).tolist() == philox.words(7, 0, 0, 6).tolist()
    words = philox.words(7, 0, 0, 8).astype(np.uint64).reshape(4, 2)
    wide = (words[:, 0] << np.uint64(32)) | words[:, 1]
    assert random.bits(key, (2, 2), "uint64").tolist() == wide.reshape(2, 2).tolist()
    assert random.bits(key, 3, "uint8").tolist() == (words.reshape(-1)[:3] >> 24).tolist()
    assert random.split(key, 2).numpy().view(np.uint64).reshape(-1).tolist() == wide.tolist()


def test_new_keys_differ() -> None:
    def made() -> Any:
        key = random.key(3)
        folded = [random.fold_in(key, number) for number in (-1, 0, 1, 2**40)]
        return weft.concat([random.split(key, (2, 2)).reshape((4, 2)), weft.stack(folded)])

    keys = reference(made)
    assert len({tuple(key) for key in keys.tolist()}) == 8
    nested = reference(lambda: random.split(random.split(random.key(3))[0], 1))
    assert nested.tolist() != [keys[5].tolist()]


def test_a_key_that_is_none_is_refused() -> None:
    for wrong in (3, None, weft.ones(2), random.split(random.key(0)), "abc"):
        with pytest.raises(UserError, match=r"\[uniform\] key is"):
            random.uniform(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="seed is a float"):
        random.key(1.5)
    with pytest.raises(UserError, match="must fit 64 bits"):
        random.key(2**64)
    with pytest.raises(UserError, match=r"several sizes are one shape, such as \(2, 4\)"):
        random.normal(random.key(0), 3, 4)
    with pytest.raises(UserError, match=r"p is \(3,\); a probability is from 0 to 1"):
        random.bernoulli(random.key(0), (3,))
    with pytest.raises(WeftError, match="minval is called low here"):
        random.uniform(random.key(0), (2,), minval=1)  # type: ignore[call-arg]


# -- the same bits everywhere ----------------------------------------------------------------------

EXACT: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: random.bits(key, (3, 7)),
    "uniform": lambda key: random.uniform(key, (3, 7)),
    "uniform-f16": lambda key: random.uniform(key, 9, "float16"),
    "uniform-between": lambda key: random.uniform(key, (3, 7), low=-2.5, high=1e3),
    "uniform-f64": lambda key: random.uniform(key, 5000, "float64", low=-2.5, high=3.1),
    "randint": lambda key: random.randint(key, (3, 7), -5, 100),
    "randint-int8": lambda key: random.randint(key, 9, -128, 128, "int8"),
    "randint-uint64": lambda key: random.randint(key, 9, 1, 2**64, "uint64"),
    "randint-all": lambda key: random.randint(key, 9, -(2**63), 2**63),
    "bernoulli": lambda key: random.bernoulli(key, 0.3, (20,)),
    "permutation": lambda key: random.permutation(key, 50),
    "independent": lambda key: random.permutation(
        key, weft.arange(30).reshape((10, 3)), independent=True
    ),
    "choice": lambda key: random.choice(key, 50, (4, 5)),
    "choice-once": lambda key: random.choice(key, 50, (7,), replace=False),
    "shuffle": lambda key: random.shuffle(key, weft.arange(12).reshape((3, 4)), axis=1),
    "split": lambda key: random.split(key, 3),
    "fold_in": lambda key: random.fold_in(key, 12),
}


@pytest.mark.parametrize("name", EXACT)
def test_backends_make_the_same_bits(name: str) -> None:
    draw = EXACT[name]
    found = on("cpu", lambda: draw(random.key(5)))
    assert found.tolist() == reference(lambda: draw(random.key(5))).tolist()


NEAR: dict[str, Callable[[Any, str], Any]] = {
    "normal": lambda key, dtype: random.normal(key, MANY, dtype),
    "exponential": lambda key, dtype: random.exponential(key, MANY, dtype),
    "gumbel": lambda key, dtype: random.gumbel(key, MANY, dtype),
    "laplace": lambda key, dtype: random.laplace(key, MANY, dtype),
    "truncated": lambda key, dtype: random.truncated_normal(key, shape=MANY, dtype=dtype),
    "tail": lambda key, dtype: random.truncated_normal(key, 3.0, 6.0, COUNT, dtype),
}


def ulps_apart(a: Any, b: Any) -> Any:
    """How many floats lie between two of a dtype, which may be bfloat16."""
    integer = np.dtype(f"int{8 * a.itemsize}")
    found, wanted = (x.view(integer).astype(object if a.itemsize == 8 else int) for x in (a, b))
    most = np.iinfo(integer).max
    steps = [np.where(x < 0, -(x & most), x) for x in (found, wanted)]
    return np.abs(steps[0] - steps[1])


@pytest.mark.parametrize("dtype", one_in(2, ["bfloat16", "float16", "float32", "float64"]))
@pytest.mark.parametrize("name", NEAR)
def test_backends_agree_to_a_few_ulp(name: str, dtype: str) -> None:
    draw = NEAR[name]
    found, wanted = (
        on(backend, lambda: draw(random.key(2), dtype)) for backend in ("cpu", "reference")
    )
    assert np.isfinite(wanted.astype(np.float64)).all()
    assert ulps_apart(found, wanted).max() <= 4


def test_gumbel_floats_are_right_where_the_inner_logarithm_is_near_one() -> None:
    found = on("cpu", lambda: random.gumbel(random.key(2), MANY))
    top = reference(lambda: random.bits(random.key(2), MANY)) >> 9
    exact = -np.log(-np.log((2.0 * top + 1.0) * 2.0**-24))
    small = np.abs(exact) < 1e-3
    assert small.sum() > 20
    assert np.all(
        np.abs(found - exact)[small] <= 4 * np.spacing(np.abs(exact[small]).astype(np.float32))
    )


def test_normal_floats_are_zero_where_their_angle_says_so() -> None:
    for backend in ("cpu", "reference"):
        drawn = on(backend, lambda: random.normal(random.key(3), MANY, "bfloat16"))
        sizes = np.abs(drawn.astype(np.float64))
        assert 0 < (sizes == 0).sum() < MANY / 64
        assert sizes[sizes > 0].min() > 1e-4


# -- distributions ---------------------------------------------------------------------------------

CONTINUOUS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "uniform": (lambda key: random.uniform(key, COUNT), stats.uniform()),
    "uniform-between": (
        lambda key: random.uniform(key, COUNT, low=-3, high=5),
        stats.uniform(-3, 8),
    ),
    "normal": (lambda key: random.normal(key, COUNT), stats.norm()),
    "normal-f64": (lambda key: random.normal(key, COUNT, "float64"), stats.norm()),
    "exponential": (lambda key: random.exponential(key, COUNT), stats.expon()),
    "gumbel": (lambda key: random.gumbel(key, COUNT), stats.gumbel_r()),
    "laplace": (lambda key: random.laplace(key, COUNT), stats.laplace()),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_distribution_is_the_one_it_is_called(name: str) -> None:
    draw, wanted = CONTINUOUS[name]
    found = reference(lambda: draw(random.key(11))).astype(np.float64)
    assert np.isfinite(found).all()
    assert stats.kstest(found, wanted.cdf).pvalue > 0.001
    error = wanted.std() / np.sqrt(COUNT)
    assert abs(found.mean() - wanted.mean()) < 4 * error
    assert abs(found.std() / wanted.std() - 1) < 0.05


def chi_square(counts: Any, shares: Any) -> float:
    shares = np.asarray(shares, np.float64) / np.sum(shares, dtype=np.float64)
    return float(stats.chisquare(counts, shares * np.sum(counts)).pvalue)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-7, 6), (0, 3)])
def test_integers_are_equally_likely(low: int, high: int) -> None:
    found = reference(lambda: random.randint(random.key(1), COUNT, low, high))
    counts = np.bincount(found - low, minlength=high - low)
    assert len(counts) == high - low
    assert chi_square(counts, np.ones(high - low)) > 0.001


def test_integers_of_wide_ranges_reach_both_ends() -> None:
    found = reference(lambda: random.randint(random.key(1), COUNT, -(2**62), 3 * 2**61))
    scaled = (found.astype(np.float64) + 2.0**62) / (5 * 2.0**61)
    assert stats.kstest(scaled, stats.uniform().cdf).pvalue > 0.001


def test_bounds_may_be_tensors() -> None:
    low, high = weft.asarray([[0], [-5], [7]]), weft.asarray([[1], [10**12], [7]])
    wide = random.randint(random.key(4), (3, 50), low, high).numpy()
    assert (wide[0] == 0).all()
    assert (wide[2] == 7).all()
    assert wide[1].min() >= -5
    assert 10**11 < wide[1].max() < 10**12
    narrow = random.randint(random.key(4), (3, 50), low, high, "int32").numpy()
    assert narrow[1].min() >= -5
    between = random.uniform(random.key(4), (2, 50), low=weft.asarray([[0.0], [5.0]]), high=6.0)
    assert between.numpy()[1].min() >= 5


def test_what_is_below_the_upper_bound_stays_below() -> None:
    found = reference(lambda: random.uniform(random.key(0), 4096, "bfloat16", low=1.0, high=1.02))
    assert float(found.max()) < float(np.asarray(1.02, found.dtype))
    same = reference(lambda: random.uniform(random.key(0), 5, low=2.0, high=2.0))
    assert same.tolist() == [2.0] * 5


def test_chances() -> None:
    found = reference(lambda: random.bernoulli(random.key(1), weft.asarray([0.1, 0.5]), (COUNT, 2)))
    assert found.dtype == np.bool_
    for column, chance in zip(found.T, (0.1, 0.5), strict=True):
        assert stats.binomtest(int(column.sum()), COUNT, chance).pvalue > 0.001
    assert random.bernoulli(random.key(1), weft.asarray([0.0, 1.0])).tolist() == [False, True]


def test_categories_follow_their_logits() -> None:
    shares = np.array([0.1, 0.2, 0.7], np.float32)
    logits = weft.asarray(np.log(shares))
    found = reference(lambda: random.categorical(random.key(1), np.log(shares), shape=(COUNT,)))
    assert chi_square(np.bincount(found), shares) > 0.001
    many = weft.asarray(np.zeros((4, 3, 5), np.float32))
    assert random.categorical(random.key(0), many, axis=1).shape == (4, 5)
    assert random.categorical(random.key(0), many, axis=1, shape=(2, 4, 5)).shape == (2, 4, 5)
    with pytest.raises(SpecViolation, match="shape must end with them"):
        random.categorical(random.key(0), many, axis=1, shape=(2, 5))
    assert (
        random.categorical(random.key(0), logits + 1e4 * np.eye(3, dtype=np.float32)[1]).item() == 1
    )


def test_choices_follow_their_weights() -> None:
    weights = np.array([1, 0, 3, 6], np.float32)
    found = reference(lambda: random.choice(random.key(1), 4, (COUNT,), p=weights))
    counts = np.bincount(found, minlength=4)
    assert counts[1] == 0
    assert chi_square(counts[[0, 2, 3]], weights[[0, 2, 3]]) > 0.001

    def first(key: Any) -> Any:
        return random.choice(key, 4, (2,), replace=False, p=weights)

    pairs = reference(lambda: weft.vmap(first)(random.split(random.key(2), 2000)))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    counts = np.bincount(pairs[:, 0], minlength=4)
    assert chi_square(counts[[0, 2, 3]], weights[[0, 2, 3]]) > 0.001


def test_choices_are_slices() -> None:
    rows = np.arange(12.0).reshape(3, 4)
    found = random.choice(random.key(0), rows, (2, 5), axis=1).numpy()
    assert found.shape == (3, 2, 5)
    assert (found[0] < 4).all()
    assert (found[2] == found[0] + 8).all()
    with pytest.raises(UserError, match="5 of 3 slices cannot be taken"):
        random.choice(random.key(0), 3, (5,), replace=False)
    with pytest.raises(SpecViolation, match="but there are 3 slices"):
        random.choice(random.key(0), 3, (5,), p=np.ones(4, np.float32))


def test_orders_are_equally_likely() -> None:
    def order(key: Any) -> Any:
        return random.permutation(key, 3)

    found = reference(lambda: weft.vmap(order)(random.split(random.key(1), 6000)))
    names, counts = np.unique(found @ np.array([9, 3, 1]), return_counts=True)
    assert len(names) == 6
    assert chi_square(counts, np.ones(6)) > 0.001
    rows = np.arange(20).reshape(10, 2)
    mixed = random.shuffle(random.key(0), rows).numpy()
    assert mixed.tolist() != rows.tolist()
    assert sorted(mixed.tolist()) == rows.tolist()
    with pytest.raises(UserError, match="has no axis"):
        random.permutation(random.key(0), weft.asarray(1.0))


# -- where keys may go -----------------------------------------------------------------------------


def test_keys_pass_through_jit_and_scan() -> None:
    def step(key: Any, _: Any) -> tuple[Any, Any]:
        key, now = random.split(key)
        return key, random.normal(now, (2,))

    last, made = weft.jit(lambda key: weft.scan(step, key, None, length=3))(random.key(5))
    key = random.key(5)
    for row in made.tolist():
        key, now = random.split(key)
        assert random.normal(now, (2,)).tolist() == row
    assert last.tolist() == key.tolist()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["bits", "uniform", "normal", "randint", "permutation", "choice"])
def test_a_batch_of_keys_draws_for_each(backend: str, name: str) -> None:
    draws: dict[str, Callable[[Any], Any]] = {
        "bits": lambda key: random.bits(key, (3,), "uint64"),
        "uniform": lambda key: random.uniform(key, (5,), "float64"),
        "normal": lambda key: random.normal(key, (2, 3)),
        "randint": lambda key: random.randint(key, (8,), 0, 9),
        "permutation": lambda key: random.permutation(key, 5),
        "choice": lambda key: random.choice(key, 9, (3,), replace=False),
    }
    draw = draws[name]
    with weft.graph(backend=backend):
        keys = random.split(random.key(8), 4)
        found = weft.vmap(draw)(keys).numpy()
        assert found.tolist() == [draw(key).tolist() for key in keys]


def test_a_key_may_be_made_inside_a_traced_function() -> None:
    @weft.jit
    def noisy(x: Any, step: Any) -> Any:
        return x + random.normal(random.fold_in(random.key(3), step), x.shape)

    x = weft.zeros((4,))
    alone = random.normal(random.fold_in(random.key(3), 2), (4,))
    assert noisy(x, 2).tolist() == alone.tolist()
    assert noisy(x, 3).tolist() != alone.tolist()


def test_gradients_pass_the_bounds_and_not_the_key() -> None:
    def spread(scale: Any) -> Any:
        return weft.sum(random.normal(random.key(1), (5,)) * scale)

    found = weft.grad(spread)(weft.asarray(2.0))
    total = weft.sum(random.normal(random.key(1), (5,)))
    assert found.item() == pytest.approx(total.item(), rel=1e-6)


# -- without keys ----------------------------------------------------------------------------------


def test_the_seed_of_the_process() -> None:
    random.seed(3)
    first = [weft.rand(2, 3), weft.randn((4,)), random.rand()]
    assert [x.shape for x in first] == [(2, 3), (4,), ()]
    assert first[0].tolist() != weft.rand(2, 3).tolist()
    random.seed(3)
    assert weft.rand(2, 3).tolist() == first[0].tolist()
    assert weft.randn(4).tolist() == first[1].tolist()
    random.seed(0)


def test_the_seed_counts_for_layers_too() -> None:
    random.seed(1)
    first = weft.nn.Linear(3, 2).weight.tolist()
    random.seed(1)
    assert weft.nn.Linear(3, 2).weight.tolist() == first
    random.seed(0)


@pytest.mark.parametrize("draw", [weft.rand, weft.randn])
def test_hidden_state_is_refused_in_a_traced_function(draw: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="take a key as an argument"):
        weft.jit(lambda x: x + draw(2))(weft.ones(2))


def test_only_public_names_are_shown() -> None:
    assert dir(random) == sorted(random.__all__)
    assert weft.random is random


# -- by trial --------------------------------------------------------------------------------------

BY_TRIAL: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "truncated": (lambda key: random.truncated_normal(key, shape=COUNT), stats.truncnorm(-2, 2)),
    "one-sided": (
        lambda key: random.truncated_normal(key, 12.0, np.inf, COUNT),
        stats.truncnorm(12, np.inf),
    ),
    "truncated-tail": (
        lambda key: random.truncated_normal(key, 3.0, 4.0, COUNT),
        stats.truncnorm(3, 4),
    ),
    "truncated-half": (
        lambda key: random.truncated_normal(key, 1.0, np.inf, COUNT),
        stats.truncnorm(1, np.inf),
    ),
    "gamma-small": (lambda key: random.gamma(key, 0.2, COUNT), stats.gamma(0.2)),
    "gamma-one": (lambda key: random.gamma(key, 1.0, COUNT, "float64"), stats.gamma(1)),
    "gamma-large": (lambda key: random.gamma(key, 50.0, COUNT), stats.gamma(50)),
    "beta": (lambda key: random.beta(key, 0.5, 2.0, COUNT), stats.beta(0.5, 2)),
    "dirichlet": (
        lambda key: random.dirichlet(key, [1.0, 2.0, 3.0], COUNT)[:, 0],
        stats.beta(1, 5),
    ),
}


@pytest.mark.parametrize("name", BY_TRIAL)
def test_a_distribution_by_trial_is_the_one_it_is_called(name: str) -> None:
    draw, wanted = BY_TRIAL[name]
    found = reference(lambda: draw(random.key(3))).astype(np.float64)
    assert stats.kstest(found, wanted.cdf).pvalue > 0.001
    assert abs(found.mean() - wanted.mean()) < 4 * wanted.std() / np.sqrt(COUNT)


@pytest.mark.parametrize("mean", [0.5, 4.0, 9.9, 10.0, 30.0, 1e4])
def test_poisson_numbers(mean: float) -> None:
    found = reference(lambda: random.poisson(random.key(3), mean, COUNT))
    law = stats.poisson(mean)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 10)))
    counts = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    shares = np.diff([0.0, *law.cdf(edges), 1.0])
    assert chi_square(counts, shares) > 0.001


def test_what_is_drawn_by_trial_stays_in_its_range() -> None:
    odd = reference(lambda: random.poisson(random.key(1), weft.asarray([-1.0, np.nan, 0.0])))
    assert odd.tolist() == [-1, -1, 0]
    rows = reference(lambda: random.dirichlet(random.key(1), np.ones((2, 4)), (5, 2)))
    assert rows.shape == (5, 2, 4)
    assert rows.sum(-1) == pytest.approx(np.ones((5, 2)), rel=1e-5)
    narrow = reference(lambda: random.truncated_normal(random.key(1), -0.5, 0.5, 500, "bfloat16"))
    assert np.abs(narrow.astype(np.float64)).max() <= 0.5
    tiny = reference(lambda: random.gamma(random.key(1), 1e-3, 100, "float64"))
    assert (tiny >= 0).all()


def test_trials_of_a_batch_end_at_their_own_time() -> None:
    keys = random.split(random.key(1), 3)

    def draw(key: Any) -> Any:
        return random.gamma(key, 0.5, (2,))

    with weft.graph(backend="reference"):
        together = weft.vmap(draw)(keys).tolist()
        assert together == [draw(key).tolist() for key in keys]


def test_compiled_trials_draw_the_same() -> None:
    found, wanted = (
        on(backend, lambda: random.gamma(random.key(5), 2.0, (100,)))
        for backend in ("cpu", "reference")
    )
    assert found == pytest.approx(wanted, rel=1e-5)


def test_a_loop_that_splits_its_key_runs_the_same_programs_in_every_turn() -> None:
    key = random.key(0)
    counts: list[int] = []
    for _ in range(6):
        key, now = random.split(key)
        random.normal(now, (3,)).numpy()
        counts.append(PROGRAMS.statistics.compiled)
    assert counts[-1] == counts[2]
