"""Shape sets: which sizes share a compiled program, and what they are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.programs.shape_sets import Clusters, exact_shapes
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import Builder, Program

CAPACITIES: list[tuple[Any, list[tuple[int, int]]]] = [
    (None, [(0, 0), (1, 32), (32, 32), (33, 64), (64, 64), (1000, 1024)]),
    ("doubling", [(5, 32), (100, 128)]),
    ("exact", [(1, 1), (7, 7)]),
    (20, [(0, 0), (1, 20), (20, 20), (21, 21)]),
    ((32, 8), [(1, 8), (8, 8), (9, 32), (40, 40)]),
]


@pytest.mark.parametrize(("said", "sizes"), CAPACITIES)
def test_sizes_are_filled_up(said: Any, sizes: list[tuple[int, int]]) -> None:
    shapes = weft.ShapeSet() if said is None else weft.ShapeSet({"?B": said})
    assert [shapes.capacity("B", size) for size, _ in sizes] == [filled for _, filled in sizes]


@pytest.mark.parametrize(
    ("dims", "sentence"),
    [
        ({"B": 0}, "the sizes of B are"),
        ({"B": []}, "the sizes of B are"),
        ({"B": "often"}, "give 'exact', 'doubling'"),
        ({"B": [4, True]}, "whole number"),
        ({3: 4}, "names dims by strings"),
        (7, "made of a dict"),
    ],
)
def test_wrong_sets_are_told(dims: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        weft.ShapeSet(dims)


def test_a_set_keeps_at_least_one_program() -> None:
    with pytest.raises(UserError, match="at least one program"):
        weft.ShapeSet(most=0)


def rows() -> Program:
    """The sum of every column, of rows that nobody has counted yet."""
    b = Builder()
    x = b.param("si64", ["?B", 2])
    return b.build(b.reduce_sum(x, axes=[0], keepdims=False), b.mul(x, x))


def run(clusters: Clusters[Program], x: Any) -> list[Any]:
    """The program of the cluster, carried out by the reference."""
    fit = clusters.fit([x.shape])
    found = weft.run(fit.cluster.compiled, [*fit.filled([x]), *fit.sizes])
    return fit.cut(found)


def test_one_program_for_a_cluster_and_the_rows_are_counted() -> None:
    compiled: list[Program] = []

    def compile_(program: Program) -> Program:
        compiled.append(program)
        return program

    clusters: Clusters[Program] = Clusters(rows(), compile_, weft.ShapeSet({"B": (4, 8)}))
    for count in (3, 4, 1, 7, 2, 8, 0):
        x = np.arange(count * 2).reshape(count, 2) + 1
        total, squares = run(clusters, x)
        np.testing.assert_array_equal(total, x.sum(0))
        np.testing.assert_array_equal(squares, x * x)
    assert len(compiled) == 3
    lines = clusters.explain()
    assert [line.split(" in ")[0] for line in lines] == [
        "for B up to 4",
        "for B up to 8",
        "for B = 0",
    ]
    assert "(4 calls): first call with B = 3" in lines[0]


def test_the_programs_used_last_are_kept() -> None:
    clusters: Clusters[Program] = Clusters(rows(), lambda program: program, exact_shapes(most=2))
    for count in (1, 2, 1, 3):
        clusters.fit([(count, 2)])
    assert [cluster.sizes["B"] for cluster in clusters.clusters.values()] == [1, 3]
    assert clusters.explain()[-1] == "for 1 more that are not kept (most=2)"
    clusters.fit([(2, 2)])
    assert [cluster.sizes["B"] for cluster in clusters.clusters.values()] == [3, 2]


def test_what_cannot_be_filled_up_is_exact_with_a_reason() -> None:
    b = Builder()
    x = b.param("f32", ["?B", "?T"])
    program = b.build(b.sort(x, axis=0, descending=False))
    clusters: Clusters[Program] = Clusters(program, lambda p: p, weft.ShapeSet())
    x3 = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(clusters, x3)[0], np.sort(x3, axis=0))
    (line,) = clusters.explain()
    assert line.startswith("for B = 3, T up to 32 in ")
    assert "B is exact: sort orders ?B" in line


def test_sizes_that_a_program_rejects_are_rejected_although_they_are_filled_up() -> None:
    b = Builder()
    x = b.param("f32", ["?B"])
    program = b.build(b.slice(x, starts=[2], sizes=[4]))
    clusters: Clusters[Program] = Clusters(program, lambda p: p, weft.ShapeSet())
    np.testing.assert_array_equal(
        run(clusters, np.arange(6, dtype=np.float32))[0], np.arange(2, 6, dtype=np.float32)
    )
    with pytest.raises(SpecViolation, match="size 4 is more than 5"):
        clusters.fit([(5,)])


def test_sizes_that_must_agree_with_fixed_ones_are_exact() -> None:
    b = Builder()
    x = b.param("f32", ["?B", 2])
    program = b.build(b.reshape(x, ["?d", 4]))
    clusters: Clusters[Program] = Clusters(program, lambda p: p, weft.ShapeSet({"B": 7}))
    assert clusters.fit([(6, 2)]).cluster.label == "B = 6"
    assert "filled up" in clusters.explain()[0]
    with pytest.raises(SpecViolation):
        clusters.fit([(5, 2)])


# -- weft.compile ---------------------------------------------------------------------------------


def test_a_compiled_program_shares_programs_between_sizes() -> None:
    executable = weft.compile(rows(), "cpu", shapes=weft.ShapeSet({"B": 20}))
    assert weft.explain(executable).startswith("nothing compiled yet")
    for count in range(1, 21):
        x = np.arange(count * 2).reshape(count, 2) - 7
        total, squares = executable(x)
        np.testing.assert_array_equal(total, x.sum(0))
        np.testing.assert_array_equal(squares, x * x)
    (line,) = weft.explain(executable).splitlines()
    assert line.startswith("compiled for B up to 20 in ")
    assert "(20 calls): first call with B = 1" in line
    assert "region" in executable.stages
    assert executable.report()


def test_state_and_unknown_dims_are_refused() -> None:
    b = Builder()
    x, y = b.param("f32", ["?B"]), b.param("f32", [4])
    program = b.build(b.exp(x), b.exp(y))
    with pytest.raises(UserError, match="cannot have state"):
        weft.compile(program, state=[1], shapes=weft.ShapeSet())
    with pytest.raises(UserError, match="names the dim 'T', but the dynamic dims are B"):
        weft.compile(program, shapes=weft.ShapeSet({"T": 4}))


def test_an_executable_keeps_a_bounded_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.driver.compile.MOST_CLUSTERS", 2)
    executable = weft.compile(rows(), "cpu")
    for count in (1, 2, 3, 1):
        x = np.ones((count, 2), np.int64)
        np.testing.assert_array_equal(executable(x)[0], [count, count])
    assert [cluster.sizes["B"] for cluster in executable.clusters.values()] == [3, 1]
