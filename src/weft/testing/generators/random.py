"""Random tensors inside random programs."""

from __future__ import annotations

from weft.foundation.dtypes import DType
from weft.ptir.ops.random import RngNormal, RngUniform
from weft.testing.facts import Facts
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


def _dtype(g: Generator) -> DType:
    return g.dtype(RngUniform.dtypes["dtype"])


@generates(RngUniform)
def rng_uniform(g: Generator) -> None:
    dtype = _dtype(g)
    # The same bits on every backend: multiples of 2^-p.
    facts = Facts(0.0, 1.0, 2.0**-dtype.precision)
    g.emit(RngUniform(g.shape(), dtype), facts=facts)


@generates(RngNormal)
def rng_normal(g: Generator) -> None:
    g.emit(RngNormal(g.shape(), _dtype(g)), facts=Facts(-10, 10, None))
