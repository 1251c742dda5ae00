"""Generated code for other processors: it compiles, and refers to nothing but itself."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pytest

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.native_kernels import plans_for, row_major
from weft.codegen.cpu.compile import lower
from weft.codegen.cpu.llvm import emit_module
from weft.foundation.dtypes import BF16, F16
from weft.plan.ir import Header, MapPlan
from weft.region.ir import Module
from weft.runtime import jit, native
from weft.runtime.jit import assembly, compile_object

PROCESSORS = {
    "x86-64": ("x86_64-unknown-linux-gnu", "x86-64", ""),
    "haswell": ("x86_64-unknown-linux-gnu", "haswell", ""),
    "skylake-avx512": ("x86_64-unknown-linux-gnu", "skylake-avx512", ""),
    "sapphirerapids": ("x86_64-unknown-linux-gnu", "sapphirerapids", ""),
    "neoverse-n1": ("aarch64-unknown-linux-gnu", "neoverse-n1", ""),
}
FEATURES = {
    **dict.fromkeys(("haswell", "skylake-avx512", "sapphirerapids"), frozenset({"f16c"})),
    "neoverse-n1": frozenset({"asimd", "asimddp"}),
}
"""What of a processor's instructions code is written for."""
MODULES: dict[str, Callable[[], Module]] = {
    "linear f32": kernels.linear,
    "linear bf16": lambda: kernels.linear(dtype=BF16),
    "softmax f16": lambda: kernels.softmax(dtype=F16),
    "fold": kernels.softmax_fold,
    "layer norm": kernels.layer_norm,
    "elementwise": kernels.elementwise,
}


def undefined_symbols(code: bytes) -> set[str]:
    """Names that an ELF object expects somebody else to define, read from its symbol table."""
    table, entry, count = (
        struct.unpack_from("<Q", code, 0x28)[0],
        *struct.unpack_from("<HH", code, 0x3A),
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, table + i * entry) for i in range(count)]
    found: set[str] = set()
    for _, kind, _, _, offset, size, link, *_ in headers:
        if kind != 2:
            continue
        strings = headers[link][4]
        for at in range(offset, offset + size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if section == 0 and name:
                end = code.index(b"\0", strings + name)
                found.add(code[strings + name : end].decode())
    return found


def module_text(module: Module, features: frozenset[str] = frozenset()) -> str:
    refs = row_major(module.tensors)
    routines = [
        lower(kernel, module.tensors, refs, plans_for(kernel)[0], f"k{number}")
        for number, kernel in enumerate(module.kernels)
    ]
    return emit_module(routines, features=features)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", one_in(2, MODULES))
def test_kernels_need_no_symbol(processor: str, name: str) -> None:
    for features in {frozenset[str](), FEATURES.get(processor, frozenset())}:
        text = module_text(MODULES[name](), features)
        code = compile_object(text, PROCESSORS[processor], level=2)
        assert undefined_symbols(code) == set()


def instructions(text: str, processor: str) -> int:
    jit._PASSES.clear()
    lines = assembly(text, PROCESSORS[processor], level=3).splitlines()
    return sum(bool(re.match(r"\t\w", line)) for line in lines)


@pytest.mark.parametrize("processor", [name for name in PROCESSORS if name != "neoverse-n1"])
def test_combining_instructions_before_choosing_them_is_not_missed(
    processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same number is chosen without, but for one in twenty."""
    texts = [module_text(make(), FEATURES.get(processor, frozenset())) for make in MODULES.values()]
    texts.append(native.source(PROCESSORS[processor][0]))
    short = [instructions(text, processor) for text in texts]
    simplifier = jit._simplifier
    monkeypatch.setattr(jit, "_simplifier", lambda triple: simplifier("aarch64"))
    combined = [instructions(text, processor) for text in texts]
    jit._PASSES.clear()
    assert short != combined
    for mine, other in zip(short, combined, strict=True):
        assert mine <= 1.05 * other + 2


@pytest.mark.parametrize(
    ("processor", "instructions"),
    [
        ("haswell", {"vcvtph2ps", "vcvtps2ph", "ymm"}),
        ("skylake-avx512", {"vcvtph2ps", "vcvtps2ph", "zmm"}),
        ("neoverse-n1", {"fcvtl", "fcvtn"}),
    ],
)
def test_halves_are_converted_by_instructions(processor: str, instructions: set[str]) -> None:
    module = kernels.elementwise(columns=64, dtype=F16)
    (kernel,) = module.kernels
    refs = row_major(module.tensors)
    plan = MapPlan(Header("cpu", ""), 16)
    routine = lower(kernel, module.tensors, refs, plan, "k0")
    text = emit_module([routine], features=FEATURES[processor])
    found = assembly(text, PROCESSORS[processor], level=2)
    assert {word for word in instructions if word not in found} == set()


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_executor_needs_only_what_every_process_has(processor: str) -> None:
    code = compile_object(native.source(PROCESSORS[processor][0]), PROCESSORS[processor], level=2)
    assert undefined_symbols(code) == set(native.EXTERNAL)


def test_names_of_the_program_do_not_reach_the_code() -> None:
    module = kernels.linear(tensors=("evil name", "w", "bias", "y"))
    text = module_text(module)
    assert "evil" not in text
    assert set(re.findall(r"define void @(\w+)", text)) == {"k0"}
