"""From planned kernels to an artifact for a GPU: equal kernels become one, cubins are kept on disk,
and edited texts are what is compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import weft
from tests.support.gpu_programs import compiled, through_stages
from weft.codegen.gpu.assemble import kernel_code
from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.compile import architecture
from weft.codegen.gpu.ir import walk
from weft.driver.artifact.assembler import Unit, build_artifact
from weft.driver.code import gpu_kernels, gpu_lowering
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.opaque import host_call
from weft.foundation.errors import InternalError, SpecViolation, UserError
from weft.ptir import Builder, Program
from weft.region.structure import buffers
from weft.runtime import cache as disk
from weft.runtime.artifact import Launch
from weft.target.known import target_named

# -- kernels ---------------------------------------------------------------------------------------


def test_equal_kernels_are_built_once() -> None:
    """Both caches of the attention program are updated by one kernel."""
    module = compiled("attention", "f32", "sm90")["gpu"]
    assert set(module.launches) == {"row0", "map1", "matmul2", "row3", "map4", "matmul5"}
    assert module.launches["map1"] == module.launches["map4"]
    assert len(module.kernels) == 5
    assert {made.symbol for made in module.launches.values()} == set(module.kernels)


def test_launches_say_which_tensor_each_buffer_is() -> None:
    """Matrix templates put operands first and the result last, whatever order the kernel has."""
    compilation = compiled("attention", "bf16", "sm90")
    module = compilation["gpu"]
    for kernel in compilation["region"].kernels:
        launch = module.launches[kernel.name]
        made = module.kernels[launch.symbol]
        assert len(launch.tensors) == len(made.buffers)
        names = [buffers(kernel)[n] for n in launch.tensors]
        if module.launches["map1"].symbol != launch.symbol:
            assert tuple(names) == made.buffers


def sum_of(rows: int = 64) -> Program:
    b = Builder()
    x, y = b.param("f32", [rows]), b.param("f32", [rows])
    return b.build(x + y)


def loads(source: Program, donate: tuple[int, ...] = ()) -> set[bool]:
    """Whether the kernels of a program take what they read to be constant."""
    signature = make_signature(source, donate=donate)
    made = run_pipeline(Compilation(source, target_named("sm90"), signature), "gpu")["gpu"]
    found = [s for kernel in made.kernels.values() for s in walk(kernel.body)]
    return {s.constant for s in found if hasattr(s, "constant")}


def test_a_buffer_that_is_written_is_not_read_as_constant() -> None:
    assert loads(sum_of()) == {True}
    assert loads(sum_of(), donate=(0,)) == {True, False}


def test_a_refused_plan_is_told_with_all_reasons() -> None:
    """As on the CPU: what another plan would do is no gap of the templates."""
    program = sum_of(63)
    plans = json.loads(weft.compile(program, target="sm90").stages["plan"])
    plans["plans"][0].update(vector=4, grain=256)
    with pytest.raises(SpecViolation) as caught:
        weft.compile(program, target="sm90", overrides={"plan": json.dumps(plans)})
    assert [(finding.code, finding.why) for finding in caught.value.findings] == [
        ("PlanRefused", "a vector of 4 does not divide an axis of 63"),
        (
            "PlanRefused",
            "a grain of 256 is not a multiple of 512: 128 threads, 1 x 4 points each at a time",
        ),
    ]


def product(dtype: str) -> Program:
    b = Builder()
    return b.build(b.matmul(b.param(dtype, [64, 64]), b.param(dtype, [64, 64])))


NO_TEMPLATE: dict[str, tuple[str, dict[str, object], str]] = {
    "another machine's": ("bf16", {"arch": "cpu"}, "no GPU template carries out this cpu MmaPlan"),
    "another kernel's": (
        "bf16",
        {"kind": "attention", "tile_q": 64, "tile_kv": 64},
        "matmul0 is not an attention",
    ),
    "another dtype's": (
        "f32",
        {"arch": "sm90", "roles": "cooperative", "tile": [128, 64, 64], "warp_tile": "64x64"},
        "no wgmma takes f32 and f32 with sums of f32",
    ),
}


@pytest.mark.parametrize("name", NO_TEMPLATE)
def test_a_plan_by_hand_is_never_left_to_the_host(name: str) -> None:
    dtype, change, why = NO_TEMPLATE[name]
    program = product(dtype)
    plans = json.loads(through_stages(program, "sm90").text("plan"))
    (plan,) = plans["plans"]
    kept = ("target", "kernel") if "kind" in change else tuple(plan)
    plans["plans"] = [{field: plan[field] for field in kept} | change]
    with pytest.raises(SpecViolation) as caught:
        through_stages(program, "sm90", plan=json.dumps(plans))
    assert ("PlanRefused", why) in [(found.code, found.why) for found in caught.value.findings]


def test_the_planners_own_plan_of_a_kernel_for_the_host_may_be_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_lowering, "accepts", lambda *args: [refuse("Odd", "it is odd")])
    first = through_stages(product("bf16"), "sm90")
    again = through_stages(product("bf16"), "sm90", plan=first.text("plan"))
    assert again["gpu"].hosted == first["gpu"].hosted == {"matmul0": "it is odd"}


def test_one_block_is_no_blocks() -> None:
    code = through_stages(sum_of(), "sm90")["gpu"]
    cubins = gpu_kernels.compile_sources(gpu_kernels.print_cuda(code), "sm_90a")
    (line,) = gpu_kernels.resource_report(code, cubins)
    assert "(map0): 1 block of " in line


# -- machine code ----------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def small() -> gpu_kernels.CudaCode:
    return gpu_kernels.print_cuda(through_stages(sum_of(), "sm90")["gpu"])


def test_cubins_are_kept_on_disk(cache: Path) -> None:
    first = gpu_kernels.compile_sources(small(), "sm_90a")
    again = gpu_kernels.compile_sources(small(), "sm_90a")
    assert (first.compiled, first.reused) == (1, 0)
    assert (again.compiled, again.reused) == (0, 1)
    (made,), (kept,) = first.cubins.values(), again.cubins.values()
    assert (made.code, made.report) == (kept.code, kept.report)
    assert made.report.registers > 0
    other = gpu_kernels.compile_sources(small(), "sm_90")
    assert (other.compiled, other.reused) == (1, 0)
    assert len(list(cache.iterdir())) == 2


def test_a_damaged_entry_is_made_again(cache: Path) -> None:
    gpu_kernels.compile_sources(small(), "sm_90a")
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert gpu_kernels.compile_sources(small(), "sm_90a").compiled == 1


def test_an_entry_of_somebody_elses_is_made_again(cache: Path) -> None:
    gpu_kernels.compile_sources(small(), "sm_90a")
    (entry,) = cache.iterdir()
    kept = disk.load(entry.name) or b""
    changes = {
        b'"registers": ': b'"registers": 1e9, "odd": ',
        b": ": b": null, ",
        b"\x7fELF": b"elf",
    }
    odd = [kept.replace(old, new, 1) for old, new in changes.items()]
    bare = [b"no cubin", b"[1]\ncode", b'{"remarks": 1}\ncode', b'{"remarks": []}\ncode']
    for foreign in (*bare, *odd, b"[" * 100_000, b"Infinity\n\x7fELF"):
        disk.save(entry.name, foreign)
        assert gpu_kernels.compile_sources(small(), "sm_90a").compiled == 1
    assert gpu_kernels.compile_sources(small(), "sm_90a").reused == 1


def test_without_a_cache_everything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert gpu_kernels.compile_sources(small(), "sm_90a").compiled == 1
    assert gpu_kernels.compile_sources(small(), "sm_90a").compiled == 1


def test_edited_cuda_is_what_is_compiled() -> None:
    source = sum_of()
    plain = weft.compile(source, target="sm90")
    edited = re.sub(r"= (v\d+) \+ (v\d+);", r"= \1 - \2;", plain.stages["cu"])
    again = weft.compile(source, target="sm90", overrides={"cu": edited})
    assert again.stages["cu"] == edited != plain.stages["cu"]


def test_cuda_that_does_not_compile_is_the_fault_of_whoever_wrote_it() -> None:
    source = sum_of()
    plain = weft.compile(source, target="sm90").stages["cu"]
    with pytest.raises(UserError, match="the CUDA text that was given does not compile"):
        weft.compile(source, target="sm90", overrides={"cu": plain + "nonsense;\n"})
    symbol = plain.split()[3]
    with pytest.raises(InternalError, match="generated CUDA does not compile"):
        gpu_kernels.compile_sources(gpu_kernels.CudaCode({symbol: "nonsense;"}), "sm_90a")


def test_missing_and_misnamed_sources_are_refused() -> None:
    source = sum_of()
    with pytest.raises(SpecViolation, match="CudaText at stage cu: there is no source for the"):
        weft.compile(source, target="sm90", overrides={"cu": ""})
    with pytest.raises(SpecViolation, match="'k_1' is not the symbol of a kernel"):
        weft.compile(source, target="sm90", overrides={"cu": "// ==== kernel k_1\n"})


@pytest.mark.parametrize(
    ("target", "device", "arch"),
    [
        ("sm80", None, "sm_80"),
        ("sm80", (8, 0), "sm_80"),
        ("sm80", (9, 0), "sm_90"),
        ("sm90", None, "sm_90a"),
        ("sm90", (9, 0), "sm_90a"),
    ],
)
def test_architectures(target: str, device: tuple[int, int] | None, arch: str) -> None:
    assert architecture(target_named(target), device) == arch


# -- artifacts -------------------------------------------------------------------------------------


def test_an_artifact_has_the_steps_in_order() -> None:
    compilation = compiled("attention", "bf16", "sm90")
    module = compilation["gpu"]
    cubins = gpu_kernels.compile_sources(compilation["cu"], "sm_90a")
    region = compilation["region"]
    unit = Unit(
        region,
        compilation["memory"],
        gpu_kernels.natives(module, region),
        gpu_kernels.kernel_codes(
            module, region, cubins, gpu_kernels.estimated_seconds(region, target_named("sm90"))
        ),
        compilation["tiny"].constants,
    )
    artifact = build_artifact(unit, "sm_90a", host_call)
    launches = [step for step in artifact.steps if isinstance(step, Launch)]
    assert [step.label for step in launches] == [k.name for k in compilation["region"].kernels]
    symbols = [artifact.kernels[step.kernel].symbol for step in launches]
    assert symbols == [module.launches[step.label].symbol for step in launches]
    for step in launches:
        code = artifact.kernels[step.kernel]
        made = module.kernels[code.symbol]
        assert len(step.buffers) == len(made.buffers)
        assert (code.grid, code.block) == ((made.grid, 1, 1), (made.threads, 1, 1))
        assert code.shared_bytes == made.shared_bytes
        assert [found.box for found in code.tensor_maps] == [found.box for found in made.maps]


def test_tensor_maps_are_in_bytes() -> None:
    compilation = compiled("mlp", "bf16", "sm90")
    (kernel, *_) = compilation["gpu"].kernels.values()
    code = kernel_code(kernel, b"")
    found = dict(zip((m.name for m in kernel.maps), code.tensor_maps, strict=True))
    # Few rows: the transposed product, whose columns are rows of the first operand.
    assert found["b"].strides == (2 * 64,)
    assert (found["b"].sizes, found["b"].dtype, found["b"].swizzle) == ((64, 32), "bf16", 128)


def test_the_report_names_users_and_resources() -> None:
    compilation = compiled("attention", "f32", "sm90")
    cubins = gpu_kernels.compile_sources(compilation["cu"], "sm_90a")
    lines = gpu_kernels.resource_report(compilation["gpu"], cubins)
    (shared,) = (line for line in lines if "map1, map4" in line)
    assert "0 bytes spilled, 0 bytes of stack" in shared
    assert len(lines) == len(compilation["gpu"].kernels)
