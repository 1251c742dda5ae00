"""How a function of the ops layer meets its caller: its mistakes are told in one sentence that
begins with `[name]` and carries the line of the user's code."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from weft.foundation.errors import Finding, SpecViolation, UserError, WeftError
from weft.ops.lines import Line, shown, user_line

F = TypeVar("F", bound=Callable[..., Any])


def public(function: F) -> F:
    """A function that users call: an error names the function and the user's line."""
    name = function.__name__.strip("_")

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (SpecViolation, UserError) as error:
            raise explained(name, error, user_line()) from None

    return call  # type: ignore[return-value]


def explained(name: str, error: WeftError, line: Line | None) -> WeftError:
    """The error with `[name]` and the line in it, unless an inner call has put its own there."""
    where = shown(line)
    if isinstance(error, SpecViolation):
        return type(error).of([_named(name, finding, where) for finding in error.findings])
    text = str(error)
    if text.startswith("["):
        return error
    return type(error)(f"[{name}] {text} ({where})" if where else f"[{name}] {text}")


def _named(name: str, finding: Finding, where: str) -> Finding:
    if finding.why.startswith("["):
        return finding
    return Finding(finding.code, where or finding.where, f"[{name}] {finding.why}", finding.hint)
