"""Writes docs/functional.md: every functional op with its signature, meaning and implementations.

    python docs/generate_functional.py            (or: make docs)

Everything is read from the functions: a test fails when the file is not what this prints.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft import functional
from weft.ops.functional import registry

PAGE = Path(__file__).parent / "functional.md"
HEAD = """\
# Functional ops

`from weft import functional as F`. Each op checks its arguments and adds its instructions to the
graph; nothing is computed until a tensor is read. NumPy arrays are accepted wherever tensors are.
Layouts name the axes: N is the batch, C the channels, followed by W, HW or DHW. Softmax and
activations with an exponential, tanh or erf, `hardsigmoid` and `hardswish` compute f16 and bf16
in f32 and round once.

`make docs` generates this page from the functions in `src/weft/ops/functional/`. To change it, edit
their docstrings.

## Choosing an implementation

Ops with several implementations list them below, in the order in which they are tried. A policy
chooses one:

| policy | chooses |
|---|---|
| `default` | the first that supports the arguments |
| `force=NAME` | the one of this name |
| `benchmark(cache=N)` | the fastest on random tensors of the same types |

A benchmark runs all implementations that support the arguments, once for each combination of
argument types; the N combinations used last are cached.

```python
from weft import functional as F

F.configure({"layer_norm": "force=whole"})  # for the process; JSON text is accepted too
with F.overrides({"attention": "benchmark(cache=64)"}):  # in this block, in this thread
    ...
F.configure({"layer_norm": "default"})
print(F.implementations("attention"))
```

```text
['default', 'streaming']
```

`WEFT_FUNCTIONAL='{"attention": "force=streaming"}'` sets policies for a process. You can add your
own implementation: a function with the signature of the op, and a predicate that says which
arguments it supports:

```python
@F.implements("silu", "by_sigmoid", lambda x: x.ndim == 2)
def silu_by_sigmoid(x):
    return x * F.sigmoid(x)


F.unregister("silu", "by_sigmoid")
```

The compiler recognises an op by its canonical form, which the default implementations write. The
implementations called `whole` write a single coarse op, which a backend may run as one op.

"""
FAMILIES = [
    "activation", "pointwise", "linear", "grouped", "contraction", "attention", "embedding",
    "convolution", "pooling", "unpooling", "normalisation", "loss", "distance", "indexing",
    "rearrange", "resampling", "stochastic",
]  # fmt: skip
TITLES = {
    "contraction": "Einsum", "linear": "Matrix products", "rearrange": "Padding and pixels",
    "grouped": "Products of groups of rows",
    "embedding": "Embeddings", "pointwise": "More activations",
    "unpooling": "Unpooling and columns", "distance": "Distances and margins",
    "loss": "Losses", "stochastic": "Dropout",
}  # fmt: skip


def ops() -> dict[str, list[tuple[str, Callable[..., Any]]]]:
    """The functions of the module by the file they stand in; those of the array API last."""
    found: dict[str, list[tuple[str, Callable[..., Any]]]] = defaultdict(list)
    for name in functional.__all__:
        function = getattr(functional, name)
        home = function.__module__.rpartition(".")[2]
        if home != "registry":
            found[home if home in FAMILIES else "array"].append((name, function))
    return found


def signature(name: str, function: Callable[..., Any]) -> str:
    """The parameters and what they are when they are left out; types would make it long."""
    parameters = [p.replace(annotation=p.empty) for p in _parameters(function)]
    return f"{name}{inspect.Signature(parameters)}"


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def entry(name: str, function: Callable[..., Any]) -> str:
    """One op: its signature, its meaning, and its implementations where there are several."""
    text = inspect.getdoc(function) or ""
    lines = [f"**`{signature(name, function)}`**", "", text, ""]
    if name in registry._ENTRIES and len(functional.implementations(name)) > 1:
        names = ", ".join(f"`{i}`" for i in functional.implementations(name))
        lines += [f"Implementations: {names}.", ""]
    return "\n".join(lines)


def render() -> str:
    """The whole page."""
    found = ops()
    parts = [HEAD]
    for family in FAMILIES:
        title = TITLES.get(family, family.capitalize())
        parts.append("\n".join([f"## {title}", "", *(entry(*op) for op in found[family]), ""]))
    names = ", ".join(f"`{name}`" for name, _ in found["array"])
    parts.append(f"## From the array API\n\n{names} are the functions of `weft` itself.\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render())
