"""`weft.nn`: layers as modules. A module is a container of tensors and modules (a pytree), so that
`grad`, `jit` and the optimisers take it as it is."""

from typing import TYPE_CHECKING

from weft.ops.nn import init
from weft.ops.nn.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    SwiGLU,
    Tanh,
)
from weft.ops.nn.attention import MultiHeadAttention, TransformerBlock
from weft.ops.nn.containers import ModuleDict, ModuleList, Sequential
from weft.ops.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from weft.ops.nn.dropout import Dropout
from weft.ops.nn.embedding import Embedding
from weft.ops.nn.initialise import manual_seed, unfilled
from weft.ops.nn.keys import fold_in
from weft.ops.nn.linear import Bilinear, Linear
from weft.ops.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from weft.ops.nn.module import Module
from weft.ops.nn.normalisation import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
    SpectralNorm,
)
from weft.ops.nn.packed import Packed, unpacked
from weft.ops.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    Flatten,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    PixelShuffle,
    Upsample,
)
from weft.ops.nn.recurrent import GRU, LSTM, RNN
from weft.ops.nn.training import is_training, next_key, training
from weft.ops.other_names import missing

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "RNN",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "NLLLoss",
    "PReLU",
    "Packed",
    "PixelShuffle",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Softsign",
    "SpectralNorm",
    "SwiGLU",
    "Tanh",
    "TransformerBlock",
    "Upsample",
    "fold_in",
    "init",
    "is_training",
    "manual_seed",
    "next_key",
    "training",
    "unfilled",
    "unpacked",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.nn", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
