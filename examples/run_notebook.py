"""Runs a notebook without Jupyter, and writes what its cells print into it.

    python -m examples.run_notebook                  examples/tour.ipynb
    python -m examples.run_notebook FILE.ipynb

Code cells run one after another in one namespace. What they print is their output; pictures and the
value of a last expression are not.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOUR = Path(__file__).parent / "tour.ipynb"


def load(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    """What the file says that a cell prints."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def printed(notebook: dict[str, Any]) -> Iterator[str]:
    """What each code cell prints when it is run after those before it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(notebook), 1):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("".join(cell["source"]), f"cell_{number}.py", "exec"), names)  # noqa: S102
        yield output.getvalue()


def with_outputs(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells print now."""
    for number, (cell, text) in enumerate(
        zip(code_cells(notebook), list(printed(notebook)), strict=True), 1
    ):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
        cell["outputs"] = [stream] if text else []
    return notebook


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else TOUR
    text = json.dumps(with_outputs(load(file)), indent=1, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
