"""What is left to the host where a program runs on a GPU: the page lists all of it. A kernel never
is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import weft
from tests.support.gpu_programs import through_stages
from tests.support.host_steps import PROGRAMS, programs_of
from weft.driver.artifact.kernels import is_copy
from weft.ptir import Program
from weft.ptir.op import Op
from weft.region.ir import Kernel
from weft.testing.conformance import Case, all_cases
from weft.testing.conformance.table import one_of_each

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "gpu.md").read_text().split("## What runs on the host")[1].split("\n## ")[0]
TABLE, COMPLEX = PAGE.split("For complex operands")
LISTED = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?`) \|", TABLE, re.MULTILINE))))
PAIRS = set(re.findall(r"`(\w+)`", COMPLEX))
SAMPLE = 24
"""Of so many cells of the kit's matrix, the fast test takes one."""


def host_ops(program: Program, target: str) -> Iterator[str]:
    """The ops of a program, and the kernels with the reason, that no launch carries out."""
    compilation = through_stages(program, target)
    code = compilation["gpu"]
    yield from (f"{name}: {why}" for name, why in code.hosted.items())
    for kernel in compilation["region"].kernels:
        if kernel.name not in {*code.launches, *code.hosted} and not _is_made_of_steps(kernel):
            op = kernel.opaque.op if kernel.opaque is not None else None
            yield op.mnemonic if isinstance(op, Op) else repr(op)


def _is_made_of_steps(kernel: Kernel) -> bool:
    """Whether it is a copy of bytes, or a branch or a loop, whose bodies have kernels of their
    own."""
    op = kernel.opaque.op if kernel.opaque is not None else None
    return is_copy(kernel) or (isinstance(op, Op) and bool(op.regions))


def found_in(cases: Sequence[Case]) -> dict[str, set[str]]:
    """The ops left to the host, by the kind of dtype."""
    found: dict[str, set[str]] = defaultdict(set)
    for dtype, program in programs_of(iter(cases)):
        found["complex" if dtype[0] == "c" else "real"] |= set(host_ops(program, "sm90"))
    return found


def test_a_sample_of_the_kit_is_on_the_page() -> None:
    found = found_in(list(one_of_each(all_cases()))[::SAMPLE])
    assert found["real"] <= LISTED
    assert found["complex"] <= LISTED | PAIRS


@pytest.mark.slow
def test_the_page_lists_what_is_left_to_the_host() -> None:
    found = found_in(list(one_of_each(all_cases())))
    assert found["real"] == LISTED
    assert found["complex"] - LISTED == PAIRS


@pytest.mark.parametrize(
    "name",
    [
        "GPT, decode",
        "convolutions, training",
        pytest.param("GPT, training", marks=pytest.mark.slow),
        pytest.param("residual net, training", marks=pytest.mark.slow),
    ],
)
def test_models_have_no_host_step(name: str) -> None:
    assert list(host_ops(PROGRAMS[name](), "sm90")) == []


def test_a_kernel_that_the_host_has_no_memory_for_is_refused() -> None:
    """A GPU counts points in 32 bits; the host would have held all of them, 70 TB."""
    size = 1 << 22
    program = weft.jit(lambda x: weft.sin(x[:, None] * x).sum()).program(weft.zeros((size,)))
    with pytest.raises(weft.Unimplemented, match="no memory for 17,592,186,044,416 elements"):
        weft.compile(program, "sm90")
