"""Writes docs/walkthrough.md: a small MLP through every stage, with the real dumps.

    python docs/generate_walkthrough.py

The target is described here rather than asked from the machine, so that the page is the same
everywhere.
"""

from __future__ import annotations

from pathlib import Path

from weft.driver.compilation import Compilation
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.ptir import Builder, Program
from weft.target.cpu import describe

PAGE = Path(__file__).parent / "walkthrough.md"
MOST_LINES = 70
INTRODUCTION = """# One program through every stage

This page follows a linear layer with a bias and a gelu from the program to machine code. Every
listing is what the stage really made: `weft compile FILE --dump=all --out DIR` writes the same for
any program, and each stage whose text reads back can be edited and fed in again with `--from STAGE
FILE`.

```python
from weft.ptir import Builder

b = Builder("mlp")
x, w, bias = b.param("f32", [4, 8]), b.param("f32", [8, 20]), b.param("f32", [20])
y = x @ w
program = b.build(b.gelu(y + b.broadcast_to(bias, y.shape)))
```
"""
STAGES = {
    "frontend": (
        "PTIR, canonical: constants folded, chains of movements merged, dead code gone.",
        "text",
    ),
    "tiny": (
        "Movement, unary, binary, reduce; nothing else. The product is a multiplication under a "
        "sum.",
        "json",
    ),
    "indexbook": (
        "The axes of every value, and which element of its operands each of its elements reads.",
        "json",
    ),
    "poly_view": (
        "Movements are gone. What is left are statements over domains; the multiplication under "
        "the sum was recognised as a matmul.",
        "json",
    ),
    "region": ("Kernels: here one, because the epilogue never leaves the registers.", "json"),
    "memory": ("Where every tensor lives.", "json"),
    "plan": ("How the kernel is carried out: a register tile of 4 rows and 16 columns.", "json"),
    "cpu": ("The loops that the plan asks for, and the statements in them.", "text"),
    "llvm": ("The same as LLVM IR; LLVM turns it into machine code.", "llvm"),
}


def example() -> Program:
    b = Builder("mlp")
    x, w, bias = b.param("f32", [4, 8]), b.param("f32", [8, 20]), b.param("f32", [20])
    y = x @ w
    return b.build(b.gelu(y + b.broadcast_to(bias, y.shape)))


def page() -> str:
    """The text of the page."""
    program = example()
    target = describe("aarch64", frozenset({"asimd"}), 2, (64 << 10, 1 << 20))
    compilation = run_pipeline(Compilation(program, target, make_signature(program)))
    parts = [INTRODUCTION]
    for name, (what, language) in STAGES.items():
        lines = compilation.text(name).rstrip().splitlines()
        if len(lines) > MOST_LINES:
            left = len(lines) - MOST_LINES
            lines = [*lines[:MOST_LINES], f"... {left} more lines"]
        listing = "\n".join(lines)
        parts.append(f"## {name}\n\n{what}\n\n```{language}\n{listing}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
