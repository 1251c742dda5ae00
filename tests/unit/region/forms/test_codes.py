"""Weights of few bits in the kernels of programs: who is who, which integers, which bits."""

from __future__ import annotations

import pytest

from tests.support.gpu_codes import CASES, Case
from tests.support.gpu_programs import through_stages
from weft.region.forms.codes import Codes, find_codes
from weft.region.forms.small_integers import Field, find_field, find_scaled, integer_range
from weft.region.ir import Kernel


def found(case: Case) -> tuple[Kernel, Codes]:
    region = through_stages(case.program(), "sm90")["region"]
    (kernel,) = region.kernels
    codes = find_codes(kernel, region.tensors)
    assert codes is not None
    return kernel, codes


def test_a_run_is_sixteen_bytes_of_codes() -> None:
    kernel, codes = found(CASES["bytes"])
    assert (codes.count, codes.inner, codes.width) == (16, (), 8)
    assert codes.places == tuple(range(16))
    assert codes.runs(kernel.sizes) == 16


def test_halves_of_a_byte_are_points_of_an_inner_axis() -> None:
    kernel, codes = found(CASES["halves of bytes"])
    (inner,) = codes.inner
    assert kernel.sizes[inner] == 2
    assert codes.places == (*range(16), *range(32, 48))
    assert [place for place, _ in codes.points] == [(0,)] * 16 + [(1,)] * 16


def test_neighbours_that_share_a_code_follow_one_another_in_x() -> None:
    _, codes = found(CASES["words"])
    assert codes.count * 8 == len(codes.places)
    assert codes.places == tuple(range(32))
    assert [place for place, _ in codes.points[:8]] == [(n,) for n in range(8)]


def test_short_groups_have_short_runs() -> None:
    _, codes = found(Case(weights="halves of bytes", group=16))
    assert (codes.count, codes.width) == (8, 8)
    assert codes.places == tuple(range(16))


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("bytes", (-128, 127, 0)),
        ("halves of bytes", (0, 15, -8)),
        ("pairs", (0, 15, -8)),
        ("words", (0, 15, -8)),
    ],
)
def test_weights_are_integers_times_a_factor(name: str, facts: tuple[int, int, int]) -> None:
    kernel, codes = found(CASES[name])
    scaled = find_scaled(kernel, codes.weight)
    assert scaled is not None
    assert (scaled.low, scaled.high, scaled.offset) == facts
    assert integer_range(kernel, scaled.integer) == facts[:2]


@pytest.mark.parametrize("name", ["lows", "bytes in groups", "floats"])
def test_others_are_rounded_more_than_once_or_are_no_integers(name: str) -> None:
    kernel, codes = found(CASES[name])
    assert find_scaled(kernel, codes.weight) is None


def test_halves_are_bits_of_codes() -> None:
    kernel, codes = found(CASES["halves of bytes"])
    scaled = find_scaled(kernel, codes.weight)
    assert scaled is not None
    (inner,) = codes.inner
    low, high = (find_field(kernel, scaled.integer, {inner: place}) for place in (0, 1))
    assert isinstance(low, Field)
    assert isinstance(high, Field)
    assert ((low.shift, low.mask), (high.shift, high.mask)) == ((0, 15), (4, 15))
    assert find_field(kernel, scaled.integer, {}) is None
