"""CUDA C to cubins by NVRTC: no GPU, driver, header or compiler is needed on the machine.

The compiler's log is part of the result: what it says about registers, spills and matrix
instructions that lost their asynchrony decides whether a kernel may be used (`Report.findings`).
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from weft.foundation.errors import Finding, InternalError, Unimplemented
from weft.foundation.records import dataclass
from weft.target.target import Target

ARCHITECTURES: Final = ("sm_80", "sm_90", "sm_90a")
"""`sm_90a` has wgmma and setmaxnreg; code for `sm_80` runs on an SM90 card only when built for
`sm_90`."""

_OPTIONS: Final = ("-std=c++17", "-default-device", "--minimal", "--ptxas-options=-v")
"""`--minimal` leaves out what the compiler reads before a source and no kernel has, textures and
calls of the runtime: a sixth of the time of a short one."""
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
_FRAME: Final = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
REMARK: Final = re.compile(r"\bC75\d\d\b")
"""Codes of remarks on matrix instructions."""


@dataclass(frozen=True)
class Report:
    """What the compiler says about a kernel."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    remarks: tuple[str, ...]
    """Lines with a C75xx code: matrix instructions serialised, register requests ignored."""

    @property
    def findings(self) -> list[Finding]:
        """What makes a kernel slower than its plan says."""
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        if self.stack_bytes:
            yield Finding("StackFrame", "", f"the kernel has a stack of {self.stack_bytes} bytes")
        if self.spilled_bytes:
            yield Finding("Spills", "", f"{self.spilled_bytes} bytes of registers are spilled")
        for remark in self.remarks:
            yield Finding("Remark", "", remark)


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture."""

    arch: str
    code: bytes
    log: str
    report: Report
    ptx: str = ""
    """What it was assembled from, where somebody wants to read it."""


def pack_cubin(cubin: Cubin) -> bytes:
    """A cubin and what the compiler said about it."""
    return json.dumps(asdict(cubin.report)).encode() + b"\n" + cubin.code


@cache
def _nvrtc() -> Any:
    """The compiler library, loaded when first asked for: it is an optional package, and its binding
    loads the library itself only when it is called."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise Unimplemented(
            "cuda",
            f"compiling for GPUs needs NVRTC, which cannot be loaded ({why}); install the packages "
            "of the extra weft[cuda]",
        ) from None
    return nvrtc


def compile_cuda(source: str, arch: str, *, to_read: bool = False) -> Cubin:
    """Compile one source file; `to_read` keeps the PTX, and the lines of the source that it and the
    machine code come from."""
    nvrtc = _nvrtc()
    if arch not in ARCHITECTURES:
        raise InternalError(f"there is no architecture {arch}")
    program = _check_status(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        wanted = (f"-arch={arch}", *_OPTIONS, *(("-lineinfo",) if to_read else ()))
        options = [option.encode() for option in wanted]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _program_log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise InternalError(f"generated CUDA does not compile for {arch}:\n{log}")
        size = _check_status(nvrtc.nvrtcGetCUBINSize(program))
        code = b"\0" * size
        _check_status(nvrtc.nvrtcGetCUBIN(program, code))
        ptx = _ptx(nvrtc, program) if to_read else ""
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(arch, code, log, read_log(log), ptx)


def _check_status(answer: tuple[Any, ...]) -> Any:
    status, *rest = answer
    if int(status) != 0:
        raise InternalError(f"NVRTC answered {status}")
    return rest[0] if rest else None


def _program_log(nvrtc: Any, program: Any) -> str:
    size = _check_status(nvrtc.nvrtcGetProgramLogSize(program))
    log: bytes = b"\0" * size
    _check_status(nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _ptx(nvrtc: Any, program: Any) -> str:
    text: bytes = b"\0" * _check_status(nvrtc.nvrtcGetPTXSize(program))
    _check_status(nvrtc.nvrtcGetPTX(program, text))
    return text.rstrip(b"\0").decode(errors="replace")


def read_log(log: str) -> Report:
    """The numbers of a compiler log; the largest, where it speaks of several functions."""
    frames = [tuple(map(int, found)) for found in _FRAME.findall(log)]
    remarks = [line.strip() for line in log.splitlines() if REMARK.search(line)]
    return Report(
        registers=max((int(n) for n in _REGISTERS.findall(log)), default=0),
        stack_bytes=max((frame[0] for frame in frames), default=0),
        spilled_bytes=max((frame[1] + frame[2] for frame in frames), default=0),
        remarks=tuple(remarks),
    )


def architecture(target: Target, device: tuple[int, int] | None) -> str:
    """What to build for: a target's own architecture, or that of a newer device, which runs no
    code built for the older one."""
    if target.has("wgmma"):
        return "sm_90a"
    return "sm_90" if device is not None and device >= (9, 0) else "sm_80"


def version() -> tuple[int, int]:
    """The compiler's version: part of every cache key."""
    status, major, minor = _nvrtc().nvrtcVersion()
    _check_status((status,))
    return int(major), int(minor)
