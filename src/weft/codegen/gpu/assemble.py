"""From a dialect kernel to what the runtime loads: CUDA source, cubin, and launch configuration."""

from __future__ import annotations

from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import Cubin, compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.runtime.artifact import KernelCode, TensorMap, Window


def assemble(kernel: ir.Kernel, arch: str) -> tuple[KernelCode, Cubin]:
    """Compile a kernel; the cubin carries the compiler's report."""
    cubin = compile_cuda(cuda(kernel), arch)
    return kernel_code(kernel, cubin.code), cubin


def kernel_code(
    kernel: ir.Kernel, code: bytes, checks: tuple[tuple[str, str], ...] = ()
) -> KernelCode:
    """The record of a compiled kernel, with what its checks report."""
    return KernelCode(
        symbol=kernel.name,
        code=code,
        grid=(kernel.grid, 1, 1),
        block=(kernel.threads, 1, 1),
        cluster=(kernel.cluster, 1, 1),
        shared_bytes=kernel.shared_bytes,
        tensor_maps=tuple(_tensor_map(found) for found in kernel.maps),
        reports=kernel.reports,
        waits=kernel.waits,
        checks=checks,
        workspace_bytes=kernel.workspace.bytes if kernel.workspace else 0,
        together=kernel.together,
        sets=kernel.sets,
    )


def _tensor_map(found: ir.TensorMap) -> TensorMap:
    size, window = found.dtype.storage_bytes, found.window
    return TensorMap(
        buffer=found.buffer,
        dtype=found.dtype.name,
        offset=found.offset * size,
        sizes=found.sizes,
        strides=tuple(stride * size for stride in found.strides),
        box=found.box,
        swizzle=found.swizzle.span,
        window=Window(window.lower, window.upper, window.steps) if window else None,
    )
