"""Plans move on where their machine code spills: by a compiler that says what each test wants, and
once by the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import Cubin, Report, read_log
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.verify import verify
from weft.driver.code import gpu_kernels, gpu_lowering, gpu_reactions
from weft.driver.code.gpu_reactions import Fault, fault_of
from weft.driver.compile import Executable
from weft.driver.tuning import tuned
from weft.driver.tuning.tuned import Tuned
from weft.plan.ir import PlanSet
from weft.ptir import Builder, Program
from weft.ptir.builder import Value
from weft.region.ir import Kernel
from weft.target.known import target_named
from weft.target.target import Target

ELF = b"\x7fELF"
"""How machine code for GPUs begins."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


class Compiler:
    """Says of one source after the other how large its stack is and how much of it is spills, and
    how many remarks there are."""

    def __init__(self, *frames: tuple[int, ...]) -> None:
        self.frames, self.sources = list(frames), list[str]()

    def __call__(self, source: str, arch: str) -> Cubin:
        stack, spilled, *remarks = self.frames[len(self.sources)]
        self.sources.append(source)
        log = (
            f"ptxas info : {stack} bytes stack frame, {spilled} bytes spill stores, "
            "0 bytes spill loads\nptxas info : Used 100 registers\n"
        )
        log += sum(remarks) * "ptxas info : (C7510) wgmma.mma_async is serialized in k\n"
        return Cubin(arch, ELF + source.encode(), log, read_log(log))


def compiler(monkeypatch: pytest.MonkeyPatch, *frames: tuple[int, ...]) -> Compiler:
    made = Compiler(*frames)
    monkeypatch.setattr(gpu_kernels, "compile_cuda", made)
    return made


def product(name: str = "main") -> Program:
    b = Builder(name)
    return b.build(b.exp(b.param("bf16", [2048, 512]) @ b.param("bf16", [512, 2048])))


def compiled(program: Program, **overrides: str) -> Executable:
    return weft.compile(program, target="sm90", overrides=overrides)


def plan_of(executable: Executable) -> dict[str, object]:
    (plan,) = json.loads(executable.stages["plan"])["plans"]
    assert isinstance(plan, dict)
    return plan


def first_plan() -> dict[str, object]:
    (plan,) = json.loads(through_stages(product(), "sm90").text("plan"))["plans"]
    assert isinstance(plan, dict)
    return plan


def ran(executable: Executable) -> str:
    """The source of the one kernel that runs: the compiler here hands it out as machine code."""
    (kernel,) = executable.artifact.kernels
    return bytes(kernel.code).removeprefix(ELF).decode()


def told_of_plans(executable: Executable) -> list[str]:
    """What is said of a product but for its edges."""
    lines = [line for line in executable.report() if line.startswith("matmul0: ")]
    return [line for line in lines if "computed where read" not in line]


def test_a_plan_that_spills_moves_to_the_first_that_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvrtc = compiler(monkeypatch, (8, 16), (8, 8), (0, 0))
    made = compiled(product())
    assert len(nvrtc.sources) == 3
    assert ran(made) == nvrtc.sources[2]
    assert nvrtc.sources[2] in made.stages["cu"]
    assert nvrtc.sources[0] not in made.stages["cu"]
    assert plan_of(made)["tile"] != first_plan()["tile"]
    told = told_of_plans(made)
    assert [line.rpartition(": ")[2] for line in told[1:4]] == [
        "16 bytes of registers are spilled",
        "8 bytes of registers are spilled",
        "nothing is spilled",
    ]
    rows, columns = json.loads(json.dumps(plan_of(made)["tile"]))[:2]
    assert told[4] == f"matmul0: taken: cooperative sm90 tiles of {rows}x{columns}"
    assert len(told) == 5
    # The plan that is shown is carried out as it is when it is given.
    again = compiled(product(), plan=made.stages["plan"])
    assert again.stages["cu"] == made.stages["cu"]


