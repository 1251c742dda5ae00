"""Writes docs/gradients.md: which op has a gradient, what it does at ties and kinks, and how each
rule is checked.

    python -m docs.generate_gradients            (or: make docs)

The rules are read from the op classes, and the checks from the table in `tests/derivatives`: a test
fails when the file is not what this prints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.derivatives.case import Case
from tests.derivatives.cases import CASES
from tests.derivatives.kinks import KINKS, Derivatives, Kink
from weft.foundation.dtypes import as_dtype
from weft.ptir.autodiff.control_flow import CONTROL
from weft.ptir.op import Op, all_ops

PAGE = Path(__file__).parent / "gradients.md"
HEAD = """\
# Gradients

`weft.ptir` differentiates programs into programs:

```python
import numpy as np
import weft
from weft.ptir import Builder, gradient, jvp, vjp, vmap

b = Builder()
x, w = b.param("f64", [2, 3]), b.param("f64", [3])
program = b.build(b.reduce_sum(b.tanh(b.dot_general(x, w, contract=([1], [0]))), [0]))

both = gradient(program, wrt=1)  # (x, w) -> (value, by w)
value, by_w = weft.run(both, [np.ones((2, 3)), np.zeros(3)])
print(value, by_w)
```

```text
0.0 [2. 2. 2.]
```

- `gradient(program, wrt, of=0)` appends the gradients of one float scalar to the results.
- `vjp(program, wrt, of=None)` takes a cotangent for every float or complex result and appends the
  cotangents of the parameters `wrt`.
- `jvp(program, wrt)` takes a tangent for every parameter `wrt` and appends the tangents of the
  results. It applies reverse mode twice and removes everything that only the first application
  needed. So every op with a gradient rule has both modes.
- `vmap(program, size, axes)` runs a program on a batch of values.

Forward and backward pass are one ordinary program: it verifies, has a text, runs on every backend,
and can be differentiated again. The rule of an op is the method `vjp` of its class. Differentiation
does not recurse over instructions, so programs may be long. Dynamic dims are supported, except by a
few rules that need a size as a number; their errors say so.

## Conventions

**Complex numbers** are treated as pairs of real numbers: the gradient of a real function of `z = x
+ i y` is `df/dx + i df/dy`, the direction of steepest ascent, as in PyTorch (JAX returns its
conjugate). The cotangent of a holomorphic function is multiplied by the conjugate of the
derivative.

**Integers and booleans** have no gradient and stop it: everything computed through an integer
counts as a constant. `stop_gradient` has this effect for any value.

