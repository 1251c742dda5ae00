"""Kernels wait for those before them ahead of the first access to memory: in the dialect, in the
interpreter's eyes, and in the machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gemm_kernels import Contraction
from tests.support.cases import one_in
from tests.support.gpu_contractions import COOPERATIVE, sm90_kernel
from tests.support.gpu_programs import CASES, compiled, through_stages
from tests.support.gpu_rows import dialect_kernel, error_of
from tests.support.kernels import elementwise
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.dependent_launch import Neighbours, chained, waves
from weft.codegen.gpu.interp import Hazard
from weft.codegen.gpu.ir import walk
from weft.codegen.gpu.ir.scalar import LANE
from weft.codegen.gpu.ir.values import LoadVector
from weft.codegen.gpu.verify import findings
from weft.driver.code.gpu_kernels import CudaCode, compile_sources
from weft.plan.ir import Header, MapPlan
from weft.ptir import Builder, Program
from weft.region.ir import Module
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90
from weft.testing.conformance.table import select

WAIT = ir.AwaitPrevious()
MEMORY = (
    "LD",
    "LDG",
    "ST",
    "STG",
    "LDGSTS",
    "UTMALDG",
    "UTMASTG",
    "UBLKCP",
    "ATOMG",
    "RED",
    "REDG",
)


def doubled() -> tuple[Module, ir.Kernel]:
    module = elementwise(6, 10)
    return module, dialect_kernel(module, MapPlan(Header("sm90", ""), 2, 1, 32, 64))


def test_places_are_found_before_the_wait_and_elements_read_after_it() -> None:
    module, kernel = doubled()
    body = chained(kernel, SM90, settled={0, 1}).body
    at = body.index(WAIT)
    assert body[0] == ir.AdmitNext()
    assert [type(found) for found in body[1:at]] == [ir.Let] * (at - 1)
    assert at > 1
    assert (*body[1:at], *body[at + 1 :]) == kernel.body
    assert error_of(module, chained(kernel, SM90)) == 0


def test_what_kernels_ahead_may_write_is_not_constant() -> None:
    _, kernel = doubled()
    for settled in (set(), {0}, {0, 1}):
        body = chained(kernel, SM90, settled).body
        loads = [found for found in walk(body) if isinstance(found, LoadVector)]
        assert {load.buffer for load in loads if load.constant} == settled
        assert {load.buffer for load in loads} == {0, 1}


def test_a_contraction_makes_its_barriers_before_it_waits() -> None:
    kernel = chained(sm90_kernel(Contraction(136, 72, 72), COOPERATIVE), SM90)
    kinds = [type(found) for found in kernel.body]
    assert kinds == [ir.AdmitNext, ir.If, ir.SyncThreads, ir.AwaitPrevious, ir.Roles]
    assert kernel.waits


def test_weights_are_on_their_way_before_the_wait() -> None:
    """Of two products with weights of few bits: codes and scales are nobody's results."""
    b = Builder("weights")
    x = b.param("bf16", [1, 512])
    sides = [(b.param("si8", [512, 512]), b.param("bf16", [512])) for _ in range(2)]
    for codes, scales in sides:
        w = b.emit("dequantize", codes, scales, axis=0)
        x = b.dot_general(x, w, contract=([1], [1]), accum_dtype="f32", out_dtype="bf16")
    _, second = through_stages(b.build(x), "sm90")["gpu"].kernels.values()
    ahead = [*walk(second.body[: second.body.index(WAIT)])]
    assert {found.buffer for found in ahead if isinstance(found, ir.CpAsync)} == {1}
    assert not any(isinstance(found, LoadVector) for found in ahead)
    unsettled = replace(second, body=tuple(f for f in second.body if f != WAIT))
    first = next(iter(chained(unsettled, SM90).body[1:]))
    assert first != WAIT
    wait = [type(found) for found in chained(unsettled, SM90).body]
    assert wait.index(ir.AwaitPrevious) < wait.index(ir.CommitGroup)


@pytest.mark.parametrize(("blocks", "admits"), [(132 * 32, True), (132 * 32 + 1, False)])
def test_the_next_kernel_is_admitted_by_blocks_that_all_run_at_once(
    blocks: int, admits: bool
) -> None:
    """A unit has room for 32 blocks of 32 threads."""
    _, kernel = doubled()
    body = chained(replace(kernel, grid=blocks), SM90).body
    assert (ir.AdmitNext() in body) is admits
    assert WAIT in body


@pytest.mark.parametrize(("blocks", "waits"), [(2 * 132 * 32, True), (2 * 132 * 32 + 1, False)])
def test_blocks_of_many_waves_do_not_wait_one_by_one(blocks: int, waits: bool) -> None:
    _, kernel = doubled()
    kernel = replace(kernel, grid=blocks)
    made = chained(kernel, SM90)
    assert made.waits is waits
    assert ir.AdmitNext() not in made.body
    assert waits or made == kernel


def test_shared_memory_counts_where_blocks_are_counted() -> None:
    """A unit has 228 KB, room for two blocks of 100."""
    _, kernel = doubled()
    tile = ir.SharedTile("held", 0, 100 << 10)
    filled = [replace(kernel, grid=blocks, tiles=(tile,)) for blocks in (264, 265, 528, 529)]
    assert {found.shared_bytes for found in filled} == {100 << 10}
    assert [waves(found, SM90) for found in filled] == [1, 2, 2, 3]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_kernel_waits_and_admits_where_it_has_neighbours(before: bool, after: bool) -> None:
    _, kernel = doubled()
    made = chained(kernel, SM90, (), Neighbours(before, after))
    assert made.waits is before
    assert (ir.AdmitNext() in made.body) is after
    constants = [s.constant for s in walk(made.body) if isinstance(s, LoadVector)]
    assert set(constants) == {not before}
    assert before or after or made == kernel


