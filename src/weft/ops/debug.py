"""Looking at values while a program runs: `weft.debug.print` and `weft.debug.callback`."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.foundation.errors import UserError, a_type
from weft.ops.callbacks import effect
from weft.ops.calls import check_function, public
from weft.ops.other_names import missing

__all__ = ["callback", "print"]


@public
def callback(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Call the function with NumPy arrays in the place of tensors, for what it does: now, or in a
    traced function whenever the program runs. Calls keep their order. What the function returns is
    of no account; what it raises ends the run."""
    check_function("callback", function)
    effect(function, args, kwargs)


@public
def print(template: str, /, *args: Any, **kwargs: Any) -> None:  # noqa: A001
    """Print `template.format(*args, **kwargs)`, with arrays in the place of tensors: now, or in a
    traced function whenever the program runs. Lines keep their order."""
    if not isinstance(template, str):
        raise UserError(
            f"the first argument is {a_type(template)}; it must be the text to print, such as "
            "'x = {}'"
        )
    _check_template(template, args, kwargs)

    def printed(*values: Any, **named: Any) -> None:
        shown = [_show_array(value) for value in values]
        by_name = {name: _show_array(value) for name, value in named.items()}
        builtins.print(template.format(*shown, **by_name))

    effect(printed, args, kwargs)


def _check_template(template: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Every field of the template has a value, and every value a field."""
    used: set[int | str] = set()
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
        for at, field in enumerate(fields):
            first = field.partition(".")[0].partition("[")[0]
            used.add(at if not first else int(first) if first.isdigit() else first)
    except ValueError as error:
        raise UserError(f"{template!r} cannot be filled in: {error}") from None
    for key in used:
        if key not in kwargs and not (isinstance(key, int) and key < len(args)):
            raise UserError(f"{template!r} has a field {key}, but no such value is given")
    for unused in (*(n for n in range(len(args)) if n not in used), *(kwargs.keys() - used)):
        raise UserError(
            f"the value {unused} has no field in {template!r}; write {{}} where it should appear"
        )


def _show_array(value: Any) -> Any:
    """An array as it is printed: a scalar as a number, narrow floats as those that NumPy prints."""
    if not isinstance(value, np.ndarray):
        return value
    wide = value if value.dtype.kind in "biufc" else value.astype(np.float32)
    return wide.item() if not wide.shape else wide


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.debug", name, __all__)


def __dir__() -> list[str]:
    return __all__
