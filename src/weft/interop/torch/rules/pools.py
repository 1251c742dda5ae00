"""Pooling, and its gradients."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import SI64
from weft.interop.torch.rules.indices import scattered
from weft.interop.torch.rules.table import F, Rule, pair, product, rule, rules, w


def _apply_in_batch(function: Rule, x: Any, spatial: int) -> Any:
    """A function of [N, C, ...] on a tensor that may lack N."""
    if x.ndim == spatial + 2:
        return function(x)
    made = function(x[None])
    return tuple(each[0] for each in made) if isinstance(made, tuple) else made[0]


def _max_pool(spatial: int) -> Rule:
    def call(
        x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        window = pair(kernel_size, spatial)
        step = pair(stride, spatial) if stride else window
        function = getattr(F, f"max_pool{spatial}d")
        values, places = _apply_in_batch(
            lambda x: tuple(function(x, window, step, pair(padding, spatial),
                                     pair(dilation, spatial), ceil_mode=ceil_mode,
                                     return_indices=True)),
            x, spatial,
        )  # fmt: skip
        return values, w.astype(places, SI64)

    return call


def _largest_back(spatial: int) -> Rule:
    """Every gradient goes where its element came from."""

    def call(gradient: Any, x: Any, *settings: Any) -> Any:
        return unpooled(gradient, settings[-1], x.shape, spatial)

    return call


def unpooled(gradient: Any, places: Any, shape: Any, spatial: int) -> Any:
    front, inner = tuple(shape[:-spatial]), product(shape[-spatial:])
    flat = [w.reshape(each, (*front, -1)) for each in (gradient, places)]
    zeros = w.zeros((*front, inner), dtype=gradient.dtype)
    return w.reshape(scattered(zeros, -1, flat[1], flat[0], "add"), tuple(shape))


def _mean_pool(spatial: int) -> Rule:
    def call(
        x: Any, kernel_size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        window = pair(kernel_size, spatial)
        step = pair(stride, spatial) if stride else window
        around = pair(padding, spatial)
        function = getattr(F, f"avg_pool{spatial}d")

        def mean(x: Any, counts: bool) -> Any:
            return function(x, window, step, around, ceil_mode=ceil_mode,
                            count_include_pad=counts)  # fmt: skip

        def pooled(x: Any) -> Any:
            if divisor_override is None:
                return mean(x, count_include_pad)
            if not ceil_mode:
                return mean(x, True) * (product(window) / divisor_override)
            return _sum_windows(x, mean(x, False), window, step, around) / divisor_override

        return _apply_in_batch(pooled, x, spatial)

    return call


def _sum_windows(x: Any, mean: Any, window: Any, step: Any, around: Any) -> Any:
    """The sum of every window: the mean of its real elements times their number."""
    wide = [(0, 0), (0, 0)] + [(p, p + k + s) for p, k, s in zip(around, window, step, strict=True)]
    ones = F.pad(w.ones((1, 1, *x.shape[2:]), dtype=x.dtype), wide, "constant", 0.0)
    counts = getattr(F, f"avg_pool{len(window)}d")(ones, window, step) * float(product(window))
    return mean * counts[(slice(0, 1), slice(0, 1), *(slice(0, n) for n in mean.shape[2:]))]


def _pool_gradient(forward: Rule) -> Rule:
    """The gradient of a pooling, by that of the function."""

    def call(gradient: Any, x: Any, *settings: Any) -> Any:
        _, back = w.vjp(lambda x: forward(x, *settings), x)
        made = back(gradient)
        return made[0] if isinstance(made, tuple | list) else made

    return call


def _adaptive(spatial: int) -> Rule:
    function = getattr(F, f"adaptive_avg_pool{spatial}d")
    return lambda x, size: _apply_in_batch(lambda x: function(x, tuple(size)), x, spatial)


def _adaptive_back(spatial: int) -> Rule:
    return lambda gradient, x: _pool_gradient(_adaptive(spatial))(
        gradient, x, gradient.shape[-spatial:]
    )


def _adaptive_largest(spatial: int) -> Rule:
    """The largest of every part, and its number among the elements of these axes."""

    def call(x: Any, output_size: Any) -> Any:
        def found(x: Any) -> Any:
            shape = x.shape[2:]
            windows = [
                [(n * size // count, -((-(n + 1) * size) // count)) for n in range(count)]
                for size, count in zip(shape, pair(output_size, spatial), strict=True)
            ]
            return _pool_windows(x, windows)

        return _apply_in_batch(found, x, spatial)

    return call


def _pool_windows(x: Any, windows: Any) -> Any:
    shape = x.shape[2:]
    numbers = w.reshape(w.arange(product(shape)), shape)
    values: list[Any] = []
    places: list[Any] = []
    counts = [len(axis) for axis in windows]
    for at in range(product(counts)):
        rest = at
        where: list[int] = []
        for count in reversed(counts):
            where.insert(0, rest % count)
            rest //= count
        cut = tuple(slice(*windows[axis][n]) for axis, n in enumerate(where))
        block = w.reshape(x[(slice(None), slice(None), *cut)], (*x.shape[:2], -1))
        best = w.argmax(block, axis=-1)
        values.append(w.max(block, axis=-1))
        places.append(w.take(w.ravel(numbers[cut]), best, axis=0))
    final = (*x.shape[:2], *counts)
    return tuple(w.reshape(w.stack(each, axis=-1), final) for each in (values, places))


for _n in (2, 3):
    _ahead, _mean_of = _max_pool(_n), _mean_pool(_n)
    rules(
        "aten.",
        **{
            f"max_pool{_n}d_with_indices": _ahead,
            f"max_pool{_n}d_with_indices_backward": _largest_back(_n),
            f"avg_pool{_n}d": _mean_of,
            f"avg_pool{_n}d_backward": _pool_gradient(_mean_of),
            f"_adaptive_avg_pool{_n}d": _adaptive(_n),
            f"_adaptive_avg_pool{_n}d_backward": _adaptive_back(_n),
            f"adaptive_avg_pool{_n}d": _adaptive(_n),
            f"adaptive_max_pool{_n}d": _adaptive_largest(_n),
            f"adaptive_max_pool{_n}d_backward": _largest_back(_n),
        },
    )
rules("aten.", avg_pool1d=_mean_pool(1), max_pool1d_with_indices=_max_pool(1))


@rule("aten.max_pool2d")
def _(*given: Any, **more: Any) -> Any:
    return _max_pool(2)(*given, **more)[0]


@rule("aten.max_pool1d")
def _(*given: Any, **more: Any) -> Any:
    return _max_pool(1)(*given, **more)[0]
