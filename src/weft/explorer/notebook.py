"""The page inside a notebook: what `explore` of a function under `jit` answers."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from weft.driver.execute import Prepared
from weft.explorer.collect import Shown, executable_of, records, run_of
from weft.explorer.page import page
from weft.foundation.errors import UserError


class Compiled(Protocol):
    """One compiled version of a function."""

    def prepared(self) -> list[Prepared]: ...


class Explored:
    """A page: a notebook shows it, and `save` writes it as a file."""

    def __init__(self, text: str, programs: Sequence[Prepared] = ()) -> None:
        self.text = text
        self._programs = programs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page; it opens from disk."""
        parent = Path(path).parent
        if not parent.is_dir():
            raise UserError(f"cannot write {path}: there is no folder {parent}")
        try:
            Path(path).write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
        for program in self._programs:
            program.note_file(f"its page is {path}")

    def _repr_html_(self) -> str:
        frame = html.escape(self.text, quote=True)
        return (
            '<iframe sandbox="allow-scripts allow-downloads" width="100%" height="720" '
            f'style="border:1px solid #8884;border-radius:8px" srcdoc="{frame}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Explored: a page of {len(self.text) // 1000:,} kB; save(path) writes it>"


def explored(name: str, versions: list[Compiled]) -> Explored:
    """The page of a function's compiled versions, with times on made-up inputs."""
    made = [each for version in versions for each in version.prepared()]
    found = [executable_of(each) for each in made]
    programs = [executable for executable in found if executable is not None]
    if not programs:
        raise UserError(
            f"{name} has no compiled version that went through the stages; call it first, on a "
            "backend that compiles"
        )
    several = len(programs) > 1
    shown = [
        Shown(f"{name} {number}" if several else name, program, run_of(program))
        for number, program in enumerate(programs, 1)
    ]
    return Explored(page(records(shown)[0], name), made)
