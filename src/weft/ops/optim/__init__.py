"""`weft.optim`: optimisers as functions of pytrees.

    optimiser = optim.chain(optim.clip(norm=1.0), optim.AdamW(3e-4), optim.average(0.999))
    state = optimiser.init(model)
    model, state = optimiser.update(gradients, state, model)

An update is captured like everything else: under `jit` with `donate`, parameters and state change
in their buffers.
"""

from typing import TYPE_CHECKING

from weft.ops.optim.adaptive import Adafactor, Adagrad, RMSprop
from weft.ops.optim.clipping import clip_by_global_norm, global_norm
from weft.ops.optim.combine import accumulate, chain, freeze, masked, partition
from weft.ops.optim.descent import SGD
from weft.ops.optim.loss_scale import LossScale
from weft.ops.optim.moments import LAMB, Adam, AdamW, Lion
from weft.ops.optim.optimiser import ByParameter, Optimiser, Parameter
from weft.ops.optim.orthogonal import Muon
from weft.ops.optim.schedules import (
    constant,
    cosine,
    exponential,
    joined,
    linear,
    one_cycle,
    step_decay,
    warmup,
    warmup_cosine,
)
from weft.ops.optim.sharded import sharded
from weft.ops.optim.transform import average, averaged, clip, decay, scale
from weft.ops.other_names import missing

__all__ = [
    "LAMB",
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "ByParameter",
    "Lion",
    "LossScale",
    "Muon",
    "Optimiser",
    "Parameter",
    "RMSprop",
    "accumulate",
    "average",
    "averaged",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant",
    "cosine",
    "decay",
    "exponential",
    "freeze",
    "global_norm",
    "joined",
    "linear",
    "masked",
    "one_cycle",
    "partition",
    "scale",
    "sharded",
    "step_decay",
    "warmup",
    "warmup_cosine",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.optim", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
