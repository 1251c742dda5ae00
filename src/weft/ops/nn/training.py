"""`nn.training`: a block in which layers are in training.

    with nn.training(key):
        loss = F.cross_entropy(model(x), y)

`BatchNorm` and `SpectralNorm` move their state, and layers that draw random numbers get a key each,
in the order in which they are called. A layer that is told so by `training=` or `key=` does what it
is told.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.mode import Mode, mode, within_mode
from weft.ops.nn.keys import Key, fold_in, words


@public
def training(key: Key | None = None, *, enabled: bool = True) -> AbstractContextManager[None]:
    """Layers are in training inside the `with` block. Without a key nothing is dropped at random;
    `enabled=False` is evaluation inside another block."""
    if key is not None:
        words("training", key)
    return within_mode(Mode(enabled, key) if enabled else Mode())


@public
def is_training(told: bool | None = None) -> bool:
    """Whether a layer is in training: as it was told, or else as the block around it says."""
    return mode().training if told is None else told


@public
def next_key(name: str = "next_key") -> Key | None:
    """A key of its own for the layer that asks; None outside of blocks with a key."""
    now = mode()
    if now.key is None:
        return None
    if now.withheld:
        raise UserError(
            f"[{name}] draws random numbers inside {now.withheld}, which is traced once: they "
            "would be the same every time; hand it a key, with key=, that differs every time",
            "KeyWithheld",
        )
    now.drawn += 1
    return fold_in(now.key, now.drawn - 1)
