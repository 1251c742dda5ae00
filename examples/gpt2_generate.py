"""A generator in the shape of GPT-2, with a cache of keys and values.

    python -m examples.gpt2_generate                              random weights, a small model
    python -m examples.gpt2_generate --weights DIR                the weights that are published
    python -m examples.gpt2_generate --size gpt2 --count 20       random weights, the real size

With weights go the token numbers of a prompt, `--prompt 464 3290`, as a tokeniser of GPT-2 gives
them; what is printed are token numbers too. One compiled step serves every position: it takes one
token, writes its keys and values into the cache, and gives the scores of the next token.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import weft
from examples.published import read
from examples.training import told
from weft import functional as F
from weft import nn

Array = NDArray[Any]
Caches = tuple[tuple[weft.Tensor, weft.Tensor], ...]


@dataclass(frozen=True)
class Config:
    """The sizes of a model."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int


SIZES = {
    "small": Config(layers=2, width=64, heads=4, vocabulary=512, context=64),
    "gpt2": Config(layers=12, width=768, heads=12, vocabulary=50_257, context=1_024),
    "gpt2-medium": Config(layers=24, width=1_024, heads=16, vocabulary=50_257, context=1_024),
}


def gelu(x: weft.Tensor) -> weft.Tensor:
    """The approximation by tanh that GPT-2 was trained with."""
    return F.gelu(x, approximate="tanh")


