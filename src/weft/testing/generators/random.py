"""Random tensors inside random programs."""

from __future__ import annotations

from weft.foundation.dtypes import SI64, DType
from weft.ptir.ops.random import (
    STATE,
    PhiloxBits,
    PhiloxNormal,
    PhiloxUniform,
    RngNormal,
    RngState,
    RngUniform,
)
from weft.testing.draft import Item
from weft.testing.facts import Facts, anywhere
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


def _draw_dtype(g: Generator) -> DType:
    return g.dtype(RngUniform.dtypes["dtype"])


@generates(RngUniform)
def rng_uniform(g: Generator) -> None:
    dtype = _draw_dtype(g)
    # The same bits on every backend: multiples of 2^-p.
    facts = Facts(0.0, 1.0, 2.0**-dtype.precision)
    g.emit(RngUniform(g.shape(), dtype), facts=facts)


@generates(RngNormal)
def rng_normal(g: Generator) -> None:
    g.emit(RngNormal(g.shape(), _draw_dtype(g)), facts=Facts(-10, 10, None))


@generates(RngState)
def rng_state(g: Generator) -> None:
    g.emit(RngState(), facts=anywhere(SI64))


def _state(g: Generator) -> Item:
    return g.of_type(STATE)


@generates(PhiloxBits)
def philox_bits(g: Generator) -> None:
    dtype = g.dtype(PhiloxBits.dtypes["dtype"])
    g.emit(PhiloxBits(g.shape(), dtype), _state(g), facts=anywhere(dtype))


@generates(PhiloxUniform)
def philox_uniform(g: Generator) -> None:
    dtype = _draw_dtype(g)
    facts = Facts(0.0, 1.0, 2.0**-dtype.precision)
    g.emit(PhiloxUniform(g.shape(), dtype), _state(g), facts=facts)


@generates(PhiloxNormal)
def philox_normal(g: Generator) -> None:
    g.emit(PhiloxNormal(g.shape(), _draw_dtype(g)), _state(g), facts=Facts(-10, 10, None))
