"""Every function, cast, reduction, movement, contraction and random number, in every dtype, on a
GPU: a case of each cell of the conformance kit's matrix, by processes that share the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context

import pytest

from weft.driver.backends import get_backend
from weft.runtime.cuda.driver import compute_capability
from weft.testing.conformance import Case, all_cases
from weft.testing.conformance.run import run_case

ELSEWHERE = {
    "control",
    "linear_algebra",
    "ordering",
    "programs",
    "rejections",
    "scheduling",
    "tuples",
}
"""Families that are not about kernels that go through elements one by one."""
FAMILIES = sorted({case.family for case in all_cases()} - ELSEWHERE)
PREFERRED = ("special", "every", "odd")
"""The kinds of case that ask most of a kernel."""

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these kernels are for an SM90 GPU"
)


def chosen(cases: Iterable[Case]) -> dict[str, list[str]]:
    """The ids of one case of each cell, by family."""
    cells: dict[tuple[str, str, object, str], list[str]] = {}
    for case in cases:
        kind = (*case.id.split("/"), "")[2]
        # Casts are a matrix of their own: from every dtype to every other one.
        target = kind if kind.startswith("to=") else ""
        cells.setdefault((case.family, case.row, case.dtype, target), []).append(case.id)
    found: dict[str, list[str]] = {}
    for (family, *_), ids in cells.items():
        if family in FAMILIES:
            found.setdefault(family, []).append(min(ids, key=_rank))
    return found


def _rank(case_id: str) -> int:
    kinds = case_id.split("/")[2:]
    return next((n for n, kind in enumerate(PREFERRED) if kind in kinds), len(PREFERRED))


@cache
def _by_id() -> dict[str, Case]:
    return {case.id: case for case in all_cases()}


def fault_of(case_id: str) -> str | None:
    """What is wrong with a case."""
    result = run_case(_by_id()[case_id], get_backend("cuda"))
    return None if result.outcome == "pass" else f"{case_id}: {result.outcome} {result.reason}"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as made:
        yield made


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cell_passes(family: str, pool: ProcessPoolExecutor) -> None:
    found = pool.map(fault_of, chosen(all_cases())[family], chunksize=2)
    wrong = [fault for fault in found if fault is not None]
    assert wrong == [], f"{len(wrong)} cases"
