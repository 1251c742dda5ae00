"""Which convolutions on a CPU copy their image once, and which pack every window."""

from __future__ import annotations

import pytest

from tests.support.images import Conv
from tests.support.lowered import lowered
from weft.plan.from_region import plan_module
from weft.plan.images import IMAGE
from weft.plan.ir import MmaPlan
from weft.target.cpu import describe
from weft.target.target import Target
from weft.tiny.from_ptir import lower_program

CACHES = (1 << 16, 1 << 20)
ARM = describe("aarch64", frozenset({"asimd"}), 2, CACHES)
AVX2 = describe("x86_64", frozenset({"avx2", "fma"}), 2, CACHES)


def copies_image(case: Conv, target: Target) -> bool:
    module = lowered(lower_program(case.program())).module
    plans = plan_module(module, target).plans.values()
    (plan,) = [plan for plan in plans if isinstance(plan, MmaPlan)]
    return IMAGE in {cached.where for cached in plan.cache}


@pytest.mark.parametrize(
    ("case", "copied"),
    [
        (Conv(channels=3, results=64, sizes=(112, 112), window=(7, 7), stride=2, pad=3), True),
        (Conv(channels=64, results=64, sizes=(56, 56)), True),
        (Conv(channels=96, results=80, sizes=(27, 27)), True),
        (Conv(channels=64, results=128, sizes=(28, 28)), False),
        (Conv(channels=128, results=128, sizes=(28, 28)), False),
        (Conv(channels=256, results=256, sizes=(14, 14)), True),
        (Conv(channels=512, results=512, sizes=(7, 7)), True),
    ],
    ids=str,
)
def test_narrow_vectors_copy_images_for_few_filters_and_for_large_ones(
    case: Conv, copied: bool
) -> None:
    """Packing a window is little for many filters, and lines that are short are filled up; but
    filters that the second cache does not hold are packed tap by tap, with all of them read for
    each."""
    assert copies_image(case, ARM) is copied
    assert copies_image(case, AVX2)
