"""The questions that every functional op asks its arguments before anything is captured.

A `check_<op>` function asks them and answers with the op's `Checked` record: everything the capture
needs, normalised. It has no effect, so a wrong call leaves no trace in the graph. Each question
raises a violation with a stable code, the shapes, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.dims import Dim, Shape
from weft.foundation.dtypes import DType, in_order
from weft.foundation.errors import SizeWanted, SpecViolation, UserError
from weft.ops.arithmetic import as_tensor, listed
from weft.ops.printing import written
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class Checked:
    """What a call was found to mean; the base of every op's own record."""


def wrong_value(name: str, value: Any, wanted: str) -> SpecViolation:
    """An argument that is no tensor has a value that it cannot have."""
    if isinstance(value, Tensor) and value.is_traced:
        wanted += "; an argument of a function under jit is one where static= names it"
    return SpecViolation("InvalidAttributeValue", f"{name} is {value!r}", wanted)


def ensure_tensor(name: str, value: Any) -> Tensor:
    """A tensor, or an array that becomes one."""
    try:
        return as_tensor(value)
    except UserError:
        raise UserError(
            f"{name} must be a tensor, not {_type_name(value)}; make one with weft.asarray"
        ) from None


def _type_name(value: Any) -> str:
    """The type of a value; with its library where that has tensors of its own."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__name__}" if kind.__name__ == "Tensor" else kind.__name__


def ensure_same_backend(lhs_name: str, lhs: Tensor, rhs_name: str, rhs: Tensor) -> None:
    """Both live on one backend."""
    if lhs.backend != rhs.backend:
        raise SpecViolation(
            "BackendMismatch",
            f"{lhs_name} is on backend {lhs.backend!r} and {rhs_name} on {rhs.backend!r}",
            f"move one of them, with .to({lhs.backend!r})",
        )


def ensure_same_dtype(lhs_name: str, lhs: Tensor, rhs_name: str, rhs: Tensor) -> None:
    """Both have one dtype. Nobody is told to round floats to whole numbers or truths."""
    if lhs.dtype is not rhs.dtype:
        keeps = lhs.dtype.is_float and not rhs.dtype.is_float
        name, wanted = (rhs_name, lhs.dtype) if keeps else (lhs_name, rhs.dtype)
        raise SpecViolation(
            "DTypeMismatch",
            f"{lhs_name} is {lhs.dtype} and {rhs_name} is {rhs.dtype}",
            f"convert {name}, with .astype(weft.{written(wanted)})",
        )


def ensure_dtype(name: str, x: Tensor, allowed: Iterable[DType], what: str) -> None:
    """The dtype is one of a family: `ensure_dtype("x", x, FLOATS, "floats")`."""
    if x.dtype not in set(allowed):
        names = ", ".join(map(str, in_order(allowed)))
        raise SpecViolation(
            "DTypeNotSupported",
            f"{name} of shape {listed(x.shape)} is {x.dtype}, but {what} are wanted",
            f"convert it with .astype; the dtypes are {names}",
        )


def ensure_rank(name: str, x: Tensor, rank: int, axes: str = "") -> None:
    """Exactly this rank; `axes` names what they are."""
    if x.ndim != rank:
        meaning = f" {axes}" if axes else ""
        raise SpecViolation(
            "RankMismatch",
            f"{name} {listed(x.shape)} has rank {x.ndim}, but rank {rank}{meaning} is wanted",
            "reshape it, or insert axes with None",
        )


def ensure_rank_at_least(name: str, x: Tensor, rank: int) -> None:
    """This rank or more."""
    if x.ndim < rank:
        raise SpecViolation(
            "RankMismatch",
            f"{name} {listed(x.shape)} has rank {x.ndim}, but at least {rank} is wanted",
            "insert axes with None",
        )


def ensure_shape_matches(lhs_name: str, lhs: Tensor, rhs_name: str, rhs: Tensor) -> None:
    """Both have one shape."""
    if lhs.shape != rhs.shape:
        raise SpecViolation(
            "ShapeMismatch",
            f"{lhs_name} {listed(lhs.shape)} and {rhs_name} {listed(rhs.shape)} differ in shape",
            "reshape or broadcast one of them",
        )


def ensure_shape(name: str, x: Tensor, shape: Shape, why: str) -> None:
    """Exactly this shape; `why` says where it comes from."""
    if x.shape != shape:
        raise SpecViolation(
            "ShapeMismatch",
            f"{name} has shape {listed(x.shape)}, but {listed(shape)} is wanted: {why}",
            "reshape it",
        )


def ensure_axis_in_bounds(name: str, x: Tensor, axis: Any) -> int:
    """The axis counted from the front."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise wrong_value("axis", axis, "it must be a whole number")
    try:
        return normalise_axis(int(axis), x.ndim)
    except SpecViolation as error:
        raise SpecViolation(
            error.code,
            f"axis {axis} is out of range for {name} {listed(x.shape)}",
            f"axes run from {-x.ndim} to {x.ndim - 1}" if x.ndim else "a scalar has no axes",
        ) from None


def ensure_axes(name: str, x: Tensor, axes: Any) -> tuple[int, ...]:
    """One axis, several, or None for all, counted from the front; none twice."""
    if axes is None:
        return tuple(range(x.ndim))
    given = axes if isinstance(axes, tuple | list) else (axes,)
    found = tuple(ensure_axis_in_bounds(name, x, axis) for axis in given)
    if len(set(found)) != len(found):
        raise wrong_value("axes", tuple(given), "they must not name an axis twice")
    return found


def ensure_known(name: str, dim: Dim) -> int:
    """A size that is a number; a dynamic dim is not."""
    if not isinstance(dim, int):
        raise SizeWanted(
            "DynamicDimensionMismatch",
            f"{name} is the dynamic dim {dim}, but its size must be known here",
            "call the function with this dim fixed",
        )
    return dim


def ensure_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of a few words."""
    known = list(choices)
    if value not in known:
        raise wrong_value(name, value, f"it can be {', '.join(map(repr, known))}")
    return str(value)


def ensure_positive(name: str, value: Any) -> int:
    """A whole number over 0."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) <= 0:
        raise wrong_value(name, value, "it must be a whole number over 0")
    return int(value)
