"""`weft.fft`: discrete Fourier transforms, each made of `ptir.fourier`'s sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.foundation.axes import normalise_axes, normalise_axis
from weft.foundation.dtypes import CF32, CF64, F32, F64, SI64
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.array.conversion import home
from weft.ops.array.data_types import dtype_named
from weft.ops.array.manipulation import axes_of
from weft.ops.array.movement import flipped, pad_axis_end, permuted, rolled, unpermuted, window
from weft.ops.array.operands import known
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.other_names import missing
from weft.ops.promotion import DEFAULT_FLOAT
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor
from weft.ptir.fourier import transformed

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip

_SWAPPED = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


# -- the transform itself ------------------------------------------------------------------------


def _transform_axis(x: Handle, axis: int, sign: int, norm: str) -> Handle:
    """A scaled transform along one axis; the factor is that of a sum with this norm."""
    last = [*(a for a in range(x.rank) if a != axis), axis]
    size = known(x.shape[axis], "the transformed axis")
    divided = norm == ("forward" if sign < 0 else "backward")
    result = unpermuted(transformed(permuted(x, last), size, sign, divided=divided), last)
    return result * size**-0.5 if norm == "ortho" else result


# -- arguments -----------------------------------------------------------------------------------


def _check_norm(norm: str) -> None:
    if norm not in _SWAPPED:
        raise UserError(f"norm is {norm!r}; it can be 'backward', 'ortho' or 'forward'")


def _complex(x: Handle) -> Handle:
    if x.dtype.is_complex:
        return x
    return x.cast(CF64 if x.dtype is F64 else CF32)


def _real(x: Handle) -> Handle:
    if x.dtype.is_complex:
        raise SpecViolation(
            "DTypeNotSupported",
            f"a tensor of {x.dtype} is given where a real one is wanted",
            "use fft, or take weft.real of it",
        )
    return x.cast(F64 if x.dtype is F64 else F32)


def _fit_to_size(x: Handle, axis: int, size: int | None) -> Handle:
    """Cut off, or filled with zeros, to a size."""
    old = known(x.shape[axis], "the transformed axis")
    wanted = old if size is None else size
    if wanted < 1:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"a transform has at least one element, not {wanted}",
            "transform another axis, or pass n=",
        )
    return window(x, axis, 0, wanted) if wanted <= old else pad_axis_end(x, axis, wanted - old)


def _axes_with_sizes(x: Handle, s: Any, axes: Any) -> list[tuple[int, int | None]]:
    """Axes with their sizes, for a transform over several."""
    if axes is None:
        count = x.rank if s is None else len(s)
        axes = range(x.rank - count, x.rank)
    chosen = normalise_axes(tuple(axes), x.rank)
    sizes = [None] * len(chosen) if s is None else [None if n == -1 else n for n in s]
    if len(sizes) != len(chosen):
        raise UserError(f"{len(sizes)} sizes do not go with {len(chosen)} axes")
    return list(zip(chosen, sizes, strict=True))


# -- one axis ------------------------------------------------------------------------------------


@recorded
def fft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The transform along an axis, cut or filled with zeros to `n` elements."""
    return _transform_one(x, n, axis, norm, -1)


@recorded
def ifft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The inverse transform along an axis."""
    return _transform_one(x, n, axis, norm, 1)


def _transform_one(x: Handle, n: int | None, axis: int, norm: str, sign: int) -> Handle:
    _check_norm(norm)
    at = normalise_axis(axis, x.rank)
    return _transform_axis(_fit_to_size(_complex(x), at, n), at, sign, norm)


@recorded
def rfft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The transform of real elements: its first half, of which the rest is the mirror image."""
    _check_norm(norm)
    return _real_forward(_real(x), n, normalise_axis(axis, x.rank), norm)


