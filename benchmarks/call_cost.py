"""What a call costs the host: the Python line, without the work that it starts.

    python benchmarks/call_cost.py                  # this machine's backends, torch and JAX
    python benchmarks/call_cost.py --only weft      # Weft alone
    python benchmarks/call_cost.py --markdown       # the table of docs/performance/calls.md

Every function computes one short line on 4x4 matrices, whatever it is given: what grows with the
number of parameters is what the call costs. All are measured in turns, a few calls at a time, and
the table has the median of the turns, in microseconds of this thread's processor time; `best` is
the least of them, as on a machine that has nothing else to do. On a GPU nothing is waited for.
What a tensor more costs is told below the table, of the best times of two sizes.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import weft
from weft import nn, optim

TURNS, CALLS = 40, 20
PARAMETERS = (1, 10, 148, 1000)
HANDED_ON = (2, 148, 450)


@dataclass
class Line:
    """One thing to call, and what it took."""

    what: str
    who: str
    call: Callable[[], Any]
    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) * 1e6

    @property
    def best(self) -> float:
        return min(self.seconds) * 1e6


class Weights(nn.Module):
    """A model that holds many tensors, two at least, and uses two."""

    def __init__(self, count: int) -> None:
        self.layers = [Layer() for _ in range(max(1, count // 2))]
        self.single = [weft.ones((4, 4)).eval()] if count % 2 and count > 1 else []

    def __call__(self, x: Any) -> Any:
        return x * self.layers[0].weight + self.layers[-1].bias


class Layer(nn.Module):
    def __init__(self) -> None:
        self.weight = weft.ones((4, 4)).eval()
        self.bias = weft.ones((4, 4)).eval()


def weft_lines(backend: str) -> Iterator[Line]:
    """The calls of Weft on one of its backends."""
    before = weft.default_backend()
    weft.set_default_backend(backend)
    who = f"weft {backend}"
    x, y = weft.ones((4, 4)).eval(), weft.ones((4, 4)).eval()
    add = weft.jit(lambda x, y: x + y)
    yield Line("x + y under jit", who, lambda: add(x, y), [])
    yield Line("x + y and its read", who, lambda: np.asarray(x + y), [])
    for count in PARAMETERS:
        model = Weights(count)
        given = weft.jit(lambda model, x: model(x))
        held = weft.jit(model)
        yield Line(f"a model of {count}", who, partial(given, model, x), [])
        if count < 1000:
            yield Line(f"a captured model of {count}", who, partial(held, x), [])
    for count in HANDED_ON:
        step = weft.jit(lambda state, x: (list(state), (x * 2.0).sum()), donate="state")
        state = [weft.ones((4, 4)).eval() for _ in range(count)]
        yield Line(f"a step that hands on {count}", who, _handing_on(step, state, x), [])
    for count in PARAMETERS[:3]:
        yield Line(f"a donated step of 3 x {count}", who, _weft_step(count, x), [])
    for count in PARAMETERS[:3]:
        yield Line(f"{count} caches and 148 weights", who, _weft_generation(count, x), [])
    weft.set_default_backend(before)


def _handing_on(step: Callable[..., Any], state: Any, x: Any) -> Callable[[], Any]:
    """A step whose first result is its first argument in the next call."""
    held = [state]

    def call() -> None:
        held[0], _ = step(held[0], x)

    return call


def _weft_step(count: int, x: Any) -> Callable[[], Any]:
    """A training step that hands parameters and moments on, and computes next to nothing."""

    def step(model: Any, state: Any, x: Any) -> Any:
        kept = {name: list(state[name]) for name in ("mean", "square")}
        return model.map(lambda w: w), {"step": state["step"] + 1.0, **kept}, (x * 2.0).sum()

    f = weft.jit(step, donate=("model", "state"))
    model = Weights(count)
    held = [model, optim.AdamW(1e-3).init(model)]

    def call() -> None:
        held[0], held[1], _ = f(held[0], held[1], x)

    return call


def _weft_generation(count: int, x: Any) -> Callable[[], Any]:
    """A step with a model that stays and caches that are handed on, as one that generates text."""

    def step(model: Any, x: Any, caches: Any) -> Any:
        return model(x), [cache * 1.0 for cache in caches]

    f = weft.jit(step, donate=("caches",))
    model = Weights(148)
    held = [[weft.ones((4, 4)).eval() for _ in range(count)]]

    def call() -> None:
        _, held[0] = f(model, x, held[0])

    return call


def torch_lines() -> Iterator[Line]:
    """The same in PyTorch, eager and compiled."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    x, y = torch.ones(4, 4), torch.ones(4, 4)

    def add(x: Any, y: Any) -> Any:
        return x + y

    def model_of(count: int) -> Any:
        layers = torch.nn.ParameterList([torch.ones(4, 4) for _ in range(count)])

        class Model(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x: Any) -> Any:
                return x * self.layers[0] + self.layers[len(layers) - 1]

        return Model()

    def in_place(state: Any, x: Any) -> Any:
        """Torch hands nothing on: the state is where it was, with other elements in it."""
        torch._foreach_mul_(state, 1.0)
        return (x * 2.0).sum()

    eager = [
        ("x + y under jit", lambda: add(x, y)),
        ("x + y and its read", lambda: np.asarray(x + y)),
    ]
    models = [(f"a model of {count}", model_of(count)) for count in PARAMETERS]
    with torch.no_grad():
        for what, call in eager:
            yield Line(what, "torch eager", call, [])
        for what, model in models:
            yield Line(what, "torch eager", partial(model, x), [])
        for count in HANDED_ON:
            state = [torch.ones(4, 4) for _ in range(count)]
            call = partial(in_place, state, x)
            yield Line(f"a step that hands on {count}", "torch eager", call, [])
        try:
            compiled = torch.compile(add)
            compiled(x, y)
        except Exception as error:  # whatever its compiler lacks here
            print(f"torch.compile is left out: {type(error).__name__}")
            return
        yield Line("x + y under jit", "torch.compile", lambda: compiled(x, y), [])
        for what, model in models:
            made = torch.compile(model)
            yield Line(what, "torch.compile", partial(made, x), [])


