"""The code on pages of the documentation, and runs of it."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int
    follows: str
    """The language of the block right before this one, where nothing stands between them."""


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    end, before = -1, ""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        adjacent = end >= 0 and not text[end : match.start()].strip()
        line = text.count("\n", 0, match.start()) + 1
        yield Block(match[1], match[2], line, before if adjacent else "")
        end, before = match.end(), match[1]


def run_python(code: str, names: dict[str, Any]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "example.py", "exec"), names)
    return output.getvalue()
