"""`weft.optim`: optimisers as functions of pytrees.

    optimiser = optim.AdamW(3e-4)
    state = optimiser.init(model)
    model, state = optimiser.update(gradients, state, model)

An update is captured like everything else: under `jit` with `donate`, parameters and state change
in their buffers.
"""

from weft.ops.optim.adam import Adam, AdamW
from weft.ops.optim.clipping import clip_by_global_norm, global_norm
from weft.ops.optim.loss_scale import LossScale
from weft.ops.optim.optimiser import Optimiser
from weft.ops.optim.schedules import constant, cosine, step_decay, warmup
from weft.ops.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "LossScale",
    "Optimiser",
    "clip_by_global_norm",
    "constant",
    "cosine",
    "global_norm",
    "step_decay",
    "warmup",
]
