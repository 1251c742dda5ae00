"""Errors of functions that users call: one sentence with the line of the user's code, and nothing
of what Python raised inside.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from types import FrameType, FunctionType, MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from weft.foundation.errors import (
    ExecutionError,
    Finding,
    ResourceExceeded,
    SpecViolation,
    Unimplemented,
    UserError,
    WeftError,
    WrongArguments,
    a_type,
    beside,
    clipped,
    placed,
)
from weft.foundation.lines import Line, is_inside, shown, user_line
from weft.foundation.tracebacks import ending_outside

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")
PYTHON_ERRORS: Final = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""What Python raises where an argument is of a kind that nobody thought of."""
MISTAKES: Final = (SpecViolation, UserError, Unimplemented, ResourceExceeded, ExecutionError)
"""What Weft raises that is told with the user's line: all but its own bugs."""

_TOOLS: Final = (str(Path(np.__file__).parent), sysconfig.get_path("stdlib"))
_ADDED: Final = ("site-packages", "dist-packages")
_OPERATORS: Final = frozenset(
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "matmul", "pow", "and", "or", "xor")
    for side in ("", "r")
) | frozenset(
    f"__{name}__"
    for name in (
        "init", "lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert", "getitem", "iter",
        "bool", "int", "float", "complex", "index", "round", "array", "len",
    )
)  # fmt: skip
"""The methods with underscores that users call by writing something else."""


def told(function: F) -> F:
    """A function that users call, and whose mistakes are told with its name and their line."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except MISTAKES as error:
            # The fault of a plug-in has a cause, which is not Weft's to hide.
            cause = error.__cause__
            raise explained(called(function, args), error, user_line()) from cause
        except PYTHON_ERRORS as error:
            raise refused(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def told_methods(cls: C) -> C:
    """A class whose public methods and operators users call. Weft calls them too: then what it was
    called for tells the mistake."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _OPERATORS:
            continue
        if isinstance(member, FunctionType):
            setattr(cls, name, _told_outside(member, placed))
        elif isinstance(member, classmethod):
            setattr(cls, name, classmethod(_told_outside(member.__func__, placed)))
    return cls


def told_outside(function: F) -> F:
    """A function that users call, and that Weft calls too: then what it was called for tells the
    mistake. What is wrong is in a program, a file or its inputs, and the sentence names those; the
    line of the call is beside it, as `where`."""
    return _told_outside(function, beside)


def _told_outside(function: F, place: Callable[[WeftError, str], WeftError]) -> F:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except MISTAKES as error:
            if is_inside(sys._getframe(1)):
                raise
            where, cause = shown(user_line()), error.__cause__
            raise ending_outside(place(error, where).with_traceback(None)) from cause
        except PYTHON_ERRORS as error:
            if is_inside(sys._getframe(1)):
                raise
            raise refused(function, args, kwargs, error) from None

    return call  # type: ignore[return-value]


def refused(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
    other_names: Mapping[str, str] = MappingProxyType({}),
) -> Exception:
    """Arguments that the function does not take, in one sentence. An error of a function that the
    user gave is left as it is. `other_names` are what other libraries call arguments."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    listed = ", ".join(known) or "nothing"
    try:
        # Python says what is wrong with the arguments only while it binds them: what fails here is
        # the call itself, and what fails later happened inside.
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as found:
        why = f"{found}; it takes {listed}{name_advice(kwargs, known, other_names)}"
    else:
        if not _is_ours(error):
            return error
        if isinstance(error, MemoryError):
            return explained(called(function, args), _out_of_memory(error), user_line())
        said = clipped(" ".join(str(error).split()), 200)
        why = f"an argument has a kind that is not supported: {said}; it takes {listed}"
    where, name = shown(user_line()), called(function, args)
    return ending_outside(WrongArguments(f"[{name}] {why}", "WrongArguments", where))


def name_advice(given: Iterable[str], known: Sequence[str], other_names: Mapping[str, str]) -> str:
    """What to write for the first argument that is not known, as the end of a message: what it is
    called here, or what is spelled most like it."""
    strange = next((name for name in given if name not in known), None)
    if strange is None:
        return ""
    other = other_names.get(strange)
    if other in known:
        return f"; {strange} is called {other} here"
    alike = get_close_matches(strange, known, n=1, cutoff=0.75)
    return f"; did you mean {alike[0]}?" if alike else ""


def _out_of_memory(error: MemoryError) -> ResourceExceeded:
    what = f": {error}" if str(error) else ""
    return ResourceExceeded(f"this machine does not have the memory for it{what}")


def called(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """What the user calls: a function, a method, or a class where it is what makes its objects."""
    if function.__name__ in ("__init__", "__call__") and args:
        return type(args[0]).__name__
    return function.__name__.strip("_").removesuffix("_method")


def handed_over(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of the user's gives; what it raises is left as it is, though it may be a tool
    of Weft's too, such as NumPy's functions."""
    return function(*args, **kwargs)


def _is_ours(error: Exception) -> bool:
    """Whether an error arose in Weft, or in a tool of its, and came through nobody else's
    function."""
    return all(_is_tool(frame) for frame, _ in walk_tb(error.__traceback__))


def _is_tool(frame: FrameType) -> bool:
    if frame.f_code is handed_over.__code__:
        return False
    file = frame.f_code.co_filename
    if is_inside(frame) or file.startswith(_TOOLS[0]):
        return True
    return file.startswith(_TOOLS[1]) and not any(added in file for added in _ADDED)


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
        findings = tuple(_finding_with_name(name, finding, where) for finding in error.findings)
        same = findings == error.findings
        return ending_outside(error.with_traceback(None) if same else type(error).of(findings))
    found = error.at(name, where) if isinstance(error, UserError) else placed(error, where)
    return ending_outside(found.with_traceback(None))


def _finding_with_name(name: str, finding: Finding, where: str) -> Finding:
    if finding.why.startswith("["):
        return replace(finding, where=finding.where or where)
    return Finding(finding.code, where or finding.where, f"[{name}] {finding.why}", finding.hint)


def options_told(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that users know by `name`: a call with an option that it does not have is a
    sentence with the options it has."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            strange = next((option for option in kwargs if option not in known), None)
            if strange is not None:
                raise _unknown_option(name, strange, known)
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown_option(name: str, option: str, known: Sequence[str]) -> WrongArguments:
    near = get_close_matches(option, known, 1, 0.5)
    hint = f", but {near[0]}" if near else ""
    why = f"{name} has no option {option!r}{hint}; it takes {', '.join(known)}"
    return WrongArguments(why, "WrongArguments")
