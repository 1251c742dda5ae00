"""Muon: momentum whose matrices are made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.foundation.errors import UserError
from weft.ops.array.elementwise import maximum, sqrt
from weft.ops.array.statistics import sum as total
from weft.ops.calls import public
from weft.ops.optim.optimiser import ByParameter, Parameter
from weft.ops.optim.schedules import Schedule
from weft.ops.optim.settings import count, number
from weft.ops.tensor import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""`a x + b x³ + c x⁵` takes singular values from 0 to 1 quickly near 1, and keeps them there."""


class Muon(ByParameter):
    """Steps of the momentum with all of its singular values near 1, for matrices only: give
    vectors, embeddings and heads to another optimiser, with `partition`."""

    elementwise = False

    slots = ("velocity",)

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-3,
        momentum: float = 0.95,
        *,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        rounds: int = 5,
        eps: float = 1e-7,
    ) -> None:
        super().__init__(rate)
        self.momentum = number("Muon", "momentum", momentum, below=1.0)
        self.weight_decay = number("Muon", "weight_decay", weight_decay)
        self.eps = number("Muon", "eps", eps)
        self.rounds = count("Muon", "rounds", rounds, 1)
        self.nesterov = nesterov

    def begin(self, params: Sequence[Parameter]) -> dict[str, Any]:
        for param in params:
            if param.tensor.ndim != 2:
                raise UserError(
                    f"[Muon] {param.name} is {param.tensor.type}, not a matrix; give it to another "
                    "optimiser, with optim.partition"
                )
        return super().begin(params)

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        velocity = held["velocity"] + (gradient - held["velocity"]) * (1.0 - self.momentum)
        way = gradient + (velocity - gradient) * self.momentum if self.nesterov else velocity
        rows, columns = param.type.static_shape
        long = math.sqrt(max(1.0, rows / columns))
        even = self._orthogonal(way, tall=rows > columns) * long
        return even + param * self.weight_decay if self.weight_decay else even, {
            "velocity": velocity
        }

    def _orthogonal(self, x: Tensor, *, tall: bool) -> Tensor:
        """x with its singular values near 1, by rounds of an odd polynomial."""
        x = x.mT if tall else x
        # The root of the sum of squares is no less than the largest singular value: all are from 0
        # to 1 then.
        x = x / maximum(sqrt(total(x * x)), self.eps)
        first, third, fifth = _QUINTIC
        for _ in range(self.rounds):
            # For x = u s v^T this is u (a s + b s³ + c s⁵) v^T: vectors stay, and the wider side is
            # never squared.
            square = x @ x.mT
            x = x * first + (square * third + square @ square * fifth) @ x
        return x.mT if tall else x