def test_serialised_matrix_instructions_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = compiler(monkeypatch, (0, 0, 2), (0, 0))
    made = compiled(product())
    assert ran(made) == nvrtc.sources[1]
    first, taken = first_plan(), plan_of(made)
    assert (first.pop("in_flight"), taken.pop("in_flight")) == (1, 0)
    assert first == taken
    told = told_of_plans(made)
    assert told[1].endswith(
        ": matrix instructions are serialised, or registers not as asked for (C7510)"
    )
    assert told[3].endswith(", no group in flight")


def test_where_waiting_does_not_help_less_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = compiler(monkeypatch, (0, 0, 1), (0, 0, 1), (0, 0))
    made = compiled(product())
    assert ran(made) == nvrtc.sources[2]
    assert plan_of(made)["in_flight"] == 1
    assert plan_of(made)["tile"] != first_plan()["tile"]


def test_the_next_compilation_goes_to_the_last_plan_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvrtc = compiler(monkeypatch, (8, 16), (8, 8), (0, 0))
    first = compiled(product())
    kept, other = compiled(product()), compiled(product("other"))
    assert list(kept._latest.times) == ["disk"]
    assert "machine code" in other._latest.times
    assert (other._latest.built.compiled, other._latest.built.reused) == (0, 1)
    assert len(nvrtc.sources) == 3
    for executable in (kept, other):
        assert ran(executable) == ran(first)
        assert {s: executable.stages[s] for s in ("plan", "gpu", "cu")} == {
            s: first.stages[s] for s in ("plan", "gpu", "cu")
        }
        notes = [line for line in executable.report() if "spilled" in line]
        assert notes == [line for line in first.report() if "spilled" in line]


def test_where_everything_spills_the_least_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = compiler(monkeypatch, (8, 16), (8, 8), (8, 24), (8, 8))
    made = compiled(product())
    assert len(nvrtc.sources) == 4
    assert ran(made) == nvrtc.sources[1]
    assert any("the best of 4 that were tried" in line for line in made.report())
    compiled(product("other"))
    assert len(nvrtc.sources) == 4


def test_the_first_choice_stays_where_nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = compiler(monkeypatch, (8, 8), (8, 8), (8, 24), (8, 9))
    made = compiled(product())
    assert ran(made) == nvrtc.sources[0]
    assert plan_of(made) == first_plan()
    assert any("by the model of its time" in line for line in made.report())


def test_without_a_cache_nothing_is_compiled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    nvrtc = compiler(monkeypatch, (8, 16), (0, 0))
    made = compiled(product())
    assert ran(made) == nvrtc.sources[1]
    assert made._latest.built.compiled == 2


def test_plans_that_move_go_their_steps_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two plans try next is compiled side by side; a kernel whose plan is good is made,
    checked and printed once."""
    b = Builder()
    x, y, z = (b.param("bf16", shape) for shape in ([2048, 512], [512, 2048], [4096, 512]))
    other = b.param("f32", [3, 5])
    program = b.build(x @ y, z @ y, b.exp(other))
    sizes, checked, printed = list[int](), list[str](), list[str]()
    compile_sources = gpu_kernels.compile_sources

    def compiling(code: gpu_kernels.CudaCode, arch: str) -> gpu_kernels.Cubins:
        sizes.append(len(code.sources))
        return compile_sources(code, arch)

    def nvrtc(source: str, arch: str) -> Cubin:
        spills = len(sizes) == 1 and "wgmma" in source
        return Compiler((8, 16) if spills else (0, 0))(source, arch)

    def checking(kernel: ir.Kernel, target: Target) -> None:
        checked.append(kernel.name)
        verify(kernel, target)

    def printing(kernel: ir.Kernel) -> str:
        printed.append(kernel.name)
        return cuda(kernel)

    monkeypatch.setattr(gpu_kernels, "compile_sources", compiling)
    monkeypatch.setattr(gpu_kernels, "verify", checking)
    monkeypatch.setattr(gpu_kernels, "cuda", printing)
    monkeypatch.setattr(gpu_kernels, "compile_cuda", nvrtc)
    made = compiled(program)
    assert sizes[:2] == [3, 2]
    code = made._latest.compilation["gpu"]
    (small,) = (code.launches[name].symbol for name in code.launches if name.startswith("map"))
    assert checked.count(small) == printed.count(small) == 1
    again = through_stages(program, "sm90", plan=made.stages["plan"])
    assert again.text("cu") == made.stages["cu"]


class OneByOne:
    """Processes that are done with the product's first plan before they begin with the rest."""

    def __init__(self, compiler: Callable[[str], Cubin]) -> None:
        self.compiler = compiler
        self.events: list[str] = []

    def ask(self, sources: Iterable[str], urgency: int | None = None) -> None:
        self.events += ["urgent"] * (urgency is not None and len([*sources]))

    def next_of(self, sources: Sequence[str]) -> tuple[str, Cubin]:
        found = min(sources, key=lambda source: "wgmma" not in source)
        self.events.append("product" if "wgmma" in found else "other")
        return found, self.compiler(found)

    def finish(self) -> int:
        return 0


