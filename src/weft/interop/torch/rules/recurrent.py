"""LSTM, GRU and RNN as one op: the steps of Weft's layers, on torch's flat list of weights."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import Unimplemented
from weft.interop.torch.rules.table import rule, w
from weft.ops.state import blank

N: Any = w.nn


def _layer(kind: Any, weights: Any, x: Any, settings: Any) -> Any:
    """A layer of Weft with these weights in it."""
    biases, layers, directions, batch_first, more = settings
    hidden = weights[1].shape[1]
    made = blank(kind)
    names = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * biases
    fields = {
        "inputs": x.shape[-1], "hidden": hidden, "layers": layers, "bias": biases,
        "batch_first": batch_first, "bidirectional": directions == 2, "dropout": N.Dropout(0.0),
    }  # fmt: skip
    supply = iter(weights)
    for layer in range(layers):
        for end in ("", "_reverse")[:directions]:
            for name in names:
                fields[f"{name}_l{layer}{end}"] = next(supply)
    for name, value in (fields | more).items():
        object.__setattr__(made, name, value)
    return made


def _run_layers(kind: Any, x: Any, state: Any, params: Any, given: Any, **more: Any) -> Any:
    biases, layers, dropout, train, bidirectional, batch_first = given
    if train and dropout:
        raise Unimplemented(kind.__name__, "dropout between the layers")
    if len(params) != layers * (1 + bidirectional) * (4 if biases else 2):
        raise Unimplemented(kind.__name__, "projections of the state")
    settings = (biases, layers, 1 + bidirectional, batch_first, more)
    return _layer(kind, params, x, settings)(x, state)


@rule("aten.lstm.input")
def _(x: Any, hx: Any, params: Any, *given: Any) -> Any:
    made, (hidden, cell) = _run_layers(N.LSTM, x, tuple(hx), params, given)
    return made, hidden, cell


@rule("aten.gru.input")
def _(x: Any, hx: Any, params: Any, *given: Any) -> Any:
    return _run_layers(N.GRU, x, hx, params, given)


@rule("aten.rnn_tanh.input")
def _(x: Any, hx: Any, params: Any, *given: Any) -> Any:
    return _run_layers(N.RNN, x, hx, params, given, nonlinearity="tanh")


@rule("aten.rnn_relu.input")
def _(x: Any, hx: Any, params: Any, *given: Any) -> Any:
    return _run_layers(N.RNN, x, hx, params, given, nonlinearity="relu")
