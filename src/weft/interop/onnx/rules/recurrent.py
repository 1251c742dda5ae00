"""RNN, GRU and LSTM, each direction a scan over the steps. What a step takes of x is one product
for the whole sequence, before the scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import SI32
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop.onnx.rules.activation import hard_sigmoid_of, rectified
from weft.interop.onnx.rules.elementwise import scalar_like
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Value, wf
from weft.ops import functional
from weft.ops.tensor import Tensor

Activation = Callable[[Tensor], Tensor]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    known: dict[str, Activation] = {
        "tanh": wf.tanh,
        "sigmoid": functional.sigmoid,
        "relu": rectified,
        "affine": lambda x: x * given(alpha, 1.0) + given(beta, 0.0),
        "leakyrelu": lambda x: functional.leaky_relu(x, given(alpha, 0.01)),
        "thresholdedrelu": lambda x: wf.where(x > given(alpha, 1.0), x, scalar_like(x, 0)),
        "scaledtanh": lambda x: wf.tanh(x * given(beta, 1.0)) * given(alpha, 1.0),
        "hardsigmoid": lambda x: hard_sigmoid_of(x, given(alpha, 0.2), given(beta, 0.5)),
        "elu": lambda x: functional.elu(x, given(alpha, 1.0)),
        "softsign": functional.softsign,
        "softplus": lambda x: functional.softplus(x, threshold=math.inf),
    }
    if name.lower() not in known:
        raise Unimplemented("activation", f"{name!r} is not known")
    return known[name.lower()]


@dataclass(frozen=True)
class Direction:
    """What one direction of a recurrent layer is made of."""

    weight: Tensor
    recurrence: Tensor
    bias: Tensor | None
    activations: Sequence[Activation]
    clip: float | None
    peephole: Tensor | None
    attributes: Any

    def act(self, index: int, x: Tensor) -> Value:
        kept = x if self.clip is None else wf.clip(x, -self.clip, self.clip)
        return self.activations[index](kept)

    def biases(self, gates: int) -> tuple[list[Any], list[Any]]:
        """Those of the inputs and those of the state, gate by gate; zeros where there are none."""
        if self.bias is None:
            return [0.0] * gates, [0.0] * gates
        parts = list(wf.split(self.bias, 2 * gates, axis=0))
        return parts[:gates], parts[gates:]


State = tuple[Tensor, ...]
Step = Callable[[Direction, Tensor, State], State]
"""The next state, of what x gives to the gates and of the state."""


def _gates(weight: Tensor, x: Tensor, count: int) -> list[Tensor]:
    return list(wf.split(wf.matmul(x, weight.mT), count, axis=-1))


def _rnn_step(d: Direction, given: Tensor, state: State) -> State:
    (h,) = state
    (own,), (back,) = d.biases(1)
    return (d.act(0, given + wf.matmul(h, d.recurrence.mT) + own + back),)


def _gru_step(d: Direction, given: Tensor, state: State) -> State:
    (h,) = state
    linear = d.attributes.get("linear_before_reset", 0)
    xz, xr, xn = wf.split(given, 3, axis=-1)
    (bz, br, bn), (cz, cr, cn) = d.biases(3)
    size = h.shape[-1]
    of_h = _gates(d.recurrence if linear else d.recurrence[: 2 * size], h, 3 if linear else 2)
    z = d.act(0, xz + of_h[0] + bz + cz)
    r = d.act(0, xr + of_h[1] + br + cr)
    if linear:
        n = d.act(1, xn + r * (of_h[2] + cn) + bn)
    else:
        n = d.act(1, xn + wf.matmul(r * h, d.recurrence[2 * size :].mT) + cn + bn)
    return ((1 - z) * n + z * h,)


def _lstm_step(d: Direction, given: Tensor, state: State) -> State:
    h, c = state
    own, back = d.biases(4)
    of_x, of_h = wf.split(given, 4, axis=-1), _gates(d.recurrence, h, 4)
    pairs = zip(of_x, of_h, own, back, strict=True)
    i, o, f, g = (a + b + first + second for a, b, first, second in pairs)
    peep = [None] * 3 if d.peephole is None else list(wf.split(d.peephole, 3, axis=0))
    i = d.act(0, i if peep[0] is None else i + peep[0] * c)
    if d.attributes.get("input_forget", 0):
        f = 1 - i
    else:
        f = d.act(0, f if peep[2] is None else f + peep[2] * c)
    now = f * c + i * d.act(1, g)
    o = d.act(0, o if peep[1] is None else o + peep[1] * now)
    return o * d.act(2, now), now


def _run_layer(
    call: Call, x: Tensor, weight: Tensor, recurrence: Tensor, bias: Tensor | None,
    lengths: Tensor | None, initial: Sequence[Tensor | None], peephole: Tensor | None,
    step: Step, defaults: Sequence[str],
) -> tuple[Tensor, ...]:  # fmt: skip
    """All directions of a layer: the states of every step, and the last ones."""
    batch_first = bool(call.attr("layout", 0))
    if batch_first:
        x = wf.swapaxes(x, 0, 1)
        initial = [None if each is None else wf.swapaxes(each, 0, 1) for each in initial]
    kind = call.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    count = 2 if kind == "bidirectional" else 1
    if int(weight.shape[0]) != count:
        raise SpecViolation("ShapeMismatch", f"{kind} weights {weight.type}")
    whole, lasts = [], []
    for index in range(count):
        own = _direction(call, index, count, weight, recurrence, bias, peephole, defaults)
        start = _initial_state(x, int(recurrence.shape[-1]), initial, index)
        back = kind == "reverse" or index == 1
        states, last = _run_direction(own, x, lengths, start, step, back)
        whole.append(states)
        lasts.append(last)
    y = wf.stack(whole, axis=1)
    ends = [wf.stack([last[i] for last in lasts], axis=0) for i in range(len(lasts[0]))]
    if batch_first:
        y = wf.permute_dims(y, (2, 0, 1, 3))
        ends = [wf.swapaxes(each, 0, 1) for each in ends]
    return y, *ends


def _direction(
    call: Call, index: int, count: int, weight: Tensor, recurrence: Tensor, bias: Tensor | None,
    peephole: Tensor | None, defaults: Sequence[str],
) -> Direction:  # fmt: skip
    each = len(defaults)
    names = list(call.attr("activations") or [*defaults] * count)
    if len(names) != each * count:
        raise SpecViolation("MalformedModel", f"{len(names)} activations, not {each * count}")
    alphas, betas = (
        list(call.attr("activation_alpha") or []),
        list(call.attr("activation_beta") or []),
    )
    made = []
    for at, name in enumerate(names):
        takes = name.lower() not in ("tanh", "sigmoid", "relu", "softsign", "softplus")
        alpha = alphas.pop(0) if takes and alphas else None
        beta_too = name.lower() in ("affine", "scaledtanh", "hardsigmoid")
        beta = betas.pop(0) if beta_too and betas else None
        if at // each == index:
            made.append(_activation(name, alpha, beta))
    return Direction(
        weight[index], recurrence[index], None if bias is None else bias[index], made,
        call.attr("clip"), None if peephole is None else peephole[index], call.node.attributes,
    )  # fmt: skip


def _initial_state(x: Tensor, hidden: int, initial: Sequence[Tensor | None], index: int) -> State:
    none = wf.zeros((int(x.shape[1]), hidden), dtype=x.dtype)
    return tuple(none if each is None else each[index] for each in initial)


def _reverse_steps(x: Tensor, lengths: Tensor | None) -> Value:
    """The steps in reverse, each row up to its length."""
    if lengths is None:
        return wf.flip(x, axis=0)
    steps = wf.arange(int(x.shape[0]), dtype=SI32).reshape((-1, 1))
    ends = lengths.astype(SI32).reshape((1, -1))
    at = wf.where(steps < ends, ends - 1 - steps, steps)
    at = wf.broadcast_to(at.reshape((*at.shape, *[1] * (x.ndim - 2))), x.shape)
    return wf.take_along_axis(x, at, axis=0)


def _run_direction(
    d: Direction, x: Tensor, lengths: Tensor | None, start: State, step: Step, back: bool
) -> tuple[Tensor, State]:
    of_x = wf.matmul(x, d.weight.mT)
    given = _reverse_steps(of_x, lengths) if back else of_x
    steps = wf.arange(int(x.shape[0]), dtype=SI32)
    ends = None if lengths is None else lengths.astype(SI32).reshape((-1, 1))

    def body(state: State, inputs: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
        now, at = inputs
        new = step(d, now, state)
        if ends is None:
            return new, new[0]
        kept = tuple(wf.where(at < ends, a, b) for a, b in zip(new, state, strict=True))
        return kept, wf.where(at < ends, new[0], wf.zeros_like(new[0]))

    last, states = wf.scan(body, start, (given, steps))
    return (_reverse_steps(states, lengths) if back else states), last


@rule("RNN")
def rnn(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
    lengths: Tensor | None = None, h: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _run_layer(call, x, w, r, b, lengths, [h], None, _rnn_step, ["Tanh"])


@rule("GRU")
def gru(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
    lengths: Tensor | None = None, h: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _run_layer(call, x, w, r, b, lengths, [h], None, _gru_step, ["Sigmoid", "Tanh"])


@rule("LSTM")
def lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None,
    lengths: Tensor | None = None, h: Tensor | None = None, c: Tensor | None = None,
    p: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    names = ["Sigmoid", "Tanh", "Tanh"]
    return _run_layer(call, x, w, r, b, lengths, [h, c], p, _lstm_step, names)