def test_a_plan_moves_while_other_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And to where it moves after all of them."""
    b = Builder()
    x, y, z = b.param("bf16", [2048, 512]), b.param("bf16", [512, 2048]), b.param("f32", [3, 5])
    program = b.build(x @ y, b.exp(z), b.reduce_sum(b.exp(z), axes=[1]))
    seen: list[str] = []

    def nvrtc(source: str) -> Cubin:
        seen.extend([source] if "wgmma" in source and source not in seen else [])
        spilled = 16 if seen[:1] == [source] else 0
        return Cubin("sm_90a", ELF + source.encode(), "", Report(100, 0, spilled, ()))

    one, others = through_stages(program, "sm90"), through_stages(program, "sm90")
    one.ahead = OneByOne(nvrtc)
    made = gpu_reactions.compiled(one, "sm_90a")
    assert one.ahead.events[:5] == ["product", "urgent", "product", "other", "other"]
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "other"))
    known = {source: nvrtc(source) for source in [*others["cu"].sources.values(), *seen]}
    assert gpu_reactions.compiled(others, "sm_90a", known).cubins == made.cubins
    assert one["plan"] == others["plan"]
    assert one["plan"].notes == others["plan"].notes
    assert one.text("cu") == others.text("cu")


def test_kernels_whose_plans_stay_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x, w = b.param("bf16", [2048, 512]), b.param("bf16", [512, 2048])
    y = b.exp(b.sort(x, axis=1) @ w)
    program = b.build(b.sort(b.softmax(y, axis=1), axis=0))
    products: list[str] = []

    def nvrtc(source: str, arch: str) -> Cubin:
        products.extend([source] if "wgmma" in source else [])
        spilled = 16 if products == [source] else 0
        return Cubin(arch, ELF + source.encode(), "", Report(100, 0, spilled, ()))

    lowered: list[str] = []
    real = gpu_lowering.Lowering.by_template

    def noted(self: gpu_lowering.Lowering, kernel: Kernel, plans: PlanSet, is_given: bool) -> None:
        lowered.append(kernel.name)
        real(self, kernel, plans, is_given)

    monkeypatch.setattr(gpu_kernels, "compile_cuda", nvrtc)
    monkeypatch.setattr(gpu_lowering.Lowering, "by_template", noted)
    c = compiled(program)._latest.compilation
    assert len(products) == 2
    assert {name for name in lowered if lowered.count(name) > 1} == {"matmul2"}
    assert len(set(lowered)) > 1
    whole = gpu_kernels.lower_module(c["region"], c["memory"], c["plan"], c.target)
    assert whole == c["gpu"]
    assert list(whole.kernels) == list(c["gpu"].kernels)
    assert products[1] in c["cu"].sources.values()
    assert products[0] not in c["cu"].sources.values()


def test_sm80_tiles_are_shared_by_more_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(monkeypatch, (8, 16), (0, 0))
    first = through_stages(product(), "sm80")["plan"]
    (plan,) = first.plans.values()
    rows, columns = plan.warp_tile
    made = plan_of(weft.compile(product(), target="sm80"))
    assert made["warp_tile"] == f"{rows}x{columns // 2}"
    assert made["tile"] == list(plan.tile)


def test_tiles_of_single_products_are_shared_by_more_warps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then smaller tiles come; all hold what they compute themselves in the same ring."""
    b = Builder()
    program = b.build(b.param("f32", [4096, 512]) @ b.param("f32", [512, 4096]))
    (first,) = through_stages(program, "sm90")["plan"].plans.values()
    nvrtc = compiler(monkeypatch, (8, 16), (8, 8), (8, 4), (0, 0))
    made = compiled(program)
    assert ran(made) == nvrtc.sources[3]
    told = [line.split(": ")[1] for line in made.report() if line.startswith("matmul0: fma")]
    tile = "x".join(map(str, first.tile[:2]))
    assert [line.split(",")[0] == f"fma tiles of {tile}" for line in told] == [True] * 3 + [False]
    assert len(set(told)) == 4


