"""Activations as layers."""

from __future__ import annotations

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.ops.arithmetic import as_tensor
from weft.ops.array.elementwise import tanh
from weft.ops.array.manipulation import reshape
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.functional.activation import (
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    swiglu,
)
from weft.ops.functional.pointwise import celu, hardtanh, softsign
from weft.ops.nn.applied import Applied
from weft.ops.nn.initialise import constant
from weft.ops.nn.module import Module
from weft.ops.nn.settings import is_positive_whole
from weft.ops.tensor import Tensor


class CELU(Applied):
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` below."""

    function = staticmethod(celu)


class ELU(Applied):
    """`x` above 0, `alpha * (exp(x) - 1)` below."""

    function = staticmethod(elu)


class GELU(Applied):
    """`x` times the normal distribution function of x."""

    function = staticmethod(gelu)


class GLU(Applied):
    """Half of an axis, gated by the sigmoid of the other half."""

    function = staticmethod(glu)


class Hardsigmoid(Applied):
    """A sigmoid of three straight pieces."""

    function = staticmethod(hardsigmoid)


class Hardswish(Applied):
    """`x` times a sigmoid of three straight pieces."""

    function = staticmethod(hardswish)


class Hardtanh(Applied):
    """`x` between two bounds, and the nearer bound elsewhere."""

    function = staticmethod(hardtanh)


class LeakyReLU(Applied):
    """`x` above 0, a small part of it below."""

    function = staticmethod(leaky_relu)


class LogSigmoid(Applied):
    """The logarithm of the sigmoid."""

    function = staticmethod(log_sigmoid)


class LogSoftmax(Applied):
    """The logarithm of the softmax along an axis."""

    function = staticmethod(log_softmax)


class Mish(Applied):
    """`x * tanh(softplus(x))`."""

    function = staticmethod(mish)


class ReLU(Applied):
    """`x` above 0, and 0 below."""

    function = staticmethod(relu)


class ReLU6(Applied):
    """`x` between 0 and 6."""

    function = staticmethod(relu6)


class SELU(Applied):
    """An ELU whose results keep mean 0 and variance 1."""

    function = staticmethod(selu)


class SiLU(Applied):
    """`x * sigmoid(x)`."""

    function = staticmethod(silu)


class Sigmoid(Applied):
    """`1 / (1 + exp(-x))`."""

    function = staticmethod(sigmoid)


class Softmax(Applied):
    """Exponentials along an axis, divided by their sum."""

    function = staticmethod(softmax)


class Softplus(Applied):
    """`log(1 + exp(x))`."""

    function = staticmethod(softplus)


class Softsign(Applied):
    """`x / (1 + |x|)`."""

    function = staticmethod(softsign)


class SwiGLU(Applied):
    """Half of an axis, gated by the SiLU of the other half."""

    function = staticmethod(swiglu)


class Tanh(Applied):
    """The hyperbolic tangent."""

    function = staticmethod(tanh)


class PReLU(Module):
    """`x` above 0, and `weight * x` below; one weight for all, or for each channel (axis 1)."""

    @public
    def __init__(
        self, channels: int = 1, value: float = 0.25, *, dtype: DType | str = "f32"
    ) -> None:
        if not is_positive_whole(channels):
            raise UserError(f"[PReLU] channels is {channels!r}; it must be a whole number over 0")
        self.weight = constant((channels,), value, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        along = (-1,) + (1,) * (x.ndim - 2) if x.ndim > 1 else (-1,)
        return where(x > 0, x, x * reshape(self.weight, along))


class Identity(Module):
    """x as it is."""

    def __call__(self, x: Tensor) -> Tensor:
        return x