class GPT2(nn.Module):
    """Tokens to scores of the next token. The output layer is the embedding, turned."""

    def __init__(self, config: Config) -> None:
        self.heads, self.context = config.heads, config.context
        self.tokens = nn.Embedding(config.vocabulary, config.width, deviation=0.02)
        self.positions = nn.Embedding(config.context, config.width, deviation=0.01)
        self.blocks = [
            nn.TransformerBlock(config.width, config.heads, activation=gelu)
            for _ in range(config.layers)
        ]
        self.norm = nn.LayerNorm(config.width)

    def __call__(self, tokens: weft.Tensor) -> weft.Tensor:
        """Scores [B, S, vocabulary] for whole sequences."""
        places = weft.arange(tokens.shape[1], dtype=weft.int32)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T

    def step(
        self, tokens: weft.Tensor, position: weft.Tensor, caches: Caches
    ) -> tuple[weft.Tensor, Caches]:
        """Scores [B, vocabulary] after one more token [B, 1] at a position, and the new caches."""
        x = self.tokens(tokens) + self.positions(weft.reshape(position, (1, 1)))
        seen = weft.arange(caches[0][0].shape[2], dtype=weft.int32) <= position
        mask = weft.reshape(seen, (1, 1, 1, -1))
        kept = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block(x, mask, cache=cache, position=position)  # noqa: PLW2901
            kept.append(cache)
        return (self.norm(x) @ self.tokens.weight.T)[:, 0], tuple(kept)

    def empty_caches(self, length: int) -> Caches:
        """Room for so many positions in every block."""
        width = self.tokens.weight.shape[1]
        assert isinstance(width, int)
        shape = (1, self.heads, length, width // self.heads)
        return tuple((weft.zeros(shape), weft.zeros(shape)) for _ in self.blocks)


def generate(
    model: GPT2, prompt: list[int], count: int, *, temperature: float = 1.0, seed: int = 0
) -> Iterator[int]:
    """So many tokens after a prompt, one by one; temperature 0 takes the likeliest each time."""
    _check(model, prompt, count, temperature)
    rng = np.random.default_rng(seed)
    step = weft.jit(
        lambda model, tokens, position, caches: model.step(tokens, position, caches),
        donate="caches",
    )
    length = len(prompt) + count
    caches, written = model.empty_caches(length), list(prompt)
    for position in range(length - 1):
        token = np.array([[written[position]]], np.int32)
        scores, caches = step(model, token, np.int32(position), caches)
        if position == len(written) - 1:
            written.append(_choice(scores.numpy()[0], temperature, rng))
            yield written[-1]


def _check(model: GPT2, prompt: list[int], count: int, temperature: float) -> None:
    if not prompt or count < 1 or len(prompt) + count > model.context:
        raise weft.UserError(
            f"a prompt of {len(prompt)} tokens and {count} more do not fit: there must be at least "
            f"one of each, and {model.context} together at most"
        )
    vocabulary = model.tokens.weight.shape[0]
    strange = [token for token in prompt if not 0 <= token < vocabulary]
    if strange:
        raise weft.UserError(f"{strange[0]} is not a token: the model has 0 to {vocabulary - 1}")
    if not 0 <= temperature < math.inf:
        raise weft.UserError(f"the temperature is {temperature}; it must be a number, at least 0")


def _choice(scores: Array, temperature: float, rng: np.random.Generator) -> int:
    if not temperature:
        return int(scores.argmax())
    chances = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    return int(rng.choice(len(chances), p=chances / chances.sum()))


# -- published weights ---------------------------------------------------------------------------


def with_published_weights(model: GPT2, published: dict[str, weft.Tensor]) -> GPT2:
    """The model with weights as the published files name and lay them out: linear layers are
    [in, out], and those of queries, keys and values are one."""
    arrays = {n.removeprefix("transformer."): t.numpy() for n, t in published.items()}
    try:
        state = _state(arrays, len(model.blocks))
    except KeyError as error:
        raise weft.UserError(f"the file has no {error.args[0]}; it is not a GPT-2") from None
    return model.with_state({name: weft.asarray(array) for name, array in state.items()})


def _state(arrays: dict[str, Array], blocks: int) -> dict[str, Array]:
    state = {
        "tokens.weight": arrays["wte.weight"],
        "positions.weight": arrays["wpe.weight"],
        "norm.weight": arrays["ln_f.weight"],
        "norm.bias": arrays["ln_f.bias"],
    }
    for number in range(blocks):
        state |= _block_state(arrays, f"h.{number}.", f"blocks.{number}.")
    return state


_LINEAR = {"attn.c_proj": "attention.out", "mlp.c_fc": "up", "mlp.c_proj": "down"}
_NORMS = {"ln_1": "norm1", "ln_2": "norm2"}


def _block_state(arrays: dict[str, Array], theirs: str, own: str) -> dict[str, Array]:
    found = {}
    for name, mine in _NORMS.items():
        for part in ("weight", "bias"):
            found[f"{own}{mine}.{part}"] = arrays[f"{theirs}{name}.{part}"]
    for name, mine in _LINEAR.items():
        found[f"{own}{mine}.weight"] = arrays[f"{theirs}{name}.weight"].T
        found[f"{own}{mine}.bias"] = arrays[f"{theirs}{name}.bias"]
    weights = np.split(arrays[f"{theirs}attn.c_attn.weight"].T, 3)
    biases = np.split(arrays[f"{theirs}attn.c_attn.bias"], 3)
    for mine, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
        found[f"{own}attention.{mine}.weight"] = weight
        found[f"{own}attention.{mine}.bias"] = bias
    return found


def config_of(published: dict[str, weft.Tensor], heads: int | None = None) -> Config:
    """The sizes of a published model; its heads have 64 features each where nobody says more."""
    shapes = {n.removeprefix("transformer."): t.type.static_shape for n, t in published.items()}
    if "wte.weight" not in shapes or "wpe.weight" not in shapes:
        raise weft.UserError("the file has no wte.weight and wpe.weight; it is not a GPT-2")
    vocabulary, width = shapes["wte.weight"]
    layers = sum(name.endswith(".attn.c_attn.weight") for name in shapes)
    return Config(layers, width, heads or max(width // 64, 1), vocabulary, shapes["wpe.weight"][0])


def published_model(path: Path) -> GPT2:
    """The model that a folder, a safetensors file or a GGUF file holds."""
    found = read(path, "f32")
    heads = found.config.get("n_head") or found.config.get("num_attention_heads")
    with nn.unfilled():
        model = GPT2(config_of(found.weights, heads))
    return with_published_weights(model, found.weights)


def write(model: GPT2, prompt: list[int], count: int, temperature: float) -> list[int]:
    """The tokens, with a progress bar; Ctrl-C keeps those that are there."""
    written: list[int] = []
    columns = (TextColumn("token {task.completed}/{task.total}"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task("writing", total=count)
        try:
            for token in generate(model, prompt, count, temperature=temperature):
                written.append(token)
                progress.advance(task)
        except KeyboardInterrupt:
            progress.console.print(f"interrupted after {len(written)} of {count} tokens")
    return written


@told
def main() -> None:
    parser = argparse.ArgumentParser(description="generate tokens with a model like GPT-2")
    parser.add_argument("--weights", type=Path, help="a folder or file of GPT-2")
    parser.add_argument("--size", choices=SIZES, default="small", help="without weights")
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--count", type=int, default=40, help="how many tokens")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--backend", default=weft.default_backend())
    options = parser.parse_args()
    weft.set_default_backend(options.backend)
    console = Console()
    if options.weights is None:
        model = GPT2(SIZES[options.size])
        console.print("random weights: the generated text has no meaning")
    else:
        model = published_model(options.weights)
    console.print(f"{model}, backend {options.backend}")
    started = time.perf_counter()
    written = write(model, options.prompt, options.count, options.temperature)
    console.print(" ".join(map(str, options.prompt + written)), highlight=False)
    seconds = time.perf_counter() - started
    console.print(f"{len(written)} tokens in {seconds:.1f} s, compiling included")


if __name__ == "__main__":
    main()
