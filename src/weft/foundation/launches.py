"""Whether a failed run had already launched something.

A run that may overwrite what it is given may have done so when it fails. Whoever knows that it had
not started yet, as where there was no memory for its results, notes that on the exception; without
a note the worst is taken to be true.
"""

from __future__ import annotations

from typing import Final

_NOTE: Final = "_weft_nothing_started"


def note_nothing_started(error: BaseException) -> None:
    """The run failed before its first step was started."""
    setattr(error, _NOTE, True)


def take_note(error: BaseException) -> bool:
    """Whether nothing was started. The note is taken off: the same exception may be raised again in
    the midst of another run."""
    return error.__dict__.pop(_NOTE, False) is True


def hand_note_on(error: BaseException, told: BaseException) -> None:
    """An error that is raised in the place of another says of its run what that one did."""
    if take_note(error):
        note_nothing_started(told)
