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
- `jvp(program, wrt)` takes a tangent for every parameter `wrt` and appends those of the results. It
  is the adjoint of the adjoint, with everything removed that only the first one needed; so an op
  that has a gradient rule has both modes.
- `vmap(program, size, axes)` runs a program on a batch of values.

Forward and backward are one program, and it is an ordinary one: it verifies, has a text, runs on
every backend, and can be differentiated again. The rule of an op stands beside it: the method `vjp`
of its class. Nothing recurses over instructions, and dynamic dims are no obstacle, except to a few
rules that need a size as a number and say so.

## Conventions

**Complex numbers** count as pairs of real ones: the gradient of a real function of `z = x + i y` is
`df/dx + i df/dy`, the direction of steepest ascent, as in PyTorch (JAX gives its conjugate). The
cotangent of a holomorphic function is multiplied with the conjugate of the derivative.

**Integers and truth values** have no gradient, and stop it: a value that passed through one is a
constant. `stop_gradient` does the same on purpose.

**Ties and kinks** of functions are in [a table](#kinks), those of ops in the notes below. They are
those of PyTorch 2.13, in models imported from PyTorch and ONNX too. Where a derivative leaves the
finite numbers (`log` at 0, `sqrt` at 0) so does the gradient, by the rules of IEEE arithmetic:
infinities are not hidden. A length is finite everywhere: the gradients of norms, of `std` and of
`hypot` are 0 where they are 0. A quotient by `1 + exp(u)`, as in sigmoid and silu, is finite
wherever it is itself: its cotangent goes to u as `-y / (1 + exp(-u))`, where the rules of the
single ops would multiply 0 by an exp(u) that has overflowed.

**Narrow floats**: a gradient has the dtype of its operand. Sums over broadcast axes and matrix
products add up in f32 at least, as they do on the way forward.

**Only what is read gets a gradient**: `cholesky` and `eigh` read one triangle of their operand, and
the other gets zeros. (For a matrix that was made symmetric before, this is the usual gradient.)

**Random numbers** are drawn once, on the way forward, and are constants to the gradient.

## Control flow

The way back through `cond` is a `cond` with the same predicate, and through `scan` a `scan` in
reverse order. What the way back needs of the bodies is kept or computed again, whichever is
cheaper; matrix products, reductions and random numbers are kept. A carry that the body returns as
it came (weights) is not kept at every step. `while` has no way back, because nobody knows how much
room its steps will need, unless the number of its steps is seen: a counter that begins at a known
number, grows by a known number and is compared with one. Such a loop becomes a `scan` first. Write
any other as a `scan` over a fixed number of steps, with a `select` for those that come after the
end. Forward mode, being the adjoint of the adjoint, has none either.

The way back through `custom_gradient` is the program that the instruction brings along. A
`callback` has none: of a Python function only its values are known.

## Memory

`weft.ptir.passes.recompute(program, results, parts)` takes a program whose first `results` results
are the forward part and lets the backward part compute some forward values again: those for which
that is cheaper than writing and reading them, found by a minimum cut. Each of `parts` is a set of
ids of forward instructions; of these only what leaves the set is kept, whatever the rest costs to
compute again (checkpointing). Copies read what was kept through a `barrier`, so that they are not
merged with the originals. `kept_bytes` measures what lies between the two parts.

## Batches

Every op that works on single elements takes a further axis as it is; the others have one rule for
each family in `weft.ptir.batching`, and an op with neither is decomposed if it can be. What does
not depend on the batch is computed once for all, random numbers included. A `cond` whose predicate
differs within the batch runs both branches; a `while` whose end differs goes on until
all values have come to theirs.

## Kinks

What functions do where they are not smooth: the derivatives by their arguments, in order, at the
places named, one after the other. They are those of PyTorch 2.13 unless the last column says
otherwise; there stands also what JAX gives where that is something else. PyTorch 2.15 has others at
the bounds of `clip`: 0 where the bound is a number, half to each where it is a tensor.

$KINKS
## Ops

Every case of the table in `tests/derivatives` is compared with differences in f64, both modes; the
columns say how many cases there are for each op, to which order, how many of them are complex, and
how many are also compared with PyTorch (`make test-torch`), or in a word why none is.

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
