"""Modules made of modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from weft.ops.calls import public
from weft.ops.nn.keys import Key, fold_in
from weft.ops.nn.module import Module
from weft.ops.nn.settings import check_callable

ModuleList = list
"""Modules in a list are children of the module whose attribute it is: a plain list will do."""
ModuleDict = dict
"""The same for modules by name: a plain dict will do."""


class Function(Module):
    """A plain function as a module without parameters."""

    @public
    def __init__(self, function: Callable[..., Any]) -> None:
        check_callable(type(self).__name__, "function", function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Sequential(Module):
    """One after the other; plain functions may stand between the modules. `training` and a key are
    handed to the layers that take them, to each a key of its own."""

    @public
    def __init__(self, *layers: Callable[..., Any]) -> None:
        for number, layer in enumerate(layers):
            more = ", and a list of them is given as Sequential(*layers)"
            check_callable(type(self).__name__, f"layer {number}", layer, more)
        self.layers = tuple(x if isinstance(x, Module) else Function(x) for x in layers)

    def __call__(self, x: Any, *, training: bool | None = None, key: Key | None = None) -> Any:
        for number, layer in enumerate(self.layers):
            told: dict[str, Any] = {}
            if training is not None and takes(layer, "training"):
                told["training"] = training
            if key is not None and takes(layer, "key"):
                told["key"] = fold_in(key, number)
            x = layer(x, **told)
        return x

    def __getitem__(self, index: int) -> Module:
        return self.layers[index]

    def __len__(self) -> int:
        return len(self.layers)


def takes(layer: Callable[..., Any], name: str) -> bool:
    """Whether a layer has a parameter of this name. A function in a module's place is asked itself:
    it may be anything."""
    asked = layer.function if isinstance(layer, Function) else layer
    try:
        return name in inspect.signature(asked).parameters
    except (TypeError, ValueError):
        return False
