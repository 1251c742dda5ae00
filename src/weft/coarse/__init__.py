"""Coarse ops (softmax, attention, convolution, norms): each has a type rule, and a decomposition
into PTIR that is its meaning. Importing this package fills the tables of `weft.ptir`.

`byteir.*` ops are public under that name; `weft.conv`, `weft.attention`, `weft.fourier`,
`weft.grouped_matmul` and `weft.grouped_outer` are Weft's own. The face of `weft.ptir` imports this
package, so that a custom call always finds its class.
"""

from weft.coarse import (
    activations,
    affine,
    attention,
    convolution,
    extremes,
    flash,
    fourier,
    grouped,
    norms,
    positions,
    resize,
    sampling,
    softmax,
)
from weft.ptir.composite import Composite, expand
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.op import BY_TARGET

DECOMPOSITIONS.update({cls: expand for cls in BY_TARGET.values() if issubclass(cls, Composite)})

__all__ = [
    "activations",
    "affine",
    "attention",
    "convolution",
    "extremes",
    "flash",
    "fourier",
    "grouped",
    "norms",
    "positions",
    "resize",
    "sampling",
    "softmax",
]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
