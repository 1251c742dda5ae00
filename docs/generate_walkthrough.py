"""Writes docs/walkthrough.md: a small MLP through every stage, with the real dumps.

    python docs/generate_walkthrough.py

The target is described here rather than asked from the machine, so that the page is the same
everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path

from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program
from weft.runtime.jit import assembly
from weft.target.cpu import describe

PAGE = Path(__file__).parent / "walkthrough.md"
MOST_LINES, LOOP_LINES = 70, 22
PROCESSOR = ("aarch64-unknown-linux-gnu", "neoverse-n1", "")
INTRODUCTION = """# How a program becomes machine code

This page follows a linear layer with a bias and a gelu from the program to machine code. Every
listing is the real output of the stage: `weft compile FILE --dump=all --out DIR` writes the same
for any program. A stage whose text can be read back can be edited, and compiled from there with
`--from STAGE FILE`.

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
        "PTIR in canonical form: constants folded, chains of movements merged, dead code removed.",
        "text",
    ),
    "tiny": (
        "Only four kinds of ops: movement, unary, binary, reduce. The matrix product is a "
        "multiplication followed by a sum.",
        "json",
    ),
    "indexbook": (
        "The axes of every value, and which elements of its operands each element reads.",
        "json",
    ),
    "poly_view": (
        "There are no movements any more, only statements over domains. The multiplication and "
        "its sum were recognised as a matmul.",
        "json",
    ),
    "region": ("Kernels: here one, because the epilogue is computed in registers.", "json"),
    "memory": ("Where every tensor is stored.", "json"),
    "plan": ("How the kernel is executed: a register tile of 4 rows and 16 columns.", "json"),
    "cpu": (
        "The loops of the plan, and the statements in them: one piece of work for the "
        "first 16 columns, one for the rest.",
        "text",
    ),
    "llvm": (
        "The same loops as LLVM IR. Here is the loop over `k_5` of the first piece. Accumulators "
        "are still stack slots; loops that are marked as unrolled above are unrolled here.",
        "llvm",
    ),
}
MACHINE_CODE = """## Machine code

LLVM optimises the code for the processor; `weft.runtime.jit.assembly` shows the result. This is the
loop for a Neoverse N1. Each iteration loads four vectors of a row of `w` and an element of each of
the four rows of `x`, and adds their sixteen products to accumulators, which are now in registers.

```asm
{}
```
"""
RUNNING = """## Running

A compiled program is a list of steps over a table of buffers: here three inputs and an output.
One native call executes the steps. The pieces of a kernel are distributed over threads if this is
faster.

```python
import numpy as np
import weft

executable = weft.compile(program)
for step in executable.artifact.steps:
    print(type(step).__name__, "of kernel", step.kernel, "on buffers", step.buffers)
print([slot.space for slot in executable.artifact.buffers])
```

```text
Launch of kernel 0 on buffers (0, 1, 2, 3)
['input', 'input', 'input', 'output']
```

The reference backend computes the expected result:

```python
rng = np.random.default_rng(0)
inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 20), (20,))]
(out,) = executable(*inputs)
(expected,) = weft.run(program, inputs, backend="reference")
print(out.shape, np.abs(out - expected).max() < 1e-5)
```

```text
(4, 20) True
```
"""


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
        text = compilation.text(name)
        is_llvm = name == "llvm"
        listing = shortened(inner_loop(text), LOOP_LINES) if is_llvm else shortened(text)
        parts.append(f"## {name}\n\n{what}\n\n```{language}\n{listing}\n```\n")
    (source,) = compilation["llvm"].sources.values()
    parts += [MACHINE_CODE.format(inner_loop(assembly(source, PROCESSOR))), RUNNING]
    return "\n".join(parts)


def shortened(text: str, most: int = MOST_LINES) -> str:
    """A text that may be too long to show, without its end."""
    lines = text.rstrip().splitlines()
    left = len(lines) - most
    return "\n".join([*lines[:most], f"... {left} more lines"] if left > 0 else lines)


def inner_loop(text: str) -> str:
    """The first loop of a listing with no other in it: a block that ends with a jump to its own
    label."""
    blocks = re.split(r"^(?=[.\w]+:)", text, flags=re.MULTILINE)
    for block in blocks:
        label = re.escape(block.partition(":")[0])
        jump = rf"^\s+(b\.\w+\s+{label}|br i1 %\w+, label %{label}, label %\w+)$"
        back = re.search(jump, block, re.MULTILINE)
        if back is not None:
            return block[: back.end()].expandtabs(8)
    raise LookupError("no block of the listing is a loop")


if __name__ == "__main__":
    PAGE.write_text(page())
