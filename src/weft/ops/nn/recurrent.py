"""Recurrent layers: `RNN`, `LSTM`, `GRU`, with the names, gates and layouts of torch, so that a
state dict of one is a state dict of the other.

What a step takes of x is one product for the whole sequence; the steps are one `scan`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.arithmetic import as_tensor
from weft.ops.array.creation import zeros
from weft.ops.array.elementwise import tanh
from weft.ops.array.manipulation import concat, flip, moveaxis, stack
from weft.ops.calls import public
from weft.ops.control_flow import scan
from weft.ops.functional.activation import relu, sigmoid
from weft.ops.functional.linear import linear
from weft.ops.nn.dropout import Dropout
from weft.ops.nn.initialise import uniform_parameter
from weft.ops.nn.keys import Key, fold_in
from weft.ops.nn.module import Module
from weft.ops.nn.settings import is_positive_whole
from weft.ops.tensor import Tensor


class Recurrent(Module):
    """The base of recurrent layers. x is [steps, batch, inputs], with `batch_first` [batch, steps,
    inputs], without a batch [steps, inputs]; the result is a pair of what the last layer gives at
    every step, [.., hidden], and the last state of every layer and direction."""

    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    """How many tensors the state of a step is."""

    @public
    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int = 1,
        *,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DType | str = "f32",
    ) -> None:
        name = type(self).__name__
        for what, value in (("inputs", inputs), ("hidden", hidden), ("layers", layers)):
            if not is_positive_whole(value):
                raise UserError(f"[{name}] {what} is {value!r}; it must be a whole number over 0")
        self.inputs, self.hidden, self.layers = inputs, hidden, layers
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout = Dropout(dropout)
        bound = 1.0 / math.sqrt(hidden)
        for layer in range(layers):
            width = inputs if layer == 0 else hidden * len(self._directions)
            for end in self._directions:
                parts: list[tuple[str, tuple[int, ...]]] = [
                    ("weight_ih", (width,)), ("weight_hh", (hidden,)), ("bias_ih", ()),
                    ("bias_hh", ()),
                ]  # fmt: skip
                for part, shape in parts[: 4 if bias else 2]:
                    made = uniform_parameter((self.gates * hidden, *shape), bound, dtype)
                    setattr(self, f"{part}_l{layer}{end}", made)

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @abstractmethod
    def step(self, given: Tensor, state: tuple[Tensor, ...], *own: Any) -> tuple[Tensor, ...]:
        """The next state, of what x gives to every gate and of the state; `own` are the weight and
        the bias of the state."""

    @public
    def __call__(self, x: Any, state: Any = None, *, key: Key | None = None) -> Any:
        x = as_tensor(x)
        if x.ndim not in (2, 3) or x.shape[-1] != self.inputs:
            raise SpecViolation(
                "ShapeMismatch",
                f"x is {x.type}, but {type(self).__name__} takes {self.inputs} features of two "
                "or three axes: steps, batch, features",
                "insert or remove axes, or make a layer of other inputs",
            )
        single, turned = x.ndim == 2, x.ndim == 3 and self.batch_first
        x = x[:, None] if single else moveaxis(x, 0, 1) if turned else x
        x, last = self._run(x, self._start(x, state, single), key)
        x = x[:, 0] if single else moveaxis(x, 0, 1) if turned else x
        held = tuple(part[:, 0] if single else part for part in last)
        return x, held[0] if self.states == 1 else held

    def _start(self, x: Tensor, state: Any, single: bool) -> tuple[Tensor, ...]:
        """The first state of every layer and direction, [layers * directions, batch, hidden]."""
        shape = (self.layers * len(self._directions), x.shape[1], self.hidden)
        if state is None:
            return (zeros(shape, dtype=x.dtype),) * self.states
        given = (state,) if self.states == 1 else tuple(state)
        if len(given) != self.states:
            raise UserError(f"the state is {len(given)} tensors, not {self.states}: (hidden, cell)")
        parts = tuple(as_tensor(part)[:, None] if single else as_tensor(part) for part in given)
        for part in parts:
            if part.shape != shape:
                raise SpecViolation(
                    "ShapeMismatch",
                    f"a state of shape {part.shape} is given, but {shape} is wanted: layers times "
                    "directions, batch, hidden",
                    "give the state that an earlier call returned, or none",
                )
        return parts

    def _run(
        self, x: Tensor, start: tuple[Tensor, ...], key: Key | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All layers on x [steps, batch, features]."""
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.layers):
            if layer:
                x = self.dropout(x, None if key is None else fold_in(key, layer))
            given = []
            for end in self._directions:
                state = tuple(part[len(last)] for part in start)
                made, after = self._direction(x, state, f"_l{layer}{end}", bool(end))
                given.append(made)
                last.append(after)
            x = given[0] if len(given) == 1 else concat(given, axis=-1)
        return x, tuple(stack(list(parts)) for parts in zip(*last, strict=True))

    def _direction(
        self, x: Tensor, state: tuple[Tensor, ...], name: str, backward: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction: what it gives at every step, and its last state."""
        weight, bias = getattr(self, f"weight_hh{name}"), getattr(self, f"bias_hh{name}", None)
        gates = linear(x, getattr(self, f"weight_ih{name}"), getattr(self, f"bias_ih{name}", None))

        def body(held: tuple[Tensor, ...], given: Tensor) -> Any:
            after = self.step(given, held, weight, bias)
            return after, after[0]

        after, made = scan(body, state, flip(gates, axis=0) if backward else gates)
        return flip(made, axis=0) if backward else made, after

    def _parts(self, x: Tensor) -> list[Tensor]:
        """The gates, side by side on the last axis, one by one."""
        return [x[..., n * self.hidden : (n + 1) * self.hidden] for n in range(self.gates)]


class RNN(Recurrent):
    """`h = tanh(W x + b + U h + c)`, or with `nonlinearity="relu"` that."""

    @public
    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int = 1,
        *,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: DType | str = "f32",
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise UserError(f"[RNN] nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity
        super().__init__(
            inputs, hidden, layers, bias=bias, batch_first=batch_first, dropout=dropout,
            bidirectional=bidirectional, dtype=dtype,
        )  # fmt: skip

    def step(self, given: Tensor, state: tuple[Tensor, ...], *own: Any) -> tuple[Tensor, ...]:
        total = given + linear(state[0], *own)
        return (tanh(total) if self.nonlinearity == "tanh" else relu(total),)


class LSTM(Recurrent):
    """A cell beside the state, with gates for what enters, what stays and what is shown. The state
    is the pair (hidden, cell)."""

    gates = 4
    states = 2

    def step(self, given: Tensor, state: tuple[Tensor, ...], *own: Any) -> tuple[Tensor, ...]:
        hidden, cell = state
        enters, stays, new, shown = self._parts(given + linear(hidden, *own))
        cell = sigmoid(stays) * cell + sigmoid(enters) * tanh(new)
        return sigmoid(shown) * tanh(cell), cell


class GRU(Recurrent):
    """Gates for what of the state counts in the new one, and for how much of it stays."""

    gates = 3

    def step(self, given: Tensor, state: tuple[Tensor, ...], *own: Any) -> tuple[Tensor, ...]:
        (hidden,) = state
        counts, stays, new = self._parts(given)
        counted, stayed, old = self._parts(linear(hidden, *own))
        update = sigmoid(stays + stayed)
        fresh = tanh(new + sigmoid(counts + counted) * old)
        return (fresh + update * (hidden - fresh),)
