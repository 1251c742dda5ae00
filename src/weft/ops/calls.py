"""How functions of the ops layer report mistakes: in one sentence that begins with `[name]` and
carries the line of the user's code; and where the arrays among their arguments become tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from weft.foundation import calls
from weft.foundation.calls import MISTAKES, PYTHON_ERRORS, called, check_function, explained
from weft.foundation.lines import user_line
from weft.ops.graph.context import arena_abroad, within
from weft.ops.other_names import ARGUMENTS

F = TypeVar("F", bound=Callable[..., Any])
__all__ = ["MISTAKES", "PYTHON_ERRORS", "check_function", "explained", "public", "refused"]


def public(function: F) -> F:
    """A function that users call: what it makes of arrays and numbers is on the backend of its
    tensors, and an error names the function and the user's line. A form of it that is a method only
    has `_method` behind its name."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            abroad = arena_abroad(args, kwargs)
            if abroad is None:
                return function(*args, **kwargs)
            with within(abroad):
                return function(*args, **kwargs)
        except MISTAKES as error:
            raise explained(called(function, args), error, user_line()) from None
        except PYTHON_ERRORS as error:
            raise refused(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def refused(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Exception:
    """Arguments that the function does not take, in one sentence, with the names that other
    libraries have for them in mind."""
    return calls.refused(function, args, kwargs, error, ARGUMENTS)
