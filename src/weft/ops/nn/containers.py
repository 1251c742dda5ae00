"""Modules made of modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from weft.ops.nn.dropout import Key, fold_in
from weft.ops.nn.module import Module
from weft.ops.nn.settings import check_callable


class Function(Module):
    """A plain function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Sequential(Module):
    """One after the other; plain functions may stand between the modules. A key is handed to the
    layers that take one, to each its own."""

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for number, layer in enumerate(layers):
            more = ", and a list of them is given as Sequential(*layers)"
            check_callable(type(self).__name__, f"layer {number}", layer, more)
        self.layers = tuple(x if isinstance(x, Module) else Function(x) for x in layers)

    def __call__(self, x: Any, *, key: Key | None = None) -> Any:
        for number, layer in enumerate(self.layers):
            if key is not None and "key" in inspect.signature(layer).parameters:
                x = layer(x, key=fold_in(key, number))
            else:
                x = layer(x)
        return x

    def __getitem__(self, index: int) -> Module:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)
