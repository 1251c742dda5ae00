"""Every plan of the benchmarks becomes machine code that does what the plan says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.gemm_kernels import ARCH, Contraction, dialect_kernel, load_plan, plan_names
from tests.support.cases import one_in
from weft.codegen.gpu import compile as compiler
from weft.codegen.gpu import sass
from weft.codegen.gpu.compile import compile_cuda, read_log
from weft.codegen.gpu.spelling.print import cuda
from weft.foundation.errors import InternalError, Unimplemented

PLAIN = Contraction(4096, 4096, 4096)
FUSED = Contraction(8192, 3072, 768, epilogue=("bias", "gelu"))
FUSED_PLANS = ("coop_128x256_deferred_hilbert", "pingpong_128x128", "pingpong_128x192")
CASES = [(name, PLAIN) for name in plan_names()] + [(name, FUSED) for name in FUSED_PLANS]

needs_disassembler = pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")


@needs_disassembler
@pytest.mark.parametrize(("name", "shape"), one_in(24, CASES, unpack=True))
def test_plans_compile_to_what_they_say(name: str, shape: Contraction) -> None:
    cubin = compile_cuda(cuda(dialect_kernel(shape, load_plan(name))), ARCH)
    assert cubin.report.findings == []
    code = sass.disassemble(cubin.code)
    wanted = ("HGMMA", "UTMALDG", "UTMASTG", "STSM", "USETMAXREG")
    assert sass.check(code, wanted) == []


def test_a_log_is_read() -> None:
    log = """
ptxas info    : Function properties for gemm
    16 bytes stack frame, 32 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored
"""
    report = read_log(log)
    assert (report.registers, report.stack_bytes, report.spilled_bytes) == (168, 16, 40)
    assert [str(finding) for finding in report.findings] == [
        "StackFrame: the kernel has a stack of 16 bytes",
        "Spills: 40 bytes of registers are spilled",
        "Remark: ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored",
    ]


def test_source_that_does_not_compile_is_our_bug() -> None:
    with pytest.raises(InternalError, match="generated CUDA does not compile for sm_90a"):
        compile_cuda("__global__ void f() { nonsense; }", ARCH)


LISTING = """
        /*0010*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24 ;
        /*0020*/                   MEMBAR.ALL.CTA ;
        /*0030*/                   FENCE.VIEW.ASYNC.S ;
        /*0040*/              @!P0 MEMBAR.ALL.GPU ;
        /*0050*/                   STL [R1+0xc], R223 ;
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24, gsb0 ;
"""


def test_machine_code_is_checked() -> None:
    """A proxy fence is allowed between matrix instructions; a device-wide barrier is not."""
    found = sass.check(sass.parse(LISTING), ("HGMMA", "UTMALDG"))
    assert [finding.why for finding in found] == [
        "there is no UTMALDG in the kernel",
        "1 STL: registers in memory",
        "a MEMBAR.ALL.GPU stands between matrix instructions",
    ]


@pytest.mark.parametrize("error", [ImportError("no module"), RuntimeError("libnvrtc.so not found")])
def test_a_compiler_that_cannot_be_loaded_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The binding may be there and the library it loads not: it says so when it is first called."""

    def load(name: str) -> SimpleNamespace:
        if isinstance(error, ImportError):
            raise error
        return SimpleNamespace(nvrtcVersion=fail)

    def fail() -> None:
        raise error

    compiler._nvrtc.cache_clear()
    monkeypatch.setattr("weft.codegen.gpu.compile.importlib.import_module", load)
    with pytest.raises(Unimplemented, match=rf"\({error}\); install .* extra weft\[cuda\]$"):
        compiler.compile_cuda("", "sm_80")
    compiler._nvrtc.cache_clear()


def test_the_compiler_reads_no_more_than_kernels_need() -> None:
    texture = 'extern "C" __global__ void k(cudaTextureObject_t) {}'
    with pytest.raises(InternalError, match='"cudaTextureObject_t" is undefined'):
        compile_cuda(texture, "sm_90a")
