"""`weft.functional`: the ops that models are written in, and the registry of their implementations.

Every op is written the same way: `check_<op>` validates the arguments and answers a `Checked`
record, `capture_<op>` writes the instructions into a session, and the public function does one
after the other. Nothing is computed until a tensor is read.
"""

from typing import TYPE_CHECKING

from weft.foundation.tracebacks import ending_outside
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
    softplus,
    swiglu,
)
from weft.ops.functional.attention import attention, update_cache
from weft.ops.functional.contraction import (
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
from weft.ops.functional.embedding import (
    embedding,
    rotary_embedding,
)
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
    rms_norm,
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
    pad,
    pixel_shuffle,
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
from weft.ops.other_names import function_advice

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
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "clip",
    "configure",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "cumsum",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "functional",
    "gather",
    "gelu",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
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
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mish",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "overrides",
    "pad",
    "pixel_shuffle",
    "register",
    "relu",
    "relu6",
    "rms_norm",
    "rotary_embedding",
    "scatter",
    "scatter_add",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "sort",
    "swiglu",
    "tanh",
    "tile",
    "top_k",
    "unregister",
    "update_cache",
    "where",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        error = AttributeError(f"weft.functional has no {name!r}{function_advice(name)}")
        raise error if name.startswith("__") else ending_outside(error)