def test_windows_are_fetched_in_smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of a tile with few rows hold more elements on their way than sums."""
    b = Builder()
    x, w = b.param("f32", [3, 16, 11, 13]), b.param("f32", [16, 16, 3, 3])
    program = b.build(b.emit("weft.conv", x, w, layout="NCHW"))
    (first,) = through_stages(program, "sm90")["plan"].plans.values()
    compiler(monkeypatch, (8, 16), (8, 8), (0, 0))
    made = compiled(program)
    told = [line for line in made.report() if line.startswith("conv0: fma")]
    rows, columns, depth = first.tile
    assert f"tile={[rows, columns, depth // 2]}" in told[1]
    (taken,) = made._latest.compilation["plan"].plans.values()
    assert taken.tile[2] < depth
    assert taken.warp_tile[0] * taken.warp_tile[1] < first.warp_tile[0] * first.warp_tile[1]


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (lambda b, x: b.exp(x), lambda plan: plan.grain / plan.threads),
        (lambda b, x: b.softmax(x, axis=1), lambda plan: plan.vector / plan.threads),
    ],
)
def test_maps_and_rows_hold_less_in_each_thread(
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Builder, Value], Value],
    held: Callable[[Any], float],
) -> None:
    b = Builder()
    program = b.build(make(b, b.param("f32", [1024, 2048])))
    (first,) = through_stages(program, "sm90")["plan"].plans.values()
    compiler(monkeypatch, (8, 16), (0, 0))
    (taken,) = compiled(program)._latest.compilation["plan"].plans.values()
    assert held(taken) < held(first)


@pytest.mark.parametrize("frame", [(0, 0), (40, 0)])
def test_what_does_not_spill_stays(monkeypatch: pytest.MonkeyPatch, frame: tuple[int, int]) -> None:
    """A stack frame alone is an array of the kernel's own, which other plans have too."""
    nvrtc = compiler(monkeypatch, frame)
    made = compiled(product())
    assert len(nvrtc.sources) == 1
    assert plan_of(made) == first_plan()
    assert any("StackFrame" in line for line in made.report()) == (frame[0] > 0)


def test_a_plan_that_is_given_stays_and_the_finding_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = through_stages(product(), "sm90").text("plan")
    stages = through_stages(product(), "sm90")
    nvrtc = compiler(monkeypatch, *[(8, 16)] * 3)
    for given in ({"plan": text}, {"gpu": stages.text("gpu")}, {"cu": stages.text("cu") + "//\n"}):
        done = len(nvrtc.sources)
        made = compiled(product(), **given)
        assert len(nvrtc.sources) <= done + 1
        assert plan_of(made) == first_plan()
        assert any("Spills: 16 bytes" in line for line in made.report())