def jax_lines() -> Iterator[Line]:
    """The same in JAX."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    x, y = jnp.ones((4, 4)), jnp.ones((4, 4))
    add = jax.jit(lambda x, y: x + y)
    yield Line("x + y under jit", "jax.jit", lambda: add(x, y).block_until_ready(), [])
    yield Line("x + y and its read", "jax.jit", lambda: np.asarray(x + y), [])
    for count in PARAMETERS:
        params = [jnp.ones((4, 4)) for _ in range(count)]
        given = jax.jit(lambda params, x: x * params[0] + params[-1])
        call = lambda g=given, p=params: g(p, x).block_until_ready()  # noqa: E731
        yield Line(f"a model of {count}", "jax.jit", call, [])
    for count in HANDED_ON:
        step = jax.jit(lambda state, x: (state, (x * 2.0).sum()), donate_argnums=0)
        state = [jnp.ones((4, 4)) for _ in range(count)]
        yield Line(f"a step that hands on {count}", "jax.jit", _handing_on(step, state, x), [])


def measure(lines: list[Line]) -> None:
    """All in turns, so that what else the machine does meets all alike."""
    for line in lines:
        for _ in range(3):
            line.call()
    gc.collect()
    for _ in range(TURNS):
        for line in lines:
            started = time.thread_time()
            for _ in range(CALLS):
                line.call()
            line.seconds.append((time.thread_time() - started) / CALLS)


def backends() -> list[str]:
    """The backends that this machine has."""
    found = ["reference", "cpu"]
    try:
        weft.ones((1,)).to("cuda")
    except weft.WeftError as error:
        print(f"cuda is left out: {str(error).splitlines()[0]}")
    else:
        found.append("cuda")
    return found


def collected(only: str) -> list[Line]:
    """Everything that can be measured here."""
    lines = [line for backend in backends() for line in weft_lines(backend)]
    for name, others in (("torch", torch_lines), ("jax", jax_lines)):
        if only != "weft":
            try:
                lines += list(others())
            except ImportError:
                print(f"{name} is left out: it is not installed")
    return lines


def printed(lines: list[Line], markdown: bool) -> None:
    people = list(dict.fromkeys(line.who for line in lines))
    rows = list(dict.fromkeys(line.what for line in lines))
    cells = {(line.what, line.who): f"{line.median:.1f} ({line.best:.1f})" for line in lines}
    mark = " | " if markdown else "  "
    print(mark.join(["", "median (best), µs".ljust(28), *[who.rjust(15) for who in people]]))
    if markdown:
        print("|".join(["", "---", *["--:" for _ in people], ""]))
    for what in rows:
        shown = [cells.get((what, who), "–").rjust(15) for who in people]
        print(mark.join(["", what.ljust(28), *shown, ""]).rstrip(" " if not markdown else ""))


GROWTH = (
    ("a parameter of a model", "a model of {}", (10, 148), 1),
    ("a tensor that is handed on", "a step that hands on {}", (2, 450), 1),
    ("a donated tensor of a training step", "a donated step of 3 x {}", (10, 148), 3),
    ("a cache beside 148 weights", "{} caches and 148 weights", (10, 148), 1),
)
"""What grows, the lines that show it, at which of their numbers, and how many tensors a line has
for each of its number."""


def grown(lines: list[Line]) -> Iterator[str]:
    """What one tensor more costs a call."""
    best = {(line.what, line.who): line.best for line in lines}
    for who in dict.fromkeys(line.who for line in lines):
        for what, name, (first, last), each in GROWTH:
            few, many = (best.get((name.format(count), who)) for count in (first, last))
            if few is not None and many is not None:
                yield f"{who}: {what} costs {(many - few) / ((last - first) * each):.2f} µs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["weft", "all"], default="all")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    lines = collected(options.only)
    measure(lines)
    printed(lines, options.markdown)
    print("", *grown(lines), sep="\n")


if __name__ == "__main__":
    main()
