"""Draws docs/curve.svg: the losses that the first piece of code in README.md reaches.

python -m docs.draw_curve            (or: make docs)
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "curve.svg"
WIDTH, HEIGHT, MARGIN = 640, 220, 40


def losses() -> list[float]:
    """What the code on the front page leaves in `losses`."""
    found = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
    assert found is not None, "README.md shows no code"
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(found[1], "README.md", "exec"), names)  # noqa: S102
    return list(names["losses"])


def points(values: Sequence[float]) -> list[tuple[int, int]]:
    """Where the values stand in the picture, whose left lower corner is step 0 and loss 0."""
    across = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    up = (HEIGHT - 2 * MARGIN) / max(values)
    return [
        (round(MARGIN + i * across), round(HEIGHT - MARGIN - value * up))
        for i, value in enumerate(values)
    ]


def render(values: Sequence[float]) -> str:
    line = " ".join(f"{x},{y}" for x, y in points(values))
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" \
height="{HEIGHT}" role="img" aria-label="The loss over {len(values)} steps">
  <style>text {{ font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #5b6775; }}</style>
  <rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#f7f9fb"/>
  <path d="M{MARGIN},{MARGIN} V{bottom} H{right}" fill="none" stroke="#aab4c0"/>
  <text x="{MARGIN - 6}" y="{MARGIN + 5}" text-anchor="end">{max(values):.1f}</text>
  <text x="{MARGIN - 6}" y="{bottom + 4}" text-anchor="end">0</text>
  <text x="{MARGIN}" y="{MARGIN - 12}">loss</text>
  <text x="{right}" y="{bottom + 20}" text-anchor="end">{len(values)} steps</text>
  <polyline points="{line}" fill="none" stroke="#1f4e8c" stroke-width="2"/>
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(render(losses()), encoding="utf-8")
