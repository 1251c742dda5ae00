"""Which ops torch decomposes before Weft sees them, and which it keeps."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._decomp import core_aten_decompositions
from torch.export import default_decompositions

_ATEN: Final = torch.ops.aten
WHOLE: Final = (
    _ATEN.scaled_dot_product_attention.default, _ATEN.lstm.input, _ATEN.gru.input,
    _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input, _ATEN.linear.default,
)  # fmt: skip
"""Attention is one kernel, recurrent layers are one loop: what they are made of is larger."""
RESIZED: Final = ("aten.upsample_", "aten._upsample_nearest_exact")
"""Beginnings of ops that give images another size. Their places follow from the sizes; taken apart
they are computed, and 16 gathers read the neighbours of a cubic."""
KINKED: Final = (
    _ATEN.celu.default, _ATEN.hardsigmoid.default, _ATEN.hardswish.default, _ATEN.mish.default,
    _ATEN.softplus.default, _ATEN.std.correction, _ATEN.std_mean.correction,
    _ATEN.linalg_vector_norm.default, _ATEN.binary_cross_entropy.default,
    _ATEN.xlogy.Tensor, _ATEN.xlogy.Scalar_Self, _ATEN.xlogy.Scalar_Other,
    _ATEN.special_xlog1py.default, _ATEN.special_xlog1py.self_scalar,
    _ATEN.special_xlog1py.other_scalar,
)  # fmt: skip
"""Ops that torch gives a derivative of their own. That of the bounds, roots and exponentials they
are taken apart into is another one where those have a kink, or NaN where those overflow."""


def of_export() -> Any:
    """The table for exported programs, whose gradients are taken here."""
    table = default_decompositions()
    for op in list(table):
        if op in WHOLE or op in KINKED or str(op).startswith(RESIZED):
            del table[op]
    # Taken apart it is a view like others, and gradients would go through it.
    table[_ATEN.detach.default] = _ATEN.detach_copy.default
    return table


def of_compile() -> Any:
    """The table for graphs that `torch.compile` hands over, and their gradients."""
    return core_aten_decompositions()
