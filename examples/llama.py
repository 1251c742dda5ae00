"""A Llama that takes its weights from torch, or from published files.

    python -m examples.llama                              random weights, a small model
    python -m examples.llama --weights model.safetensors --heads 32 --prompt 1 450 4996

Parameters have the names of Llama 2's files: `with_weights(model, torch_model.state_dict())`. Llama
3 turns positions by other angles. Prompts and results are token numbers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from examples.training import told
from weft import functional as F
from weft import nn


@dataclass(frozen=True)
class Config:
    """The sizes of a model; `key_heads` are shared by `heads` of queries."""

    vocabulary: int = 256
    width: int = 64
    hidden: int = 160
    layers: int = 2
    heads: int = 4
    key_heads: int = 2


class Attention(nn.Module):
    """Causal attention whose queries and keys are turned by their positions."""

    def __init__(self, config: Config) -> None:
        self.head = config.width // config.heads
        kept = self.head * config.key_heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, kept, bias=False)
        self.v_proj = nn.Linear(config.width, kept, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def __call__(self, x: Any) -> Any:
        batch, length, width = x.shape
        places = weft.arange(length, dtype=weft.int32)

        def heads(projected: Any) -> Any:
            return projected.reshape((batch, length, -1, self.head)).swapaxes(1, 2)

        query = F.rotary_embedding(heads(self.q_proj(x)), places)
        key = F.rotary_embedding(heads(self.k_proj(x)), places)
        mixed = F.attention(query, key, heads(self.v_proj(x)), causal=True)
        return self.o_proj(mixed.swapaxes(1, 2).reshape((batch, length, width)))


class MLP(nn.Module):
    """A gated hidden layer."""

    def __init__(self, width: int, hidden: int) -> None:
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def __call__(self, x: Any) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a hidden layer, each after a norm and beside a way around it."""

    def __init__(self, config: Config) -> None:
        self.input_layernorm = nn.RMSNorm(config.width, eps=1e-5)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=1e-5)
        self.mlp = MLP(config.width, config.hidden)

    def __call__(self, x: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Tokens [B, S] to scores [B, S, vocabulary] of the next token."""

    def __init__(self, config: Config) -> None:
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = [Block(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))


def with_weights(model: Llama, weights: Mapping[str, Any]) -> Llama:
    """The model with weights under the published names: arrays, or tensors of torch or of Weft.
    Without an output layer it is the embedding."""
    found = {name.removeprefix("model."): weft.asarray(array) for name, array in weights.items()}
    return model.with_state({"lm_head.weight": found["embed_tokens.weight"], **found})


def config_of(weights: Mapping[str, Any], heads: int) -> Config:
    """The sizes of weights under the published names, which do not say how many heads there are."""
    shapes = {name.removeprefix("model."): tuple(w.shape) for name, w in weights.items()}
    try:
        vocabulary, width = shapes["embed_tokens.weight"]
        kept = shapes["layers.0.self_attn.k_proj.weight"][0]
        hidden = shapes["layers.0.mlp.gate_proj.weight"][0]
    except KeyError as error:
        raise weft.UserError(f"the weights have no {error.args[0]}; they are no Llama's") from None
    layers = sum(name.endswith("self_attn.q_proj.weight") for name in shapes)
    return Config(vocabulary, width, hidden, layers, heads, kept * heads // width)


def generate(model: Llama, prompt: list[int], count: int) -> list[int]:
    """The prompt and the likeliest tokens after it, by one program: zeros stand for the rest."""
    scores = weft.jit(lambda model, tokens: model(tokens))
    written = np.array([prompt + [0] * count], np.int32)
    for place in range(len(prompt), written.shape[1]):
        written[0, place] = scores(model, written).numpy()[0, place - 1].argmax()
    return [int(token) for token in written[0]]


@told
def main() -> None:
    parser = argparse.ArgumentParser(description="generate tokens with a Llama")
    parser.add_argument("--weights", type=Path, help="a safetensors file of a Llama")
    parser.add_argument("--heads", type=int, default=32, help="heads of queries, with weights")
    parser.add_argument("--prompt", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    model = Llama(Config())
    if options.weights is not None:
        weights = weft.load(options.weights)
        model = with_weights(Llama(config_of(weights, options.heads)), weights)
    print(model, *generate(model, options.prompt, options.count))


if __name__ == "__main__":
    main()
