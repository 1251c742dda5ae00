"""Casts between floats of 32 and of 16 bits, without a program: one kernel for two dtypes.

A program is compiled for its shapes, so that the parameters of a model, which are cast once, would
have one each. These kernels are in PTX, which the driver compiles. They round as kernels of
programs do, by the machine's own conversion.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any, Final
from weakref import WeakKeyDictionary

from weft.runtime.cuda.driver import DriverError, call, pointer_table
from weft.runtime.cuda.gpu import Gpu
from weft.runtime.cuda.tensors import DeviceTensor, empty

_LANES: Final = 4
"""Elements of a thread: 16 bytes of those that are longer."""
_THREADS: Final = 256
_CONVERSIONS: Final = {
    ("f32", "bf16"): "cvt.rn.bf16.f32 {to}, {of};",
    ("f32", "f16"): "cvt.rn.f16.f32 {to}, {of};",
    ("bf16", "f32"): "mov.b32 {to}, {{%none, {of}}};",
    ("f16", "f32"): "cvt.f32.f16 {to}, {of};",
}
"""The instruction that makes one element of another, by their dtypes."""
_WORDS: Final = {"f32": ("f32", 4), "bf16": ("b16", 2), "f16": ("b16", 2)}
"""The registers of each dtype, and their bytes."""
_OTHER_VERSION: Final = frozenset({218, 222})
"""What the driver answers to text that it does not know."""
_PTX: Final = """
.version 7.8
.target sm_80
.address_size 64

.visible .entry {name}(.param .u64 source, .param .u64 target, .param .u64 count)
{{
    .reg .pred %p<2>;
    .reg .b16 %none;
    .reg .b32 %r<2>;
    .reg .b64 %d<5>;
    .reg .{given} %x<{lanes}>;
    .reg .{wanted} %y<{lanes}>;
    ld.param.u64 %d0, [source];
    ld.param.u64 %d1, [target];
    ld.param.u64 %d2, [count];
    cvta.to.global.u64 %d0, %d0;
    cvta.to.global.u64 %d1, %d1;
    mov.b16 %none, 0;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r0, {block};
    mul.wide.u32 %d4, %r1, {lanes};
    add.u64 %d3, %d3, %d4;
    mad.lo.u64 %d0, %d3, {given_bytes}, %d0;
    mad.lo.u64 %d1, %d3, {wanted_bytes}, %d1;
    add.u64 %d4, %d3, {lanes};
    setp.gt.u64 %p0, %d4, %d2;
    @%p0 bra single;
    ld.global.v{lanes}.{given} {{{x}}}, [%d0];
    {conversions}
    st.global.v{lanes}.{wanted} [%d1], {{{y}}};
    ret;
single:
    setp.ge.u64 %p1, %d3, %d2;
    @%p1 bra done;
    ld.global.{given} %x0, [%d0];
    {conversion}
    st.global.{wanted} [%d1], %y0;
    add.u64 %d0, %d0, {given_bytes};
    add.u64 %d1, %d1, {wanted_bytes};
    add.u64 %d3, %d3, 1;
    bra single;
done:
    ret;
}}
"""
_LOADED: Final[WeakKeyDictionary[Gpu, dict[tuple[str, str], Any]]] = WeakKeyDictionary()
"""The kernels that were loaded; None where the driver does not know the text."""


def cast(tensor: DeviceTensor, dtype: str) -> DeviceTensor | None:
    """A tensor in another dtype; None where there is no kernel for that."""
    gpu, count = tensor.gpu, prod(tensor.shape)
    if (tensor.dtype, dtype) not in _CONVERSIONS or not count:
        return None
    made = empty(gpu, dtype, tensor.shape)
    made.era = tensor.era
    with gpu.lock:
        function = _load_kernel(gpu, tensor.dtype, dtype)
        if function is None:
            return None
        storage = [ctypes.c_uint64(word) for word in (tensor.address, made.address, count)]
        table = pointer_table([ctypes.addressof(part) for part in storage])
        grid, block = (-(-count // (_LANES * _THREADS)), 1, 1), (_THREADS, 1, 1)
        handle, where = gpu.stream.handle, ctypes.addressof(table)
        call(gpu.device.driver, "cuLaunchKernel", function, *grid, *block, 0, handle, where, 0)
    return made


def _load_kernel(gpu: Gpu, given: str, wanted: str) -> Any:
    """The kernel for two dtypes on a device, loaded once."""
    loaded = _LOADED.setdefault(gpu, {})
    if (given, wanted) not in loaded:
        driver = gpu.device.driver
        try:
            module = call(driver, "cuModuleLoadData", ptx(given, wanted).encode() + b"\0")
            found = call(driver, "cuModuleGetFunction", module, _name(given, wanted).encode())
        except DriverError as error:
            if error.status not in _OTHER_VERSION:
                raise
            found = None
        loaded[given, wanted] = found
    return loaded[given, wanted]


def _name(given: str, wanted: str) -> str:
    return f"weft_cast_{given}_{wanted}"


def ptx(given: str, wanted: str) -> str:
    """The text of the kernel for two dtypes."""
    conversion = _CONVERSIONS[given, wanted]
    x, y = ([f"%{name}{lane}" for lane in range(_LANES)] for name in "xy")
    # All loads come before the first conversion, and all stores behind the last: four elements are
    # one access each way. What is left at the end goes one by one.
    lines = [conversion.format(of=of, to=to) for of, to in zip(x, y, strict=True)]
    (given_kind, given_bytes), (wanted_kind, wanted_bytes) = _WORDS[given], _WORDS[wanted]
    return _PTX.format(
        name=_name(given, wanted),
        given=given_kind,
        wanted=wanted_kind,
        given_bytes=given_bytes,
        wanted_bytes=wanted_bytes,
        lanes=_LANES,
        block=_LANES * _THREADS,
        x=", ".join(x),
        y=", ".join(y),
        conversions="\n    ".join(lines),
        conversion=lines[0],
    )
