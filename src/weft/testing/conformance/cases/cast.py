"""Conversion from every dtype to every dtype, and bits read as numbers of another."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import ALL, F16, F32, I1, SI8, SI64, DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    ODD,
    SHAPES,
    Array,
    Shape,
    apply,
    case,
    defined,
    stack,
    symbolic,
    trial,
)
from weft.testing.conformance.data import edges, joined, sample, special
from weft.testing.conformance.oracles.casts import convert
from weft.testing.conformance.oracles.patterns import reread
from weft.testing.conformance.oracles.rounding import (
    largest,
    magnitudes,
    nearest,
    part_dtype,
    saturated,
)


def cases() -> Iterator[Case]:
    """Every pair on the values that matter to it, and every shape from every dtype."""
    for source in ALL:
        for target in ALL:
            make = partial(_edge_trial, source, target)
            yield case("cast", source, f"to={target}", trial=make)
        others = [t for t in (F32, SI8, SI64, F16) if t is not source]
        for target in others[:3]:
            for shape_class, shape in SHAPES.items():
                make = partial(_cast_trial, source, target, shape)
                yield case("cast", source, f"to={target}", shape_class, trial=make)
            make = partial(_cast_trial, source, target, ODD, dynamic=True)
            yield case("cast", source, f"to={target}", "dynamic", trial=make)
    for source in defined("bitcast"):
        for target in defined("bitcast"):
            if target.bits == source.bits and (target.is_integer or source.is_integer):
                yield from _bitcasts(source, target)


def _bitcasts(source: DType, target: DType) -> Iterator[Case]:
    for name, shape in SHAPES.items():
        yield case(
            "bitcast", source, f"to={target}", name, trial=partial(_bits, source, target, shape)
        )
    make = partial(_bits, source, target, ODD, dynamic=True)
    yield case("bitcast", source, f"to={target}", "dynamic", trial=make)


def _cast_trial(source: DType, target: DType, shape: Shape, dynamic: bool = False) -> Trial:
    x = sample(source, shape, "cast", target, scale=100.0)
    dims = [symbolic(shape, DYNAMIC)] if dynamic else None
    return trial(
        apply("cast", [x], dims=dims, dtype=target), [x], exactly(convert(x, source, target))
    )


def _bits(source: DType, target: DType, shape: Shape, dynamic: bool = False) -> Trial:
    """Integers to floats are the way back of floats to integers."""
    dims = [symbolic(shape, DYNAMIC)] if dynamic else None
    number = sample(source if target.is_integer else target, shape, "bits")
    if target.is_integer:
        x, wanted = number, reread(number, source, target)
    else:
        x, wanted = reread(number, target, source), number
    return trial(apply("bitcast", [x], dims=dims, dtype=target), [x], exactly(wanted))


def _edge_trial(source: DType, target: DType) -> Trial:
    x = _list_interesting(source, target)
    return trial(apply("cast", [x], dtype=target), [x], exactly(convert(x, source, target)))


def _list_interesting(source: DType, target: DType) -> Array:
    """Values of the source at which the conversion to the target rounds, saturates or ties."""
    if source.is_complex:
        real = _list_interesting(part_dtype(source), part_dtype(target))
        return joined(source, real, np.roll(real, 1))
    if source is I1:
        return np.array([True, False, True])
    if source.is_integer:
        return stack(edges(source), saturated(_integers_around(target), source))
    floats = stack(special(source), nearest(_numbers_between(target), source))
    return stack(floats, edges(source)) if source.bits <= 8 else floats


def _integers_around(target: DType) -> Array:
    """Integers at the ends of the target and, for floats, at the ends of its precision."""
    if target.is_integer or target is I1:
        ends = [int(target.lowest), int(target.highest)]
    else:
        digits = part_dtype(target).precision
        ends = [1 << digits, 3 << digits, (1 << 62) + (1 << (62 - digits)), 440, 464, 65504, 65520]
        ends += [-end for end in ends]
    near = [end + step for end in ends for step in (-2, -1, 0, 1, 2)]
    return np.array(near, object)


def _numbers_between(target: DType) -> Array:
    """Real numbers at the ends of the target and halfway between its values."""
    if target.is_integer or target is I1:
        low, high = float(target.lowest), float(target.highest)
        ends = [low - 1, low - 0.5, low, low + 0.5, high - 0.5, high, high + 0.5, high + 1]
        return np.array([*ends, 0.99, -0.99, 1e30, -1e30, 3.5, -3.5])
    small = part_dtype(target)
    top = largest(small)
    ends = [top, -top, top * (1 + 2.0 ** -(small.precision + 1))]
    if small.bits >= 32:
        return np.array([*ends, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 1 + 2.0**-24 + 2.0**-50])
    values = magnitudes(small)
    at = np.unique(np.linspace(0, len(values) - 2, 120).astype(int))
    middle = (values[at] + values[at + 1]) / 2
    beyond = values[-1] + (values[-1] - values[-2]) / 2
    around = [middle, -middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), [beyond]]
    return np.concatenate([*around, ends])
