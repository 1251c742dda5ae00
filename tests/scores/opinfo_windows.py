"""torch's windows for signals and its reductions under a mask, as lines of Weft's functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft
from tests.scores.opinfo_forms import OPS

w: Any = weft


def window(shape: Callable[..., Any]) -> Callable[..., Any]:
    """A window of `count` numbers from the phase of each, 0 to 2 pi, or to one step before it where
    the window is periodic."""

    def call(count: int, *, sym: bool = True, dtype: Any = w.float32, **more: Any) -> Any:
        if count < 2:
            return w.ones((count,), dtype=dtype)
        steps = count - 1 if sym else count
        turn = w.arange(count, dtype=w.float64) * (2 * math.pi / steps)
        return shape(turn, steps, **more).astype(dtype)

    return call


def cosines(turn: Any, a: Any) -> Any:
    return sum((-1) ** k * share * w.cos(turn * k) for k, share in enumerate(a))


def _offset(turn: Any, steps: int) -> Any:
    """How many elements each is from the middle."""
    return turn * (steps / (2 * math.pi)) - steps / 2


OPS |= {
    "signal.windows.bartlett": window(lambda t, n: 1 - w.abs(t / math.pi - 1)),
    "signal.windows.blackman": window(lambda t, n: cosines(t, (0.42, 0.5, 0.08))),
    "signal.windows.hamming": window(lambda t, n: cosines(t, (0.54, 0.46))),
    "signal.windows.hann": window(lambda t, n: cosines(t, (0.5, 0.5))),
    "signal.windows.nuttall": window(
        lambda t, n: cosines(t, (0.3635819, 0.4891775, 0.1365995, 0.0106411))
    ),
    "signal.windows.general_cosine": window(lambda t, n, a: cosines(t, a)),
    "signal.windows.general_hamming": window(
        lambda t, n, alpha=0.54: cosines(t, (alpha, 1 - alpha))
    ),
    "signal.windows.cosine": window(
        lambda t, n: w.sin((t * (n / (2 * math.pi)) + 0.5) * (math.pi / (n + 1)))
    ),
    "signal.windows.gaussian": window(
        lambda t, n, std=1.0: w.exp(-((_offset(t, n) / std) ** 2) / 2)
    ),
    "signal.windows.exponential": window(
        lambda t, n, center=None, tau=1.0: w.exp(
            -w.abs(_offset(t, n) + n / 2 - (n / 2 if center is None else center)) / tau
        )
    ),
    "signal.windows.kaiser": window(
        lambda t, n, beta=12.0: w.special.i0(
            beta * w.sqrt(w.maximum(1 - (2 * _offset(t, n) / n) ** 2, 0.0))
        ) / w.special.i0(w.asarray(float(beta), dtype=w.float64))
    ),
}  # fmt: skip


def masked(name: str, filler: float) -> Callable[..., Any]:
    """A reduction of the elements that a mask keeps: the others count for nothing."""

    def call(x: Any, *args: Any, mask: Any = None, **more: Any) -> Any:
        kept = x if mask is None else w.where(mask, x, filler)
        return OPS[name](kept, *args, **more)

    return call


for _theirs, _ours, _filler in (
    ("sum", "sum", 0.0), ("prod", "prod", 1.0), ("amax", "amax", -math.inf),
    ("amin", "amin", math.inf), ("argmax", "argmax", -math.inf), ("argmin", "argmin", math.inf),
    ("cumsum", "cumsum", 0.0), ("cumprod", "cumprod", 1.0), ("logsumexp", "logsumexp", -math.inf),
    ("softmax", "softmax", -math.inf), ("log_softmax", "log_softmax", -math.inf),
    ("softmin", "nn.functional.softmin", math.inf),
):  # fmt: skip
    OPS[f"masked.{_theirs}"] = masked(_ours, _filler)


def masked_mean(
    x: Any, dim: Any = None, keepdim: bool = False, *, mask: Any = None, **_: Any
) -> Any:
    if mask is None:
        return OPS["mean"](x, dim, keepdim)
    count = OPS["sum"](w.broadcast_to(mask, x.shape).astype(x.dtype), dim, keepdim)
    return OPS["sum"](w.where(mask, x, 0.0), dim, keepdim) / count


OPS["masked.mean"] = masked_mean
