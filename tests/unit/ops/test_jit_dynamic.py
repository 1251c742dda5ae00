"""`weft.jit` with dims of any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.foundation.errors import SpecViolation, UserError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_dynamic_dims_are_compiled_once() -> None:
    f = weft.jit(lambda x: weft.functional.softmax(x * 2.0), dynamic={"x": {0: "B"}})
    for rows in range(1, 21):
        x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
        e = np.exp(2 * x - (2 * x).max(1, keepdims=True))
        np.testing.assert_allclose(f(x).numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    assert len(f.versions) == 1
    assert "?B" in str(f.program(X).main.parameters[0])


def test_twenty_batch_sizes_are_one_native_compile() -> None:
    weight = weft.asarray(np.arange(12, dtype=np.float32).reshape(3, 4) / 8).to("cpu")

    def f(x: Any, y: Any) -> Any:
        hidden = weft.functional.softmax(x @ weight)
        return hidden, (weft.sum(hidden, axis=1) * y).mean(), weft.max(hidden, axis=0)

    jitted = weft.jit(f, dynamic={"x": {0: "B"}, "y": {-1: "B"}})
    for rows in range(1, 21):
        rng = np.random.default_rng(rows)
        x, y = rng.standard_normal((rows, 3)).astype(np.float32), rng.random(rows, np.float32)
        found = jitted(weft.asarray(x).to("cpu"), y)
        scores = x @ weight.numpy()
        e = np.exp(scores - scores.max(1, keepdims=True))
        hidden = e / e.sum(1, keepdims=True)
        expected = hidden, (hidden.sum(1) * y).mean(), hidden.max(0)
        for a, b in zip(found, expected, strict=True):
            assert a.backend == "cpu"
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5)
    lines = weft.explain(jitted).splitlines()
    assert len(lines) == 2
    assert re.fullmatch(r"  for B up to 32 in .* s \(20 calls\): first call with B = 1", lines[1])


def test_the_sizes_that_share_a_program_can_be_chosen() -> None:
    shapes = weft.ShapeSet({"B": (2, 8)})
    f = weft.jit(lambda x: weft.cumulative_sum(x), dynamic={"x": {0: "B"}}, shapes=shapes)
    for count in (1, 2, 3, 8, 5, 9):
        x = np.arange(count)
        np.testing.assert_array_equal(f(x).numpy(), x.cumsum())
    (version,) = f.versions.values()
    labels = {cluster.label for cluster in version.compiled.clusters.clusters.values()}
    assert labels == {"B up to 2", "B up to 8", "B = 9"}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_is_rejected_is_told_in_real_sizes(backend: str) -> None:
    f = weft.jit(lambda x: x[3], dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"B": 8}))
    np.testing.assert_array_equal(f(weft.asarray(np.arange(5)).to(backend)).numpy(), 3)
    with pytest.raises(SpecViolation, match=r"\[take\] .*outside \[0, 2\)") as caught:
        f(weft.asarray(np.arange(2)).to(backend))
    assert caught.value.code == "GatherIndexOutOfBounds"


@pytest.mark.parametrize("key", [0, -1, slice(1, 3), slice(None, 2)], ids=str)
def test_the_gradient_of_a_window_serves_every_batch_size(key: Any) -> None:
    def f(x: Any) -> Any:
        return weft.sum(x[:, key] ** 2)

    g = weft.jit(weft.grad(f), dynamic={"x": {0: "B"}})
    for rows in (3, 4, 7):
        x = np.random.default_rng(rows).standard_normal((rows, 5)).astype(np.float32)
        expected = np.zeros_like(x)
        expected[:, key] = 2 * x[:, key]
        np.testing.assert_array_equal(g(x).numpy(), expected)
    assert "B is exact" not in weft.explain(g)
    assert "scatter" not in str(g.program(np.ones((2, 5), np.float32))).lower()


def test_rows_added_at_places_that_are_data_serve_every_width() -> None:
    def f(x: Any, places: Any) -> Any:
        return weft.sum(x[places] ** 2)

    g = weft.jit(weft.grad(f), dynamic={"x": {1: "D"}})
    places = np.array([3, 0, 3])
    for width in (2, 5):
        x = np.random.default_rng(width).standard_normal((4, width)).astype(np.float32)
        expected = np.zeros_like(x)
        np.add.at(expected, places, 2 * x[places])
        np.testing.assert_allclose(g(x, places).numpy(), expected, rtol=1e-6)
    assert "D is exact" not in weft.explain(g)


def test_a_size_that_cannot_be_filled_up_says_why() -> None:
    f = weft.jit(lambda x: weft.sort(x), dynamic={0: {0: "B"}})
    for count in (3, 5):
        x = np.arange(count)[::-1].astype(np.float32)
        np.testing.assert_array_equal(f(weft.asarray(x).to("cpu")).numpy(), np.sort(x))
    assert re.search(r"B = 5 .*B is exact: sort orders \?B \(test_jit_dynamic\.py", weft.explain(f))


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x if x.shape[0] > 3 else -x,
        lambda x: sum(x[i] for i in range(x.shape[0])),
        lambda x: x * (x.shape[0] * 2),
        lambda x: x if x.shape[0] else -x,
        lambda x: weft.reshape(x, (x.shape[0] // 2, 6)),
    ],
)
def test_a_size_that_is_not_known_cannot_be_used(use: Any) -> None:
    line = use.__code__.co_firstlineno
    with pytest.raises(SpecViolation, match=r"the size of the dynamic dim \?B") as caught:
        weft.jit(use, dynamic={0: {0: "B"}})(X)
    assert caught.value.code == "DynamicDimensionMismatch"
    assert f"test_jit_dynamic.py:{line}" in str(caught.value)
    assert "leave this axis out of dynamic=" in caught.value.hint


@pytest.mark.parametrize(
    ("dynamic", "sentence"),
    [
        ({"x": {2: "B"}}, "dynamic names axis 2 of x, which is f32"),
        ({"x": {-3: "B"}}, "dynamic names axis -3 of x, which is f32"),
        ({"x": {0: 5}}, "give a dict from axes to names"),
        ({"x": 0}, "give a dict from axes to names"),
        ("x", "give a dict such as"),
        ({"y": {0: "B"}}, "dynamic names 'y'"),
    ],
)
def test_wrong_dynamic_dims(dynamic: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        weft.jit(_f, dynamic=dynamic)(X)


def test_a_shape_set_names_dims_that_are_dynamic() -> None:
    with pytest.raises(UserError, match="names the dim 'T', but the dynamic dims are B"):
        weft.jit(_f, dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"T": 4}))
    with pytest.raises(UserError, match=r"give a weft\.ShapeSet"):
        weft.jit(_f, shapes={"B": 4})  # type: ignore[arg-type]


def _f(x: Any) -> Any:
    return x


_f.__name__ = "f"


NEED_A_SIZE: dict[str, Callable[[Any], Any]] = {
    "last": lambda x: x[-1],
    "every other": lambda x: x[::2],
    "all but the first": lambda x: x[1:],
    "flip": lambda x: weft.flip(x, axis=0),
    "roll": lambda x: weft.roll(x, 1, axis=0),
    "top_k": lambda x: F.top_k(x, 2, axis=0)[0],
    "repeat": lambda x: weft.repeat(x, 2, axis=0),
    "diff": lambda x: weft.diff(x, axis=0),
    "median": lambda x: weft.median(x, axis=0),
    "arange": lambda x: weft.arange(1, x.shape[0]),
    "arange backwards": lambda x: weft.arange(x.shape[0], 0, -1),
    "gradient": lambda x: weft.grad(lambda y: weft.sum(y[-1] ** 2))(x),
}


@pytest.mark.parametrize("name", NEED_A_SIZE)
def test_a_size_that_is_needed_is_exact(name: str) -> None:
    function = NEED_A_SIZE[name]
    open_ = weft.jit(lambda x: function(x), dynamic={"x": {0: "B"}})
    for rows in (4, 6, 4):
        x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(open_(x).numpy(), function(weft.asarray(x)).numpy())
    assert len(open_.versions) == 2
    assert "; B is exact: [" in weft.explain(open_)
    assert "test_jit_dynamic.py:" in weft.explain(open_)


def test_only_the_size_that_is_needed_is_exact() -> None:
    function = weft.jit(lambda x, y: (x[-1], y * 2.0), dynamic={"x": {0: "B"}, "y": {0: "T"}})
    for rows, length in ((3, 4), (3, 5), (3, 6), (2, 4)):
        last, twice = function(np.ones((rows, 2), np.float32), np.ones(length, np.float32))
        assert (last.shape, twice.shape) == ((2,), (length,))
    assert len(function.versions) == 2
    program = function.program(np.ones((3, 2)), np.ones(4))
    assert [str(kind) for kind in program.main.parameters] == ["f64[3, 2]", "f64[?T]"]


def test_an_array_of_the_other_byte_order_is_an_argument() -> None:
    doubled = weft.jit(lambda x: x + x)
    np.testing.assert_array_equal(doubled(np.arange(3, dtype=">f4")).numpy(), [0.0, 2.0, 4.0])
    np.testing.assert_array_equal((weft.ones(3) + np.arange(3, dtype=">f4")).numpy(), [1, 2, 3])


COUNT_FROM_THE_END: dict[str, Callable[[Any, Any], Any]] = {
    "a constant": lambda x, i: x[np.array([0, -1])],
    "a constant of rank 0": lambda x, i: x[np.array(-1)],
    "an argument": lambda x, i: x[i],
    "one element of it": lambda x, i: x[i[0]],
    "narrow": lambda x, i: x[i.astype(weft.int8)],
    "take": lambda x, i: weft.take(x, i, axis=0),
    "take_along_axis": lambda x, i: weft.take_along_axis(x, i[:, None], axis=0),
    "gradient": lambda x, i: weft.grad(lambda y: weft.sum(y[i] ** 2))(x),
}


@pytest.mark.parametrize("shapes", [None, weft.ShapeSet()])
@pytest.mark.parametrize("name", COUNT_FROM_THE_END)
def test_places_that_are_data_count_from_an_open_end(
    name: str, shapes: weft.ShapeSet | None
) -> None:
    function = COUNT_FROM_THE_END[name]
    open_ = weft.jit(lambda x, i: function(x, i), dynamic={"x": {0: "B"}}, shapes=shapes)
    places = weft.asarray([-1, 0])
    for rows in (3, 5, 40, 1):
        x = weft.asarray(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2))
        np.testing.assert_array_equal(open_(x, places).numpy(), function(x, places).numpy())
    assert len(open_.versions) == 1


@pytest.mark.parametrize("dynamic", [{}, {"x": {0: "B"}}])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("place", [-7, -4, 3, 7])
def test_a_place_out_of_range_is_told_as_it_was_given(
    place: int, backend: str, dynamic: Any
) -> None:
    pick = weft.jit(lambda x, i: weft.take(x, i, axis=0), dynamic=dynamic)
    x, i = weft.ones((3, 2)).to(backend), weft.asarray([0, place]).to(backend)
    with pytest.raises(SpecViolation, match=rf"index {place} at .*1.* outside \[0, 3\)"):
        pick(x, i).numpy()


@pytest.mark.parametrize("shapes", [None, weft.ShapeSet()])
def test_arange_counts_an_open_dim(shapes: weft.ShapeSet | None) -> None:
    def function(x: Any) -> Any:
        (size, _) = x.shape
        floats = weft.arange(0.0, size), weft.arange(size, dtype=weft.float64)
        return weft.arange(size), weft.arange(0, size) + x[:, 0], *floats

    open_ = weft.jit(function, dynamic={"x": {0: "B"}}, shapes=shapes)
    for rows in (3, 40, 1):
        x = weft.ones((rows, 2))
        for found, expected in zip(open_(x), function(x), strict=True):
            assert found.dtype is expected.dtype
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert len(open_.versions) == 1
