"""Which ops torch takes apart before Weft sees them, and which stay whole."""

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


def of_export() -> Any:
    """The table for exported programs."""
    table = default_decompositions()
    for op in WHOLE:
        if op in table:
            del table[op]
    return table


def of_compile() -> Any:
    """The table for graphs that `torch.compile` hands over, and their gradients."""
    return core_aten_decompositions()
