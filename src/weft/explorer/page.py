"""The page: one file with its script, its style and its data, which asks for nothing else.

The data is JSON, packed, as base64 inside an element that no browser runs. The script is the only
one that the page's policy lets run, by its digest: whatever a name of a program looks like, it can
become neither markup nor script.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from weft import __version__
from weft.explorer.packing import slimmed

SCRIPTS: Final = (
    "base.js", "unpack.js", "state.js", "text.js", "kernels.js", "graph.js", "memory.js",
    "timeline.js", "compare.js", "edit.js", "main.js",
)  # fmt: skip
"""The parts of the script, in order; together they are one function."""
STYLE: Final = "style.css"
_ASSETS: Final = Path(__file__).parent / "assets"
MOST_SOURCE: Final = 1 << 20
"""Bytes of a source file that is shown."""


def page(programs: Sequence[Mapping[str, Any]], title: str, token: str = "") -> str:
    """The page that shows these programs. With a `token` it is one that is served, and may ask its
    server to compile again."""
    data = {
        "title": title,
        "version": __version__,
        "programs": [slimmed(program) for program in programs],
        "sources": sources_of(programs),
        "token": token,
    }
    script, style = script_text(), asset(STYLE)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src 'sha256-{_digest(script)}'",
            f"style-src 'sha256-{_digest(style)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *(("connect-src 'self'",) if token else ()),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)} · weft explore</title>\n"
        f"<style>{style}</style></head>\n"
        '<body><main id="app"><p class="loading">Unpacking…</p></main>\n'
        f'<script type="application/octet-stream" id="data">{encode_data(data)}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def encode_data(data: Mapping[str, Any]) -> str:
    """Data as gzip in base64: letters that mean nothing to HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def script_text() -> str:
    """The whole script."""
    parts = "\n".join(asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def asset(name: str) -> str:
    """The text of one of the page's files."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def sources_of(programs: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The lines of every Python file that instructions come from, where it is there and is text."""
    names = {value[3] for program in programs for value in program["values"] if value[3]}
    names |= {name for program in programs for name, *_ in program.get("beside", ())}
    found = {}
    for name in sorted(names):
        path = Path(name)
        try:
            # A profile may come from a stranger, and name whatever it likes.
            if path.suffix == ".py" and path.is_file() and path.stat().st_size <= MOST_SOURCE:
                found[name] = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError, ValueError):
            continue
    return found


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
