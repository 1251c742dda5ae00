"""A function of `weft.functional` as a layer: its settings are given when the layer is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from weft.foundation.calls import name_advice
from weft.foundation.errors import WrongArguments
from weft.ops.calls import public
from weft.ops.nn.module import Module
from weft.ops.nn.settings import hashable
from weft.ops.other_names import ARGUMENTS
from weft.ops.state import attributes
from weft.ops.tensor import Tensor


class Applied(Module):
    """The base of layers without parameters of their own: `Softmax(axis=1)(x)` is
    `softmax(x, axis=1)`."""

    function: ClassVar[Callable[..., Tensor]]
    operands: ClassVar[int] = 1
    """How many arguments of the function are given in each call; the others are settings."""
    settings: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "function" in vars(cls):
            taken = list(inspect.signature(cls.function).parameters.values())
            cls.settings = inspect.Signature(taken[cls.operands :])

    @public
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            given = self.settings.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._refuse_arguments(error, kwargs) from None
        for name, value in given.items():
            setattr(self, name, hashable(value))

    def _refuse_arguments(self, error: TypeError, given: dict[str, Any]) -> WrongArguments:
        known = list(self.settings.parameters)
        takes, advice = ", ".join(known) or "nothing", name_advice(given, known, ARGUMENTS)
        return WrongArguments(f"{error}; it takes {takes}{advice}", "WrongArguments")

    def __call__(self, *args: Any) -> Tensor:
        known = self.settings.parameters
        return type(self).function(
            *args, **{n: v for n, v in attributes(self).items() if n in known}
        )

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in attributes(self).items())
        return f"{type(self).__name__}({given})"
