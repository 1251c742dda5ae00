"""Targets: the data, what the host is told from, and every formula of the cost model by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.foundation.dtypes import BF16, F32, F64, SI8
from weft.foundation.errors import UserError
from weft.target import cpu, roofline
from weft.target.known import NAMES, target_named
from weft.target.roofline import Usage, Work
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90
from weft.target.target import Kind

X86 = frozenset(["fpu", "sse2", "avx", "avx2", "fma", "f16c"])


# -- machines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_its_name(name: str) -> None:
    target = target_named(name)
    assert (target.machine or target.name) == name
    assert target.matrix_rate(F32) > 0
    assert target.rates.bandwidth > 0
    assert target.row_bytes > 0


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(UserError, match="there is no target 'sm70'; the targets are cpu, sm80"):
        target_named("sm70")


def test_fingerprints_tell_targets_apart() -> None:
    assert len({target_named(name).fingerprint for name in NAMES}) == len(NAMES)
    larger = cpu.describe("x86_64", X86, cpu.available_cores() + 1, ())
    assert larger.fingerprint != cpu.host().fingerprint
    same = cpu.describe("x86_64", X86, 2, ()), cpu.describe("x86_64", X86, 2, ())
    assert same[0].fingerprint == same[1].fingerprint


@pytest.mark.parametrize(
    ("machine", "flags", "bits"),
    [
        ("aarch64", {"asimd"}, 128),
        ("arm64", set(), 128),
        ("x86_64", {"avx", "avx2", "fma"}, 256),
        ("x86_64", {"avx", "avx2"}, 128),
        ("x86_64", {"avx2", "fma", "avx512f"}, 512),
        ("riscv64", set(), 128),
    ],
)
def test_vector_widths(machine: str, flags: set[str], bits: int) -> None:
    assert cpu.vector_bits(machine, frozenset(flags)) == bits


def test_lanes() -> None:
    target = cpu.describe("x86_64", X86, 4, ())
    assert (target.lanes(F32), target.lanes(F64), target.lanes(SI8)) == (8, 4, 32)
    assert target.kind is Kind.CPU
    assert target.features == X86 - {"fpu", "sse2"}


def test_flags_of_both_kinds_of_cpuinfo() -> None:
    assert cpu.read_flags("processor : 0\nflags\t\t: fpu avx2\nflags : x") == {"fpu", "avx2"}
    assert cpu.read_flags("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert cpu.read_flags("") == frozenset()


def test_caches_from_the_system_tree(tmp_path: Path) -> None:
    entries = [("Data", "1", "32K"), ("Instruction", "1", "64K"), ("Unified", "2", "1M")]
    for number, (kind, level, size) in enumerate(entries):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(value + "\n")
    assert cpu.read_caches(tmp_path) == (32 << 10, 1 << 20)
    assert cpu.read_caches(tmp_path / "nowhere") == ()


def test_at_least_one_core() -> None:
    assert cpu.available_cores() >= 1
    assert cpu.host() is cpu.host()


# -- the formulas, with numbers worked out by hand ------------------------------------------------


def test_shared_memory_of_the_documents_tile() -> None:
    """(128*64 + 64*64) * 2 bytes * 2 stages."""
    assert roofline.shared_bytes_per_block((128, 64, 64), 2, 2) == 49_152
    assert roofline.shared_bytes_per_block((128, 256, 64), 2, 4, 32_768) == 229_376


def test_registers_of_the_documents_warp_tile() -> None:
    """64*64 accumulators over 32 threads, and 40 beside them."""
    accumulators = roofline.accumulator_registers((64, 64), 32)
    assert accumulators == 128
    assert roofline.registers_per_thread(accumulators) == 168
    assert roofline.registers_per_thread(accumulators, epilogue=8, base=24) == 160
    assert roofline.accumulator_registers((64, 256), 128) == 128


def test_blocks_per_unit_is_the_tightest_limit() -> None:
    limits = SM80.limits
    # 167,936 / 49,152 = 3; 65,536 / (168 * 64) = 6; 32 blocks.
    assert roofline.blocks_per_unit(limits, 49_152, 168, 64) == 3
    # 65,536 / (255 * 256) = 1.
    assert roofline.blocks_per_unit(limits, 1024, 255, 256) == 1
    assert roofline.blocks_per_unit(limits, 0, 16, 32) == 32
    assert roofline.blocks_per_unit(limits, 200_000, 32, 128) == 0


def test_occupancy_and_efficiency() -> None:
    assert roofline.occupancy(SM80.limits, 3, 2) == pytest.approx(6 / 64)
    assert roofline.occupancy(SM80.limits, 32, 8) == 1.0
    assert roofline.pipeline_efficiency(2) == 0.5
    assert roofline.pipeline_efficiency(4) == 0.75


def test_time_is_the_slower_of_computing_and_moving() -> None:
    work = Work(matrix_seconds=2e-6, vector_seconds=1e-6, bytes=4_300_000)
    assert roofline.time_estimate(SM90, work) == pytest.approx(3e-6)
    # 4.3 MB at 4.3 TB/s is a microsecond; at half occupancy two, and computing six.
    usage = Usage(occupancy=0.5, efficiency=1.0)
    assert roofline.time_estimate(SM90, work, usage) == pytest.approx(6e-6)
    moving = Work(bytes=43_000_000)
    assert roofline.time_estimate(SM90, moving, usage) == pytest.approx(20e-6)


def test_a_cpu_does_not_hide_all_of_the_shorter_part() -> None:
    target = cpu.describe("aarch64", frozenset(), 2, ())
    moved = round(4e-3 * target.rates.bandwidth)
    work = Work(vector_seconds=2e-3, bytes=moved)
    assert roofline.time_estimate(target, work) == pytest.approx(4e-3 + 0.25 * 2e-3)
    assert roofline.together(target, (1e-3, 4e-3, 3e-3)) == pytest.approx(5e-3)


def test_work_adds_up() -> None:
    assert Work(1.0, 2.0, 3) + Work(0.5, 0.5, 1) == Work(1.5, 2.5, 4)


def test_waves() -> None:
    """512 tiles on 132 units: four waves, 97 % of their slots filled."""
    assert roofline.waves(512, 132) == 4
    assert roofline.quantisation(512, 132) == pytest.approx(512 / 528)
    assert roofline.waves(0, 132) == 0
    assert roofline.quantisation(0, 132) == 1.0


def test_matrix_units_are_what_makes_bf16_fast() -> None:
    assert SM90.matrix_rate(BF16) > 10 * SM90.matrix_rate(F32)
    assert SM90.has("wgmma")
    assert not SM80.has("wgmma")
