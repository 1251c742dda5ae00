"""`weft.functional`: the ops that models are written in, and the registry of their implementations.

Every op is written the same way: `check_<op>` validates the arguments and answers a `Checked`
record, `capture_<op>` writes the instructions into a session, and the public function does one
after the other. Nothing is computed until a tensor is read.
"""

from weft.ops.functional.activation import log_softmax, softmax
from weft.ops.functional.attention import attention, update_cache
from weft.ops.functional.linear import linear, matmul
from weft.ops.functional.normalisation import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from weft.ops.functional.registry import (
    configure,
    functional,
    implementations,
    implements,
    overrides,
    register,
)

__all__ = [
    "attention",
    "batch_norm",
    "configure",
    "functional",
    "group_norm",
    "implementations",
    "implements",
    "instance_norm",
    "layer_norm",
    "linear",
    "log_softmax",
    "matmul",
    "overrides",
    "register",
    "rms_norm",
    "softmax",
    "update_cache",
]
