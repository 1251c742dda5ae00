"""Random ops. Each draws a key of its own from `nn.training(key)` around it: Philox, the numbers of
`weft.random`, not those of torch's generator."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.dtypes import F32, I1, SI64, DType
from weft.foundation.errors import UserError
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.table import is_tensor, rule, rules, w
from weft.ops.nn.training import next_key

R: Any = w.random


def _draw_key(name: str) -> Any:
    key = next_key(name)
    if key is None:
        raise UserError(
            f"{name} draws random numbers, and there is no key; call the model inside "
            "`with weft.nn.training(weft.random.key(seed))`",
            "KeyMissing",
        )
    return key


@rule("aten.native_dropout")
def _(x: Any, p: float, train: Any) -> Any:
    key = next_key("native_dropout") if train is not False and p else None
    if key is None or p == 0:
        return x, w.ones(x.shape, dtype=I1)
    if p == 1:
        return w.zeros_like(x), w.zeros(x.shape, dtype=I1)
    kept = R.uniform(key, x.shape) >= p
    return x * cast(kept, x.dtype) * (1.0 / (1.0 - p)), kept


def _draw_uniform(shape: Any, dtype: DType | None) -> Any:
    return cast(R.uniform(_draw_key("rand"), tuple(shape)), dtype or F32)


def _draw_normal(shape: Any, dtype: DType | None) -> Any:
    return cast(R.normal(_draw_key("randn"), tuple(shape)), dtype or F32)


def _draw_integers(low: int, high: int, shape: Any, dtype: DType | None) -> Any:
    return cast(R.randint(_draw_key("randint"), tuple(shape), low, high), dtype or SI64)


def _chance(x: Any, p: Any = None, **_: Any) -> Any:
    share = x if p is None else p
    drawn = R.uniform(_draw_key("bernoulli"), x.shape)
    return cast(drawn < (cast(share, F32) if is_tensor(share) else share), x.dtype)


def _choices(x: Any, count: int, replacement: bool = False, **_: Any) -> Any:
    """Rows of weights; the largest of weighted noise are a choice without repetition."""
    logs = w.log(x)
    if replacement:
        shape = (*x.shape[:-1], count, x.shape[-1])
        noise = R.gumbel(_draw_key("multinomial"), shape)
        return w.argmax(logs[..., None, :] + noise, axis=-1)
    noise = R.gumbel(_draw_key("multinomial"), x.shape)
    return cast(w.functional.top_k(logs + noise, count, -1)[1], SI64)


def _draw_attempts(x: Any, p: float, **_: Any) -> Any:
    """How many attempts with a chance of p it takes to succeed."""
    if p == 1:
        return w.ones_like(x)
    left = 1.0 - R.uniform(_draw_key("geometric"), x.shape)
    return cast(w.maximum(w.ceil(w.log(left) / math.log1p(-p)), 1.0), x.dtype)


@rule("aten.rrelu_with_noise_functional")
def _(
    x: Any, noise: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, **_: Any
) -> Any:
    if not training:
        return w.where(x > 0, x, x * ((lower + upper) / 2)), noise
    slopes = cast(R.uniform(_draw_key("rrelu"), x.shape), x.dtype) * (upper - lower) + lower
    slopes = w.where(x > 0, w.ones_like(x), slopes)
    return x * slopes, slopes


@rule("aten.rrelu_with_noise_backward")
def _(slope: Any, x: Any, noise: Any, lower: float, upper: float, training: bool, *_: Any) -> Any:
    return slope * (noise if training else w.where(x > 0, 1.0, (lower + upper) / 2))


rules(
    "aten.",
    rand=lambda size, dtype=None, **_: _draw_uniform(size, dtype),
    rand_like=lambda x, dtype=None, **_: _draw_uniform(x.shape, dtype or x.dtype),
    randn=lambda size, dtype=None, **_: _draw_normal(size, dtype),
    randn_like=lambda x, dtype=None, **_: _draw_normal(x.shape, dtype or x.dtype),
    randint_like=lambda x, high, dtype=None, **_: _draw_integers(
        0, high, x.shape, dtype or x.dtype
    ),
    randperm=lambda n, dtype=SI64, **_: cast(R.permutation(_draw_key("randperm"), n), dtype),
    bernoulli=_chance,
    uniform=lambda x, low=0.0, high=1.0, **_: _draw_uniform(x.shape, x.dtype) * (high - low) + low,
    normal_functional=lambda x, mean=0.0, std=1.0, **_: _draw_normal(x.shape, x.dtype) * std + mean,
    exponential=lambda x, lambd=1.0, **_: (
        cast(R.exponential(_draw_key("exponential"), x.shape), x.dtype) / lambd
    ),
    log_normal=lambda x, mean=1.0, std=2.0, **_: w.exp(_draw_normal(x.shape, x.dtype) * std + mean),
    cauchy=lambda x, median=0.0, sigma=1.0, **_: (
        w.tan((_draw_uniform(x.shape, x.dtype) - 0.5) * math.pi) * sigma + median
    ),
    geometric=_draw_attempts,
    multinomial=_choices,
)
rules(
    "aten.randint.",
    default=lambda high, size, dtype=None, **_: _draw_integers(0, high, size, dtype),
    low=lambda low, high, size, dtype=None, **_: _draw_integers(low, high, size, dtype),
)
rules(
    "aten.randint_like.",
    low_dtype=lambda x, low, high, dtype=None, **_: _draw_integers(
        low, high, x.shape, dtype or x.dtype
    ),
)


@rule("aten.normal")
def _(mean: Any, std: Any = 1.0, size: Any = None, dtype: DType | None = None, **_: Any) -> Any:
    shape = size if size is not None else w.broadcast_shapes(
        *(x.shape for x in (mean, std) if is_tensor(x))
    )  # fmt: skip
    kind = next((x.dtype for x in (mean, std) if is_tensor(x)), dtype)
    return _draw_normal(shape, kind) * std + mean
