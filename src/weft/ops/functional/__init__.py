"""`weft.functional`: the ops that models are written in, and the registry of their implementations.

Every op is written the same way: `check_<op>` validates the arguments and answers a `Checked`
record, `capture_<op>` writes the instructions into a session, and the public function does one
after the other. Nothing is computed until a tensor is read.
"""

from typing import TYPE_CHECKING

from weft.ops.array.elementwise import clip, tanh
from weft.ops.array.manipulation import tile
from weft.ops.array.searching import where
from weft.ops.array.sorting import sort
from weft.ops.array.statistics import cumulative_sum as cumsum
from weft.ops.functional.activation import (
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softmin,
    softplus,
    swiglu,
)
from weft.ops.functional.attention import attention, segments_of, update_cache
from weft.ops.functional.contraction import (
    bilinear,
    einsum,
)
from weft.ops.functional.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from weft.ops.functional.distance import (
    cosine_embedding_loss,
    cosine_similarity,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    pairwise_distance,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
)
from weft.ops.functional.embedding import (
    embedding,
    rotary_embedding,
)
from weft.ops.functional.grouped import grouped_matmul
from weft.ops.functional.indexing import (
    gather,
    one_hot,
    scatter,
    scatter_add,
    top_k,
)
from weft.ops.functional.linear import linear, matmul
from weft.ops.functional.loss import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from weft.ops.functional.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    normalize,
    rms_norm,
)
from weft.ops.functional.pointwise import (
    celu,
    hardshrink,
    hardtanh,
    prelu,
    quick_gelu,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from weft.ops.functional.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from weft.ops.functional.rearrange import (
    channel_shuffle,
    pad,
    pixel_shuffle,
    pixel_unshuffle,
)
from weft.ops.functional.registry import (
    configure,
    functional,
    implementations,
    implements,
    overrides,
    register,
    unregister,
)
from weft.ops.functional.resampling import (
    interpolate,
)
from weft.ops.functional.stochastic import (
    dropout,
)
from weft.ops.functional.unpooling import (
    fold,
    max_unpool1d,
    max_unpool2d,
    max_unpool3d,
    unfold,
)
from weft.ops.other_names import missing

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "clip",
    "configure",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "cumsum",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "fold",
    "functional",
    "gather",
    "gaussian_nll_loss",
    "gelu",
    "glu",
    "group_norm",
    "grouped_matmul",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "implementations",
    "implements",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "margin_ranking_loss",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "overrides",
    "pad",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "quick_gelu",
    "register",
    "relu",
    "relu6",
    "rms_norm",
    "rotary_embedding",
    "scatter",
    "scatter_add",
    "segments_of",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "sort",
    "swiglu",
    "tanh",
    "tanhshrink",
    "threshold",
    "tile",
    "top_k",
    "triplet_margin_loss",
    "unfold",
    "unregister",
    "update_cache",
    "where",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.functional", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
