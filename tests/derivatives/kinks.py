"""What functions do where they have a kink or a gap: the derivative written down, PyTorch's way to
ask for it, and JAX's answer where it is another one.

`docs/gradients.md` prints this table. A function is asked in f64, the way users write it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import weft
from weft import functional as F

inf, nan = math.inf, math.nan
Derivatives = tuple[Any, ...]
"""One for each input, of its shape."""


@dataclass(frozen=True)
class Kink:
    """A function at inputs where it is not smooth. The derivative is that of the sum of its
    results."""

    name: str
    """As users write it."""
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    """The same from the module torch and tensors."""
    at: tuple[Any, ...]
    wanted: Derivatives
    torch: Derivatives | None = None
    """What PyTorch gives, where that is something else."""
    jax: Derivatives | None = None
    """What JAX gives, where that is something else, as of version 0.10."""
    why: str = ""
    """Why not what PyTorch gives."""


def _same(name: str) -> dict[str, Any]:
    """A function that has one name everywhere, in `functional` or beside it."""
    ours = getattr(F, name) if hasattr(F, name) else getattr(weft, name)
    return {
        "ours": ours,
        "theirs": lambda t, *x: getattr(t.nn.functional if hasattr(F, name) else t, name)(*x),
    }


def _summed(name: str) -> dict[str, Any]:
    """A loss."""
    return {
        "ours": lambda x, y: getattr(F, name)(x, y, "sum"),
        "theirs": lambda t, x, y: getattr(t.nn.functional, name)(x, y, reduction="sum"),
    }


def _special(name: str) -> dict[str, Any]:
    return {
        "ours": getattr(weft.special, name),
        "theirs": lambda t, *x: getattr(t.special, name)(*x),
    }


def _norm(order: float) -> dict[str, Any]:
    return {
        "ours": lambda x: weft.linalg.vector_norm(x, ord=order),
        "theirs": lambda t, x: t.linalg.vector_norm(x, ord=order),
    }


def _one(x: Any) -> Any:
    return weft.ones_like(x)


_ALPHA, _SCALE = 1.6732632423543772, 1.0507009873554805
_MOST = 1e12
KINKS = [
    # Activations
    Kink("relu(x)", **_same("relu"), at=([0.0, -0.0],), wanted=([0.0, 0.0],)),
    Kink("relu6(x)", **_same("relu6"), at=([0.0, 6.0],), wanted=([0.0, 0.0],)),
    Kink("leaky_relu(x)", **_same("leaky_relu"), at=([0.0],), wanted=([0.01],), jax=([1.0],)),
    Kink("elu(x)", **_same("elu"), at=([0.0, -0.0, 800.0],), wanted=([1.0, 1.0, 1.0],)),
    Kink(
        "elu(x, 0.5)", lambda x: F.elu(x, 0.5), lambda t, x: t.nn.functional.elu(x, 0.5),
        at=([0.0],), wanted=([0.5],),
    ),
    Kink("celu(x)", **_same("celu"), at=([0.0, -0.0, 800.0],), wanted=([1.0, 1.0, 1.0],)),
    Kink("selu(x)", **_same("selu"), at=([0.0],), wanted=([_ALPHA * _SCALE],)),
    Kink("hardsigmoid(x)", **_same("hardsigmoid"), at=([-3.0, 3.0],), wanted=([0.0, 0.0],)),
    Kink("hardswish(x)", **_same("hardswish"), at=([-3.0, 3.0],), wanted=([0.0, 1.0],)),
    Kink("softplus(x)", **_same("softplus"), at=([0.0, 21.0],), wanted=([0.5, 1.0],)),
    # Choices
    Kink("abs(x)", **_same("abs"), at=([0.0, -0.0],), wanted=([0.0, 0.0],), jax=([1.0, 1.0],)),
    Kink("maximum(x, y)", **_same("maximum"), at=([1.0], [1.0]), wanted=([0.5], [0.5])),
    Kink("minimum(x, y)", **_same("minimum"), at=([1.0], [1.0]), wanted=([0.5], [0.5])),
    Kink(
        "clip(x, -1, 1)", lambda x: weft.clip(x, -1.0, 1.0), lambda t, x: t.clamp(x, -1.0, 1.0),
        at=([-1.0, 1.0],), wanted=([1.0, 1.0],), jax=([0.5, 0.5],),
    ),
    Kink(
        "clip(x, min=0)", lambda x: weft.clip(x, min=0.0), lambda t, x: t.clamp(x, min=0.0),
        at=([0.0, -0.0],), wanted=([1.0, 1.0],), jax=([0.5, 0.5],),
    ),
    Kink(
        "clip(x, y, z)", weft.clip, lambda t, x, y, z: t.clamp(x, y, z),
        at=([0.0, 2.0, 1.0, 5.0], [0.0, 0.0, 3.0, 3.0], [2.0, 2.0, 0.0, 0.0]),
        wanted=([1.0, 1.0, 0.0, 0.0], [0.0] * 4, [0.0, 0.0, 1.0, 1.0]),
        jax=([0.5, 0.5, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 1.0, 1.0]),
    ),
    Kink(
        "max(x)", weft.max, lambda t, x: t.amax(x), at=([1.0, 1.0, 0.0],), wanted=([0.5, 0.5, 0.0],)
    ),
    Kink(
        "min(x)", weft.min, lambda t, x: t.amin(x), at=([1.0, 1.0, 2.0],), wanted=([0.5, 0.5, 0.0],)
    ),
    Kink(
        "median(x)", weft.median, lambda t, x: t.median(x),
        at=([1.0, 1.0, 2.0],), wanted=([0.0, 1.0, 0.0],), torch=([0.5, 0.5, 0.0],),
        why="the element in the middle of a stable order gets all",
    ),
    # Steps
    Kink("sign(x)", **_same("sign"), at=([0.0],), wanted=([0.0],)),
    Kink("floor(x)", **_same("floor"), at=([1.0],), wanted=([0.0],)),
    Kink("round(x)", **_same("round"), at=([0.5],), wanted=([0.0],)),
    Kink(
        "x % 2", lambda x: x % 2.0, lambda t, x: x % 2.0,
        at=([0.0, -0.0, 2.0, -4.0],), wanted=([1.0] * 4,),
    ),
    Kink(
        "remainder(x, y)", **_same("remainder"),
        at=([2.0, -4.0, 3.0, 0.0], [2.0, 2.0, -3.0, 2.0]),
        wanted=([1.0] * 4, [-1.0, 2.0, 1.0, 0.0]),
    ),
    Kink(
        "copysign(x, y)", **_same("copysign"), at=([0.0], [-1.0]), wanted=([0.0], [0.0]),
        jax=([-1.0], [0.0]),
    ),
    # Roots, powers, angles
    Kink("sqrt(x)", **_same("sqrt"), at=([0.0],), wanted=([inf],)),
    Kink("rsqrt(x)", **_same("rsqrt"), at=([0.0],), wanted=([-inf],)),
    Kink("log(x)", **_same("log"), at=([0.0],), wanted=([inf],)),
    Kink(
        "x ** y", lambda x, y: x**y, lambda t, x, y: x**y,
        at=([0.0, 0.0, 0.0], [0.0, 1.0, 2.0]), wanted=([0.0, 1.0, 0.0], [0.0, 0.0, 0.0]),
        jax=([nan, 1.0, 0.0], [0.0, 0.0, 0.0]),
    ),
    Kink("asin(x)", **_same("asin"), at=([1.0, -1.0],), wanted=([inf, inf],)),
    Kink("acosh(x)", **_same("acosh"), at=([1.0],), wanted=([inf],)),
    Kink(
        "atan2(x, y)", **_same("atan2"), at=([0.0, -0.0], [0.0, -0.0]),
        wanted=([0.0, 0.0], [0.0, 0.0]), jax=([nan, nan], [nan, nan]),
    ),
    Kink(
        "hypot(x, y)", **_same("hypot"), at=([0.0], [0.0]), wanted=([0.0], [0.0]),
        torch=([nan], [nan]), jax=([0.5], [0.5]), why="it is a norm",
    ),
    Kink("entr(x)", **_special("entr"), at=([0.0, 1.0],), wanted=([inf, -1.0],)),
    Kink(
        "erfcx(x)", **_special("erfcx"), at=([-27.0, -1e30, 0.0],),
        wanted=([-inf, -inf, -2 / math.sqrt(math.pi)],),
    ),
    Kink("erfinv(x)", **_special("erfinv"), at=([-1.0, 1.0],), wanted=([inf, inf],)),
    Kink("logit(x)", **_special("logit"), at=([0.0, 1.0],), wanted=([inf, inf],)),
    Kink(
        "ndtri(x)", **_special("ndtri"), at=([0.0, 1.0],), wanted=([inf, inf],), jax=([0.0, 0.0],)
    ),
    Kink("sinc(x)", **_special("sinc"), at=([0.0],), wanted=([0.0],)),
    Kink(
        "xlogy(x, y)", **_special("xlogy"), at=([0.0, 0.0, 0.0], [math.e, 0.0, -1.0]),
        wanted=([1.0, 0.0, 0.0], [0.0, 0.0, 0.0]), torch=([1.0, 0.0, 0.0], [0.0, nan, 0.0]),
        jax=([1.0, -inf, nan], [0.0, nan, 0.0]), why="it is 0 for every y",
    ),
    Kink(
        "xlog1py(x, y)", **_special("xlog1py"), at=([0.0, 0.0], [math.e - 1, -1.0]),
        wanted=([1.0, 0.0], [0.0, 0.0]), torch=([1.0, 0.0], [0.0, nan]),
        jax=([1.0, -inf], [0.0, nan]), why="it is 0 for every y",
    ),
    # Lengths and spreads
    Kink(
        "std(x)", weft.std, lambda t, x: t.std(x, correction=0),
        at=([2.0, 2.0],), wanted=([0.0, 0.0],), jax=([nan, nan],),
    ),
    Kink(
        "var(x)", weft.var, lambda t, x: t.var(x, correction=0),
        at=([2.0, 2.0],), wanted=([0.0, 0.0],),
    ),
    *(
        Kink(
            f"vector_norm(x, ord={order})", **_norm(order), at=([0.0, 0.0],), wanted=([0.0, 0.0],),
            jax=([jax, jax],),
        )
        for order, jax in ((1, 1.0), (2, nan), (3, nan), (0.5, nan), (-1, nan), (inf, 0.25))
    ),
    Kink(
        "vector_norm(x, ord=0.5)", **_norm(0.5), at=([0.0, 1.0],), wanted=([0.0, 1.0],),
        jax=([inf, 1.0],),
    ),
    Kink(
        "vector_norm(x, ord=-2)", **_norm(-2), at=([0.0, 1.0],), wanted=([0.0, 0.0],),
        jax=([nan, 0.0],),
    ),
    Kink(
        "matrix_norm(x)", lambda x: weft.linalg.matrix_norm(x),
        lambda t, x: t.linalg.matrix_norm(x), at=([[0.0, 0.0]],), wanted=([[0.0, 0.0]],),
        jax=([[nan, nan]],),
    ),
    Kink("prod(x)", **_same("prod"), at=([0.0, 2.0, 3.0],), wanted=([6.0, 0.0, 0.0],)),
    Kink(
        "logsumexp(x)", F.logsumexp, lambda t, x: t.logsumexp(x, 0),
        at=([-inf, 0.0],), wanted=([0.0, 1.0],),
    ),
    # Losses
    Kink("l1_loss(x, y)", **_summed("l1_loss"), at=([1.0], [1.0]), wanted=([0.0], [0.0])),
    Kink(
        "huber_loss(x, y)", **_summed("huber_loss"), at=([0.0, 1.0], [0.0, 0.0]),
        wanted=([0.0, 1.0], [0.0, -1.0]),
    ),
    Kink(
        "smooth_l1_loss(x, y)", **_summed("smooth_l1_loss"), at=([0.0, 1.0], [0.0, 0.0]),
        wanted=([0.0, 1.0], [0.0, -1.0]),
    ),
    Kink(
        "binary_cross_entropy(x, y)", **_summed("binary_cross_entropy"),
        at=([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]),
        wanted=([0.0, 0.0, -_MOST, _MOST], [100.0, -100.0, 100.0, -100.0]),
        torch=([0.0, 0.0, -_MOST, _MOST], [inf, -inf, inf, -inf]),
        why="the derivative by the target is that of the loss, whose logarithms have a bound",
    ),
    Kink(
        "binary_cross_entropy_with_logits(x, y)", **_summed("binary_cross_entropy_with_logits"),
        at=([0.0, 800.0], [0.0, 1.0]), wanted=([0.5, 0.0], [0.0, -800.0]),
    ),
    Kink(
        "margin_ranking_loss(x, y, 1)", lambda x, y: F.margin_ranking_loss(x, y, _one(x)),
        lambda t, x, y: t.nn.functional.margin_ranking_loss(x, y, t.ones_like(x)),
        at=([1.0], [1.0]), wanted=([-1.0], [1.0]),
    ),
    Kink(
        "hinge_embedding_loss(x, -1)", lambda x: F.hinge_embedding_loss(x, -_one(x)),
        lambda t, x: t.nn.functional.hinge_embedding_loss(x, -t.ones_like(x)),
        at=([1.0],), wanted=([-1.0],),
    ),
    Kink(
        "multi_margin_loss(x, 0)", lambda x: F.multi_margin_loss(x, weft.tensor(0)),
        lambda t, x: t.nn.functional.multi_margin_loss(x, t.tensor(0)),
        at=([1.0, 0.0],), wanted=([0.0, 0.0],),
    ),
    Kink(
        "kl_div(x, y)", **_summed("kl_div"), at=([-1.0, -inf], [0.0, 0.0]),
        wanted=([0.0, 0.0], [0.0, 0.0]), torch=([0.0, 0.0], [nan, nan]),
        why="a class that is not there costs nothing",
    ),
]  # fmt: skip
