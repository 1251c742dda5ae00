"""Fourier transforms of signals, and what belongs to them; computed in f64 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.foundation.dtypes import F64
from weft.foundation.errors import SpecViolation
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import Array, Value, axis_in, value_as_tensor, wf
from weft.ops.tensor import Tensor


def _complex(x: Tensor) -> Value:
    """The last axis holds real parts, or real and imaginary ones."""
    wide = x.astype(F64)
    if int(x.shape[-1]) == 1:
        return wide[..., 0].astype(wf.complex128)
    return wide[..., 0].astype(wf.complex128) + wide[..., 1].astype(wf.complex128) * 1j


def _real_and_imaginary(x: Tensor, like: Tensor) -> Value:
    return wf.stack([wf.real(x), wf.imag(x)], axis=-1).astype(like.dtype)


@rule("DFT", values=(1, 2))
def dft(call: Call, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Value:
    default = call.attr("axis", 1 if call.version < 20 else -2)
    along = axis_in(default if axis is None else int(axis.reshape(())), x.ndim)
    one_sided, inverse = bool(call.attr("onesided", 0)), bool(call.attr("inverse", 0))
    have = int(x.shape[along])
    count = 2 * (have - 1) if one_sided and inverse else have
    count = count if length is None else int(length.reshape(()))
    if along == x.ndim - 1 or count < 1:
        raise SpecViolation("InvalidAttributeValue", f"axis {along} of {x.type}, length {count}")
    if inverse and one_sided:
        found = wf.fft.irfft(_complex(x), n=count, axis=along)
        return wf.expand_dims(found, -1).astype(x.dtype)
    made = (wf.fft.ifft if inverse else wf.fft.fft)(_complex(x), n=count, axis=along)
    if one_sided:
        at: list[Any] = [slice(None)] * made.ndim
        at[along] = slice(0, count // 2 + 1)
        made = made[tuple(at)]
    return _real_and_imaginary(made, x)


@rule("STFT", values=(1, 3))
def stft(
    call: Call, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None
) -> Value:
    stride = int(step.reshape(()))
    if length is not None:
        size = int(length.reshape(()))
    elif window is not None:
        size = int(window.shape[0])
    else:
        raise SpecViolation("MalformedModel", "neither a window nor a length of frames is given")
    signal = _complex(x) if x.ndim == 3 else x.astype(F64).astype(wf.complex128)
    steps = (int(signal.shape[1]) - size) // stride + 1
    places = np.arange(steps)[:, None] * stride + np.arange(size)[None, :]
    frames = wf.take(signal, value_as_tensor(places.reshape(-1).astype(np.int64)), axis=1)
    frames = frames.reshape((signal.shape[0], steps, size))
    if window is not None:
        frames = frames * window.astype(F64).astype(wf.complex128)
    made = wf.fft.fft(frames, axis=2)
    return _real_and_imaginary(made[..., : size // 2 + 1] if call.attr("onesided", 1) else made, x)


@rule("MelWeightMatrix", values=(0, 1, 2, 3, 4))
def mel_weight_matrix(
    call: Call, bins: Array, length: Array, rate: Array, low: Array, high: Array
) -> Array:
    count, size = int(bins.reshape(())), int(length.reshape(()))
    columns = size // 2 + 1
    ends = [2595 * np.log10(1 + float(hertz.reshape(())) / 700) for hertz in (low, high)]
    step = (ends[1] - ends[0]) / (count + 2)
    mels = np.arange(count + 2) * step + ends[0]
    hertz = 700 * (10 ** (mels / 2595) - 1)
    at = ((size + 1) * hertz // int(rate.reshape(()))).astype(np.int64)
    made = np.zeros((columns, count), np.float64)
    for index in range(count):
        left, middle, right = at[index : index + 3]
        if left == middle:
            made[middle, index] = 1
        else:
            for row in range(left, middle + 1):
                made[row, index] = (row - left) / (middle - left)
        for row in range(middle, right) if right > middle else ():
            made[row, index] = (right - row) / (right - middle)
    return made.astype(dtype_numbered(call.attr("output_datatype", 1)).numpy)