**Ties and kinks** of functions are listed in [a table](#kinks), those of ops in the notes below.
They follow PyTorch 2.13, also in models imported from PyTorch and ONNX. Where a derivative is
infinite (`log` at 0, `sqrt` at 0), so is the gradient, by the rules of IEEE arithmetic. Norms have
finite gradients everywhere: the gradients of norms, of `std` and of `hypot` are 0 where their
values are 0. A quotient by `1 + exp(u)`, as in sigmoid and silu, has a finite gradient wherever its
value is finite: the cotangent of u is `-y / (1 + exp(-u))` times that of the quotient, where the
rules of the single ops would multiply 0 by an exp(u) that has overflowed.

**Narrow floats**: a gradient has the dtype of its operand. Sums over broadcast axes and matrix
products accumulate in f32 at least, as in the forward pass.

**Elements that are not read get no gradient**: `cholesky` and `eigh` read one triangle of their
operand, and the gradient of the other triangle is zero. (For a matrix that was symmetrised before,
this is the usual gradient.)

**Random numbers** are drawn once, in the forward pass, and are constants for the gradient.

## Control flow

The backward pass of `cond` is a `cond` with the same predicate, and that of `scan` a `scan` in
reverse order. Values of the bodies that the backward pass needs are stored or computed again,
whichever is cheaper; matrix products, reductions and random numbers are always stored. A carry that
the body returns unchanged (such as weights) is not stored for every step.

`while` has no gradient in general, because the memory for its steps cannot be bounded. The
exception is a loop whose number of steps is visible: a counter that starts at a known number, grows
by a known number and is compared with a known number. Such a loop becomes a `scan` first. Write any
other loop as a `scan` over a fixed number of steps, with a `select` for steps after the end.
Forward mode has the same restriction, because it is built from reverse mode.

The backward pass of `custom_gradient` is the program that the instruction contains. A `callback`
has no gradient, because Weft cannot see inside a Python function.

## Memory

`weft.ptir.passes.recompute(program, results, parts)` takes a program whose first `results` results
are the forward pass, and lets the backward pass compute some forward values again: those for which
this is cheaper than writing and reading them, found by a minimum cut. Each of `parts` is a set of
ids of forward instructions (checkpointing): of these instructions only values that are used outside
the set are stored, whatever it costs to compute the others again. The repeated instructions read
stored values through a `barrier`, so that they are not merged with the originals. `kept_bytes`
measures what is stored between the two passes.

## Batches

Elementwise ops need no batching rule. The others have one rule for each family in
`weft.ptir.batching`, and an op without a rule is decomposed if possible. Values that do not depend
on the batch, including random numbers, are computed once for the whole batch. A `cond` whose
predicate differs within the batch runs both branches; a `while` whose number of steps differs runs
until every element of the batch has finished.

## Kinks

The derivatives of functions at points where they are not smooth. Arguments are separated by
semicolons, points by commas. The values are those of PyTorch 2.13 unless the last column says
otherwise; it also lists the values of JAX where they differ. PyTorch 2.15 differs at the bounds of
`clip`: 0 if the bound is a number, half to each if it is a tensor.

$KINKS
## Ops

Every case of the table in `tests/derivatives` is compared with finite differences in f64, in both
modes. The columns give the number of cases for each op, the highest order, the number of complex
cases, and the number of cases that are also compared with PyTorch (`make test-torch`), or the
reason why there are none.

"""


METHODS = ("vjp", "derivatives", "derivative")
WITHOUT_TORCH = {
    "byteir.rng_uniform": "other numbers",
    "byteir.rng_normal": "other numbers",
}
"""Why PyTorch is not asked about an op: it draws other numbers from a seed."""


def name_of(cls: type[Op]) -> list[str]:
    return sorted(cls.spellings()) or [cls.name]


def note(name: str, cls: type[Op]) -> str:
    """What the rule says about ties and kinks; where it names some spellings, only for those."""
    if cls.no_gradient:
        return f"none: {cls.no_gradient}"
    if cls in CONTROL:
        return "see above"
    docs = [getattr(cls.__dict__.get(method), "__doc__", None) for method in METHODS]
    text = " ".join((next(filter(None, docs), "")).split())
    named = {spelling for spelling in cls.spellings() if f"`{spelling}`" in text}
    return text if not named or name in named else ""


def is_complex(case: Case) -> bool:
    return any(as_dtype(a.dtype).is_complex for a in case.inputs)


def row(name: str, cls: type[Op], cases: list[Case]) -> str:
    if not cases:
        return f"| `{name}` | | | | | {note(name, cls)} |"
    order = max(case.order for case in cases)
    complexes = sum(map(is_complex, cases))
    compared = sum(case.torch is not None for case in cases)
    in_torch = str(compared) if compared else WITHOUT_TORCH[name]
    counts = [str(len(cases)), str(order), str(complexes or ""), in_torch]
    return f"| `{name}` | {' | '.join(counts)} | {note(name, cls)} |"


def rows() -> Iterator[tuple[str, str]]:
    """Family and row of every op, in the order of the op reference."""
    by_op: dict[str, list[Case]] = defaultdict(list)
    for case in CASES:
        by_op[case.op].append(case)
    for cls in all_ops():
        for name in name_of(cls):
            yield cls.family, row(name, cls, by_op[name])


def numbers(values: Derivatives) -> str:
    """Derivatives, or the arguments they are taken at: those by one argument between commas."""

    def written(value: Any) -> str:
        return ", ".join(map(written, value)) if isinstance(value, list) else f"{value:.4g}"

    return "; ".join(map(written, values))


def kink_row(kink: Kink) -> str:
    others = [("PyTorch", kink.torch), ("JAX", kink.jax)]
    notes = [f"{name}: {numbers(found)}" for name, found in others if found is not None]
    cells = [numbers(kink.at), numbers(kink.wanted), ". ".join([*notes, *filter(None, [kink.why])])]
    return f"| `{kink.name}` | {' | '.join(cells)} |"


def kinks() -> str:
    head = ["| function | at | derivatives | others |", "|---|---|---|---|"]
    return "\n".join([*head, *map(kink_row, KINKS), ""])


def render() -> str:
    """The whole page."""
    families: dict[str, list[str]] = defaultdict(list)
    for family, line in rows():
        families[family].append(line)
    parts = [HEAD.replace("$KINKS", kinks())]
    for family, lines in families.items():
        title = family.replace("_", " ").capitalize()
        head = ["| op | cases | order | complex | torch | notes |", "|---|--:|--:|--:|--:|---|"]
        parts.append("\n".join([f"### {title}", "", *head, *lines, ""]) + "\n")
    return "".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
