"""From PTIR to Tiny: random numbers, of one state or of an array of states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Final

from weft.foundation.dims import static
from weft.foundation.dtypes import F32, F64, SI32, SI64, UI32, UI64, DType
from weft.foundation.scalar import Fn
from weft.ptir.ops import random
from weft.ptir.types import TensorType
from weft.tiny import build
from weft.tiny.from_ptir_row import Rows
from weft.tiny.ir import Binary, Iota, Unary, Value, Where, Words

_SINE: Final = (
    6.283185307179586, -41.341702240399286, 81.60524927592171, -76.70585973399697,
    42.05869277279178, -15.094603193516237, 3.8192140101029004, -0.7108163554575372,
    0.07361806688340619,
)  # fmt: skip
"""sin(2 pi t) / t in t^2 for a t of up to a quarter turn, to the last place of f64, ..."""
_SINE_OF_NARROW: Final = (
    6.283185307045925, -41.34170209666221, 81.60522366705713, -76.70416941593922,
    42.007783595943124, -14.381308068461449,
)  # fmt: skip
"""... and to 2^-35 of itself, for what is rounded to f32 or less."""


def stream_state(run: Value, stream: int) -> Value:
    """The state of a stream: the seed of the run, and the number of the stream beside how often the
    run has been here before, which `run` has in its upper half."""
    second = build.binary(Fn.EQ, Iota(SI64, (2,), 0), 1)
    own = Where(second, build.splat(stream, SI64, (2,)), build.splat(0, SI64, (2,)))
    return Binary(Fn.OR, run, own)


# -- numbers -------------------------------------------------------------------------------------


def _random_words(state: Value, *shape: int) -> Value:
    """Words of this shape for each state."""
    return Words(state, (*state.shape[:-1], *shape))


def _bits(state: Value, count: int, dtype: DType) -> Value:
    """`count` unsigned integers: the top bits of each element's words."""
    if dtype is UI64:
        pairs = build.cast(_random_words(state, count, 2), UI64)
        high, low = (_take_column(pairs, k) for k in (0, 1))
        return Binary(Fn.OR, build.binary(Fn.SHIFT_LEFT, high, 32), low)
    words = _random_words(state, count)
    top = words if dtype is UI32 else build.binary(Fn.SHIFT_RIGHT, words, 32 - dtype.bits)
    return build.cast(top, dtype)


def _take_column(pairs: Value, k: int) -> Value:
    """One of two columns, without its axis."""
    lead = pairs.shape[:-1]
    start = (*(0 for _ in lead), k)
    return build.reshape(build.shrink(pairs, start, (*lead, 1)), lead)


def _lower_uniform(state: Value, count: int, dtype: DType) -> Value:
    """`count` numbers in [0, 1): the top bits of each element's words; nothing rounds."""
    scale = 2.0**-dtype.precision
    bits, wide = (UI64, F64) if dtype is F64 else (UI32, F32)
    top = build.binary(Fn.SHIFT_RIGHT, _bits(state, count, bits), bits.bits - dtype.precision)
    return build.cast(build.binary(Fn.MUL, build.cast(top, wide), scale), dtype)


def _lower_normal(state: Value, count: int, dtype: DType) -> Value:
    """Box and Muller on pairs of uniforms, in f64 and rounded once."""
    half = (count + 1) // 2
    flat = build.cast(_lower_uniform(state, 2 * half, dtype), F64)
    lead = flat.shape[:-1]
    pairs = build.reshape(flat, (*lead, half, 2))
    zeros = tuple(0 for _ in lead)
    first, second = (
        build.expand(build.shrink(pairs, (*zeros, 0, k), (*lead, half, 1)), pairs.shape)
        for k in (0, 1)
    )
    spread = Unary(Fn.LOG1P, Unary(Fn.NEG, first))
    radius = Unary(Fn.SQRT, build.binary(Fn.MUL, spread, -2.0))
    # Both are sines of at most a quarter turn, found without rounding: where one is near 0, so is
    # its angle, which then has its full precision.
    past_half = build.binary(Fn.SUB, second, 0.5)
    size = Unary(Fn.ABS, past_half)
    rest = Unary(Fn.NEG, build.binary(Fn.SUB, size, 0.5))
    sine = Unary(Fn.NEG, Binary(Fn.COPYSIGN, Binary(Fn.MIN, size, rest), past_half))
    even = build.binary(Fn.EQ, Iota(SI32, pairs.shape, len(lead) + 1), 0)
    turns = Where(even, build.binary(Fn.SUB, size, 0.25), sine)
    wave = _sine_of_turns(turns, _SINE if dtype is F64 else _SINE_OF_NARROW)
    drawn = build.reshape(Binary(Fn.MUL, radius, wave), (*lead, 2 * half))
    return build.cast(build.shrink(drawn, (*zeros, 0), (*lead, count)), dtype)


def _sine_of_turns(turns: Value, series: Sequence[float]) -> Value:
    square = Binary(Fn.MUL, turns, turns)
    ratio: Value = build.splat(series[-1], F64, turns.shape)
    for coefficient in reversed(series[:-1]):
        ratio = build.binary(Fn.ADD, Binary(Fn.MUL, ratio, square), coefficient)
    return Binary(Fn.MUL, turns, ratio)


# -- rows ----------------------------------------------------------------------------------------


def _draw(
    op: random.RngUniform | random.RngNormal, args: Sequence[Value], output: TensorType
) -> Value:
    distribution = _lower_uniform if isinstance(op, random.RngUniform) else _lower_normal
    made = distribution(stream_state(args[0], op.stream or 0), output.size, output.dtype)
    return build.reshape(made, output.shape)


def _rng_state(op: random.RngState, args: Sequence[Value], output: TensorType) -> Value:
    return stream_state(args[0], op.stream or 0)


Distribution = Callable[[Value, int, DType], Value]
_DISTRIBUTIONS: Final[dict[type, Distribution]] = {
    random.PhiloxBits: _bits,
    random.PhiloxUniform: _lower_uniform,
    random.PhiloxNormal: _lower_normal,
}


def _philox(
    op: random.PhiloxBits | random.PhiloxUniform | random.PhiloxNormal,
    args: Sequence[Value],
    output: TensorType,
) -> Value:
    (state,) = args
    count = prod(static(dim) for dim in output.shape[len(state.shape) - 1 :])
    return build.reshape(_DISTRIBUTIONS[type(op)](state, count, output.dtype), output.shape)


ROWS: Final[Rows] = {
    random.RngUniform: _draw,
    random.RngNormal: _draw,
    random.RngState: _rng_state,
    random.PhiloxBits: _philox,
    random.PhiloxUniform: _philox,
    random.PhiloxNormal: _philox,
}