def _real_forward(x: Handle, n: int | None, axis: int, norm: str) -> Handle:
    whole = _transform_axis(_complex(_fit_to_size(x, axis, n)), axis, -1, norm)
    return window(whole, axis, 0, known(whole.shape[axis], "the axis") // 2 + 1)


@recorded
def irfft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The inverse of `rfft`: `n` real elements, twice the distances between x's by default."""
    _check_norm(norm)
    return _real_backward(_complex(x), n, normalise_axis(axis, x.rank), norm)


def _real_backward(x: Handle, n: int | None, axis: int, norm: str) -> Handle:
    size = 2 * (known(x.shape[axis], "the axis") - 1) if n is None else n
    half = _fit_to_size(x, axis, size // 2 + 1)
    mirrored = (size - 1) // 2
    if size < 1:
        raise OutOfRange("InvalidAttributeValue", f"n is {size}", "it must be at least 1")
    if mirrored:
        rest = flipped(window(half, axis, 1, mirrored), axis).conj()
        half = half.concat(rest, axis)
    return _transform_axis(half, axis, 1, norm).real()


@recorded
def hfft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The transform of elements that are their own mirror image, of which x is the first half: it
    is real."""
    _check_norm(norm)
    at = normalise_axis(axis, x.rank)
    return _real_backward(_complex(x).conj(), n, at, _SWAPPED[norm])


@recorded
def ihfft(x: Handle, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Handle:
    """The inverse of `hfft`."""
    _check_norm(norm)
    at = normalise_axis(axis, x.rank)
    return _real_forward(_real(x), n, at, _SWAPPED[norm]).conj()


# -- several axes --------------------------------------------------------------------------------


@recorded
def fftn(
    x: Handle,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Handle:
    """The transform over several axes, or all."""
    return _all_axes(x, s, axes, norm, -1)


@recorded
def ifftn(
    x: Handle,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Handle:
    """The inverse transform over several axes, or all."""
    return _all_axes(x, s, axes, norm, 1)


def _all_axes(x: Handle, s: Any, axes: Any, norm: str, sign: int) -> Handle:
    _check_norm(norm)
    value = _complex(x)
    for at, size in _axes_with_sizes(x, s, axes):
        value = _transform_axis(_fit_to_size(value, at, size), at, sign, norm)
    return value


@recorded
def rfftn(
    x: Handle,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Handle:
    """The transform of real elements over several axes: half of the last one."""
    _check_norm(norm)
    *others, (last, size) = _axes_with_sizes(x, s, axes)
    value = _real_forward(_real(x), size, last, norm)
    for at, n in others:
        value = _transform_axis(_fit_to_size(value, at, n), at, -1, norm)
    return value


@recorded
def irfftn(
    x: Handle,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Handle:
    """The inverse of `rfftn`."""
    _check_norm(norm)
    value = _complex(x)
    *others, (last, size) = _axes_with_sizes(x, s, axes)
    for at, n in others:
        value = _transform_axis(_fit_to_size(value, at, n), at, 1, norm)
    return _real_backward(value, size, last, norm)


# -- frequencies ---------------------------------------------------------------------------------


@public
def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequencies of a transform of size `n` over samples `d` apart, the negative ones last."""
    return _frequencies(n, n, (n - 1) // 2, d, dtype, device)


@public
def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: str | None = None) -> Tensor:
    """The frequencies of `rfft`."""
    return _frequencies(n, n // 2 + 1, n, d, dtype, device)


def _frequencies(n: int, count: int, last: int, d: float, dtype: Any, device: Any) -> Tensor:
    """`count` whole numbers over `n d`; those after `last` stand for negative ones."""
    if n < 1:
        raise OutOfRange("InvalidAttributeValue", f"n is {n}", "it must be at least 1")
    session = Session(home(device), user_line())
    steps = session.iota(SI64, (count,), 0)
    if last < count - 1:
        steps = steps.compare("greater", last).select(steps - n, steps)
    return session.export((steps.cast(F64) / (n * d)).cast(dtype_named(dtype or DEFAULT_FLOAT)))


@recorded
def fftshift(x: Handle, /, *, axes: int | Sequence[int] | None = None) -> Handle:
    """The zero frequency in the middle."""
    return _shift_axes(x, axes, 1)


@recorded
def ifftshift(x: Handle, /, *, axes: int | Sequence[int] | None = None) -> Handle:
    """What `fftshift` did, undone."""
    return _shift_axes(x, axes, -1)


def _shift_axes(x: Handle, axes: Any, sign: int) -> Handle:
    for axis in axes_of(axes, x.rank):
        x = rolled(x, sign * (known(x.shape[axis], "the axis") // 2), axis)
    return x


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.fft", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