def test_a_plan_that_was_measured_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, target = through_stages(product(), "sm90")["plan"], target_named("sm90")
    ((key, plan),) = plans.plans.items()
    assert tuned.save_tuned(target, {key: Tuned(plan, 1e-5, 1e-5, 12, 12)})
    nvrtc = compiler(monkeypatch, (8, 16))
    assert plan_of(compiled(product())) == first_plan()
    assert len(nvrtc.sources) == 1


def test_a_record_that_is_none_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    compiler(monkeypatch, (8, 16), (0, 0))
    first = compiled(product())
    (record,) = (path for path in folder.iterdir() if b'"steps"' in path.read_bytes())
    for damage in (b"", b"{}", record.read_bytes()[:-1]):
        record.write_bytes(damage)
        assert ran(compiled(product(f"after{len(damage)}"))) == ran(first)


@pytest.mark.parametrize(
    ("registers", "resident", "missing"), [(64, 1, 0), (32, 2, 0), (33, 2, 1), (64, 2, 1)]
)
def test_blocks_that_registers_leave_no_room_for(
    registers: int, resident: int, missing: int
) -> None:
    """65,536 registers a unit, handed to threads by eights."""
    code = through_stages(product(), "sm90")["gpu"]
    ((symbol, kernel),) = code.kernels.items()
    code = replace(code, kernels={symbol: replace(kernel, threads=1024, resident=resident)})
    report = read_log(f"Used {registers} registers")
    cubins = gpu_kernels.Cubins("sm_90a", {symbol: Cubin("sm_90a", b"", "", report)})
    found = fault_of(code, cubins, [symbol], target_named("sm90").limits)
    assert found == Fault(missing_blocks=missing)
    assert found.is_there == (missing > 0)


@pytest.mark.slow
def test_atanh_after_a_large_product_does_not_spill() -> None:
    b = Builder()
    x, y = b.param("bf16", [4096, 4096]), b.param("bf16", [4096, 4096])
    made = compiled(b.build(b.atanh(x @ y)))
    (line,) = (line for line in made.report() if "(matmul0): " in line)
    assert " 0 bytes spilled, 0 bytes of stack" in line


@pytest.mark.slow
def test_a_large_convolution_does_not_spill() -> None:
    """Its windows take registers that products of plain matrices do not need."""
    b = Builder()
    x, w = b.param("f32", [8, 16, 128, 32]), b.param("f32", [256, 16, 3, 3])
    made = compiled(b.build(b.emit("weft.conv", x, w, layout="NCHW", pad=[1, 1, 1, 1])))
    (line,) = (line for line in made.report() if "(conv0): " in line)
    assert " 0 bytes spilled, 0 bytes of stack" in line


def test_the_first_plan_of_several_results_has_registers_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the plan that the one for a single result would move to when it spilled."""
    one, two = Builder(), Builder()
    alone, several = (
        b.param("bf16", [16384, 768]) @ b.param("bf16", [768, 3072]) for b in (one, two)
    )
    nvrtc = compiler(monkeypatch, (0, 0), (0, 0))
    wide = plan_of(compiled(one.build(one.exp(alone))))
    first = plan_of(compiled(two.build(several, two.exp(several))))
    assert len(nvrtc.sources) == 2
    assert (wide["roles"], wide["tile"]) == ("pingpong", [128, 192, 64])
    assert (first["roles"], first["tile"]) == ("cooperative", [128, 256, 64])


@pytest.mark.slow
def test_a_large_product_of_two_results_does_not_spill() -> None:
    b = Builder()
    product = b.param("bf16", [4096, 768]) @ b.param("bf16", [768, 3072])
    made = compiled(b.build(product, b.add(product, product)))
    (line,) = (line for line in made.report() if "(matmul0): " in line)
    assert " 0 bytes spilled, 0 bytes of stack" in line
    assert not any("are spilled" in line for line in made.report())
