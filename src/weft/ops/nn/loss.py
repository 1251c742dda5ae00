"""Losses as layers: `CrossEntropyLoss(reduction="sum")(scores, classes)`."""

from __future__ import annotations

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
from weft.ops.nn.applied import Applied


class Loss(Applied):
    """The base of losses: of what a model gives, and of what it should."""

    operands = 2
    buffers = ("weight", "pos_weight")


class BCELoss(Loss):
    """The cross-entropy of probabilities with targets from 0 to 1."""

    function = staticmethod(binary_cross_entropy)


class BCEWithLogitsLoss(Loss):
    """The cross-entropy of scores with targets from 0 to 1."""

    function = staticmethod(binary_cross_entropy_with_logits)


class CrossEntropyLoss(Loss):
    """The cross-entropy of scores with classes."""

    function = staticmethod(cross_entropy)


class HuberLoss(Loss):
    """Squares near 0, straight lines beyond `delta`."""

    function = staticmethod(huber_loss)


class KLDivLoss(Loss):
    """The divergence of a target distribution from log-probabilities."""

    function = staticmethod(kl_div)


class L1Loss(Loss):
    """Absolute differences."""

    function = staticmethod(l1_loss)


class MSELoss(Loss):
    """Squared differences."""

    function = staticmethod(mse_loss)


class NLLLoss(Loss):
    """Log-probabilities of classes, negated."""

    function = staticmethod(nll_loss)


class SmoothL1Loss(Loss):
    """Squares within `beta` of 0, straight lines beyond."""

    function = staticmethod(smooth_l1_loss)