def wide_after_narrow() -> Program:
    """A sum over a million rows, in parts, and one over each of them."""
    b = Builder()
    x = b.param("bf16", [1 << 20, 64])
    total = b.broadcast_to(b.reduce_sum(x, [0]), x.shape)
    return b.build(b.reduce_sum(x * total, [1]))


def test_programs_decide_who_waits() -> None:
    made = through_stages(wide_after_narrow(), "sm90")["gpu"]
    kernels = [made.kernels[launch.symbol] for launch in made.launches.values()]
    assert len(kernels) > 2
    assert [kernel.waits for kernel in kernels] == [
        n > 0 and waves(kernel, SM90) <= 2 for n, kernel in enumerate(kernels)
    ]
    assert waves(kernels[-1], SM90) > 30
    assert any(kernel.waits for kernel in kernels)


def test_a_kernel_that_comes_first_once_and_later_again_waits() -> None:
    b = Builder()
    x = b.param("f32", [32, 32])
    y = b.transpose(b.exp(x), [1, 0])
    found = through_stages(b.build(b.sort(b.sort(y, axis=1), axis=1), b.sort(x, axis=1)), "sm90")
    made = found["gpu"]
    first, *others = [launch.symbol for launch in made.launches.values()]
    assert {symbol for symbol, kernel in made.kernels.items() if kernel.waits} == set(others)
    assert made.kernels[first].waits is (first in others)


def test_machines_without_chains_have_none() -> None:
    _, kernel = doubled()
    assert chained(kernel, SM80) is kernel
    assert not kernel.waits


def moved(kernel: ir.Kernel, by: int) -> ir.Kernel:
    """The kernel with its wait moved down."""
    body = [found for found in kernel.body if found != WAIT]
    body.insert(kernel.body.index(WAIT) + by, WAIT)
    return replace(kernel, body=tuple(body))


def in_a_branch(kernel: ir.Kernel) -> ir.Kernel:
    """The kernel with its wait done by half of each warp."""
    half = ir.If(LANE < 16, (WAIT,))
    body = tuple(half if found == WAIT else found for found in kernel.body)
    return replace(kernel, body=(*body, WAIT))


def test_memory_that_is_touched_too_early_is_a_hazard() -> None:
    module, kernel = doubled()
    late = moved(chained(kernel, SM90), 1)
    with pytest.raises(Hazard, match="before the kernels ahead of this one have ended"):
        error_of(module, late)
    assert [found.code for found in findings(late, SM90)] == ["KernelFrame"]


def test_every_thread_waits() -> None:
    module, kernel = doubled()
    broken = in_a_branch(chained(kernel, SM90))
    with pytest.raises(Hazard, match="part of a warp"):
        error_of(module, broken)
    assert "outside of branches" in next(iter(findings(broken, SM90))).why


def test_a_machine_without_chains_refuses_them() -> None:
    _, kernel = doubled()
    found = list(findings(chained(kernel, SM90), SM80))
    assert {finding.why for finding in found} == {"sm80 has no chains"}


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("case", one_in(2, ["attention/f32/plain", "byteir.non_zero/si8/line"]))
def test_intermediates_are_read_after_the_wait(case: str) -> None:
    """These once read what the kernel ahead had not written yet."""
    (found,) = select(case)
    made = through_stages(found.trial().program(), "sm90")
    cubins = compile_sources(made["cu"], "sm_90a").cubins
    waiting = [cubins[name] for name, kernel in made["gpu"].kernels.items() if kernel.waits]
    assert waiting
    for cubin in waiting:
        roots = [instruction.root for instruction in sass.disassemble(cubin.code)]
        assert not set(MEMORY) & set(roots[: roots.index("ACQBULK")])


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
def test_machine_code_of_kernels_that_do_not_wait_has_nothing_of_it() -> None:
    made = through_stages(wide_after_narrow(), "sm90")
    *_, last = made["gpu"].launches.values()
    source = CudaCode({last.symbol: made["cu"].sources[last.symbol]})
    (cubin,) = compile_sources(source, "sm_90a").cubins.values()
    roots = {instruction.root for instruction in sass.disassemble(cubin.code)}
    assert not roots & {"ACQBULK", "PREEXIT"}
    assert roots & set(MEMORY)


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize(
    ("name", "dtype"),
    one_in(12, [(n, d) for n, d, target in CASES if target == "sm90"], unpack=True),
)
def test_the_compiler_moves_no_access_ahead_of_the_wait(name: str, dtype: str) -> None:
    """Loads of data that nobody writes are free to move, as far as the language goes."""
    made = compiled(name, dtype, "sm90")
    for symbol, cubin in compile_sources(made["cu"], "sm_90a").cubins.items():
        kernel = made["gpu"].kernels[symbol]
        roots = [instruction.root for instruction in sass.disassemble(cubin.code)]
        assert ("PREEXIT" in roots) is (ir.AdmitNext() in kernel.body)
        assert ("ACQBULK" in roots) is kernel.waits
        wait = roots.index("ACQBULK") if kernel.waits else 0
        assert not set(MEMORY) & set(roots[:wait])
        assert set(MEMORY) & set(roots[wait:])
