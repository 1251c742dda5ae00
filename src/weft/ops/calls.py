"""How a function of the ops layer meets its caller: its mistakes are told in one sentence that
begins with `[name]` and carries the line of the user's code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from traceback import walk_tb
from typing import Any, TypeVar

from weft.foundation.errors import (
    Finding,
    SpecViolation,
    UserError,
    WeftError,
    WrongArguments,
    a_type,
)
from weft.ops.graph.context import arena_abroad, within
from weft.ops.lines import Line, is_inside, shown, user_line
from weft.ops.other_names import ARGUMENTS
from weft.ops.tracebacks import ending_outside

F = TypeVar("F", bound=Callable[..., Any])
PYTHON_ERRORS = (TypeError, ValueError, OverflowError, IndexError)
"""What Python raises where an argument is of a kind that nobody thought of."""


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
        except (SpecViolation, UserError) as error:
            raise explained(_name(function, args), error, user_line()) from None
        except PYTHON_ERRORS as error:
            raise refused(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def refused(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> Exception:
    """Arguments that the function does not take, in one sentence. An error of a function that the
    user gave is left as it is."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as found:
        strange = [key for key in kwargs if key not in known]
        other = ARGUMENTS.get(strange[0]) if strange else None
        hint = f"; {strange[0]} is called {other} here" if other in known else ""
        why = f"{found}; it takes {', '.join(known) or 'nothing'}{hint}"
    else:
        if not _is_ours(error):
            return error
        why = f"an argument is of a kind that is not taken: {error}; it takes {', '.join(known)}"
    where, name = shown(user_line()), _name(function, args)
    return ending_outside(WrongArguments(f"[{name}] {why}", "WrongArguments", where))


def _name(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """What the user calls: a function, a method, or a class where it is what makes its objects."""
    if function.__name__ == "__init__" and args:
        return type(args[0]).__name__
    return function.__name__.strip("_").removesuffix("_method")


def _is_ours(error: Exception) -> bool:
    """Whether an error arose in Weft and came through nobody else's function."""
    return all(is_inside(frame.f_code) for frame, _ in walk_tb(error.__traceback__))


def check_function(name: str, function: Any) -> None:
    """Say so where something else than a function is to be transformed."""
    if not callable(function):
        error = UserError(f"a function is wanted, not {a_type(function)}")
        raise explained(name, error, user_line())


def explained(name: str, error: WeftError, line: Line | None) -> WeftError:
    """The error with code, `[name]` and line in it, unless an inner call has put its own there. The
    frames inside Weft that it came through, and those it will, are of no use to the caller."""
    where = shown(line)
    if isinstance(error, SpecViolation):
        findings = [_named(name, finding, where) for finding in error.findings]
        return ending_outside(type(error).of(findings))
    assert isinstance(error, UserError)
    return ending_outside(error.at(name, where).with_traceback(None))


def _named(name: str, finding: Finding, where: str) -> Finding:
    if finding.why.startswith("["):
        return finding
    return Finding(finding.code, where or finding.where, f"[{name}] {finding.why}", finding.hint)
