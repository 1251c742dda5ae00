"""Every error Weft raises on purpose, and the finding a verifier reports.

Four situations are four types: the caller's mistake (`UserError`), an invalid program
(`SpecViolation`), a valid request nobody here can serve (`Unimplemented`), and our own bug
(`InternalError`). All of them derive from `WeftError`, and all read as one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

LONGEST: Final = 1_000
"""How many characters one part of a message may have: the names of a program may be megabytes."""


def clipped(text: str, most: int = LONGEST) -> str:
    """The text, cut where it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def brief(value: object, most: int = 60) -> str:
    """A value that somebody gave, on one short line; whatever it is, this raises nothing."""
    if isinstance(value, int) and value.bit_length() > 1_000:
        return f"a number of {value.bit_length()} bits"
    try:
        text = str(value) if isinstance(value, Enum) else repr(value)
    except Exception:
        return a_type(value)
    return clipped(" ".join(text.split()), most)


def with_article(noun: str) -> str:
    """`an int`, `a float`; a `u` is spoken as in `uint8`."""
    return f"{'an' if noun[:1].lower() in tuple('aeio') else 'a'} {noun}"


def a_type(thing: object) -> str:
    """The type of what was given in a message: `an int`."""
    return with_article(type(thing).__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: a stable code, the place, the reason, and what to do about it."""

    code: str
    where: str
    why: str
    hint: str = ""

    def __post_init__(self) -> None:
        for name in ("where", "why", "hint"):
            object.__setattr__(self, name, clipped(getattr(self, name)))

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{self.code}{place}: {self.why}{advice}"


class WeftError(Exception):
    """Base of every error that Weft raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message))

    _where = ""

    @property
    def code(self) -> str:
        """What kind of error it is, for programs."""
        return type(self).__name__

    @property
    def where(self) -> str:
        """The user's line, where it is known."""
        return self._where

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as it stands, notes and all: the message is made of the arguments of
        the constructor, and cannot be given to it again."""
        return _as_it_was, (type(self), self.args), self.__dict__


def placed(error: WeftError, where: str) -> WeftError:
    """The error with its place filled in, where it has none yet."""
    if isinstance(error, SpecViolation):
        return error.at(where)
    if isinstance(error, UserError):
        return error if error.where else type(error)(error.why, error.code, where)
    if where and not error._where:
        error._where = where
        if isinstance(error, ResourceExceeded):
            error.args = (str(Finding(error.code, where, str(error))),)
    return error


def beside(error: WeftError, where: str) -> WeftError:
    """The error with the place beside its sentence, where it has none yet; in it, where it has a
    code of its own, which says that it is of the call and not of what was given."""
    if isinstance(error, UserError | ResourceExceeded) and error.code != "InvalidCall":
        return placed(error, where)
    if isinstance(error, SpecViolation):
        error.findings = tuple(
            Finding(f.code, f.where or where, f.why, f.hint) for f in error.findings
        )
    else:
        error._where = error._where or where
    return error


def _as_it_was(kind: type[WeftError], args: tuple[object, ...]) -> WeftError:
    """An error of a class with its message; its other attributes are put back by whoever reads."""
    found = kind.__new__(kind)
    found.args = args
    return found


class SpecViolation(WeftError):
    """The program, or the data given to it, breaks a rule of the contract.

    `findings` holds every violation that was collected; `code`, `where`, `why` and `hint` are
    those of the first one.
    """

    def __init__(
        self,
        code: str,
        why: str,
        hint: str = "",
        where: str = "",
        *,
        findings: Sequence[Finding] = (),
    ) -> None:
        first = Finding(code, where, why, hint)
        self.findings: tuple[Finding, ...] = tuple(findings) or (first,)
        # Findings are clipped one by one; all of them are shown.
        Exception.__init__(self, "\n".join(str(finding) for finding in self.findings))

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> SpecViolation:
        """The violation that carries a whole list of findings; the list must not be empty."""
        first = findings[0]
        return cls(first.code, first.why, first.hint, first.where, findings=findings)

    def at(self, where: str) -> SpecViolation:
        """The same violation with its place filled in, where it has none yet."""
        return type(self).of(
            [Finding(f.code, f.where or where, f.why, f.hint) for f in self.findings]
        )

    @property
    def code(self) -> str:
        return self.findings[0].code

    @property
    def where(self) -> str:
        return self.findings[0].where

    @property
    def why(self) -> str:
        return self.findings[0].why

    @property
    def hint(self) -> str:
        return self.findings[0].hint


class OutOfRange(SpecViolation, IndexError, ValueError):
    """An axis, an index or a size is none that the tensor has. Code that is written for other array
    libraries may catch it as an `IndexError` or a `ValueError`."""


class SizeWanted(SpecViolation):
    """An op cannot be written without the size of a dim that is open; with the size it can."""


class Unimplemented(WeftError):
    """A valid program asks for something this backend or target does not have."""

    def __init__(self, op: str, reason: str) -> None:
        self.op = op
        self.reason = reason
        super().__init__(f"Unimplemented {op}: {reason}")


class ExecutionError(WeftError):
    """A valid program could not be carried out: a device failed, a loop never ended."""


class PluginFault(ExecutionError):
    """A backend or a conversion target that is not Weft's broke its promises."""

    def __init__(self, plugin: str, what: str) -> None:
        self.plugin = plugin
        self.what = what
        super().__init__(f"{plugin} {what}; this is a fault of the plug-in, not of Weft")


class UserError(WeftError):
    """The call itself is wrong: a missing file, an unknown name, the wrong number of inputs.

    `code` is stable: programs may look at it. `where` is the user's line where it is known, and
    then code and line are part of the sentence.
    """

    def __init__(self, why: str, code: str = "InvalidCall", where: str = "") -> None:
        self.why = why
        self._code = code
        self._where = where
        super().__init__(str(Finding(code, where, why)) if where else why)

    @property
    def code(self) -> str:
        return self._code

    def at(self, name: str, where: str) -> UserError:
        """The same error with the function that was called, and the line of the call; unless an
        inner call has put its own there."""
        named = self.why.startswith("[")
        if named and self.where:
            return self
        why = self.why if named else f"[{name}] {self.why}"
        return type(self)(why, self.code, self.where or where)


class WrongArguments(UserError, TypeError):
    """A function is called with arguments that it does not have, or without some that it needs.
    It is a `TypeError` too, as Python's own would be."""


class BackendUnavailable(UserError):
    """The backend that was asked for does not exist, or cannot work on this machine."""

    def __init__(self, why: str, code: str = "BackendUnavailable", where: str = "") -> None:
        super().__init__(why, code, where)


class ResourceExceeded(WeftError):
    """Carrying on would need more memory or work than the configured limit allows."""


class InternalError(WeftError):
    """Weft broke one of its own promises. Please report it with the program."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; this is a bug in Weft, please report it with the program")


class WeftWarning(UserWarning):
    """Something was ignored that the reader may care about."""
