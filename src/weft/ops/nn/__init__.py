"""`weft.nn`: layers as modules. A module is a container of tensors and modules (a pytree), so that
`grad`, `jit` and the optimisers take it as it is."""

from weft.ops.nn.attention import MultiHeadAttention, TransformerBlock
from weft.ops.nn.containers import Sequential
from weft.ops.nn.convolution import Conv1d, Conv2d, Conv3d
from weft.ops.nn.dropout import Dropout
from weft.ops.nn.embedding import Embedding
from weft.ops.nn.initialise import manual_seed
from weft.ops.nn.keys import fold_in
from weft.ops.nn.linear import Linear
from weft.ops.nn.module import Module
from weft.ops.nn.normalisation import BatchNorm, GroupNorm, LayerNorm, RMSNorm, SpectralNorm
from weft.ops.nn.training import is_training, next_key, training

__all__ = [
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiHeadAttention",
    "RMSNorm",
    "Sequential",
    "SpectralNorm",
    "TransformerBlock",
    "fold_in",
    "is_training",
    "manual_seed",
    "next_key",
    "training",
]
