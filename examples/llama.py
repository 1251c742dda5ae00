"""A Llama that takes its weights from torch, or from published files.

    python -m examples.llama                                          random weights, a small model
    python -m examples.llama --weights DIR --prompt "Once upon a time"   a published model
    python -m examples.llama --weights model.gguf --prompt 1 450 4996
    python -m examples.llama --weights model.gguf --packed            its few bits stay few

DIR has config.json, the safetensors files and tokenizer.json, as Llama 2, 3 and 3.2 are published.
Parameters have the names of those files. Prompts are texts (by `tokenizers`), or token numbers.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import weft
from examples.llama_weights import Config, published, turned
from examples.published import tokeniser_of
from examples.training import told
from weft import functional as F
from weft import nn


class Attention(nn.Module):
    """Causal attention whose queries and keys are turned by their positions."""

    def __init__(self, config: Config) -> None:
        self.config = config
        inner, kept = config.heads * config.head, config.key_heads * config.head
        self.q_proj = nn.Linear(config.width, inner, bias=False)
        self.k_proj = nn.Linear(config.width, kept, bias=False)
        self.v_proj = nn.Linear(config.width, kept, bias=False)
        self.o_proj = nn.Linear(inner, config.width, bias=False)

    def __call__(self, x: Any, places: Any, mask: Any = None, cache: Any = None) -> Any:
        """The result, and the cache with the keys and values of x in it."""
        batch, length, _ = x.shape

        def heads(projected: Any) -> Any:
            return projected.reshape((batch, length, -1, self.config.head)).swapaxes(1, 2)

        query = turned(heads(self.q_proj(x)), places, self.config)
        key, value = turned(heads(self.k_proj(x)), places, self.config), heads(self.v_proj(x))
        if cache is not None:
            key = F.update_cache(cache[0], key, places[0])
            value = F.update_cache(cache[1], value, places[0])
        mixed = F.attention(query, key, value, mask, causal=cache is None)
        return self.o_proj(mixed.swapaxes(1, 2).reshape((batch, length, -1))), (key, value)


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
        self.input_layernorm = nn.RMSNorm(config.width, eps=config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, eps=config.eps)
        self.mlp = MLP(config.width, config.hidden)

    def __call__(self, x: Any, *seen: Any) -> Any:
        found, cache = self.self_attn(self.input_layernorm(x), *seen)
        x = x + found
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Llama(nn.Module):
    """Tokens [B, S] to scores [B, S, vocabulary] of the next token."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = [Block(config) for _ in range(config.layers)]
        self.norm = nn.RMSNorm(config.width, eps=config.eps)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)

    def __call__(self, tokens: Any, position: Any = 0, caches: Any = None) -> Any:
        """The scores; with caches, for tokens from a position on, a pair of them and the caches."""
        places = weft.arange(tokens.shape[1], dtype=weft.int32) + position
        room = None if caches is None else weft.arange(caches[0][0].shape[2], dtype=weft.int32)
        mask = None if room is None else room <= places[:, None]
        x, kept = self.embed_tokens(tokens), []
        for block, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x, found = block(x, places, mask, cache)
            kept.append(found)
        scores = self.lm_head(self.norm(x))
        return scores if caches is None else (scores, kept)

    def empty_caches(self, length: int) -> list[Any]:
        """Room for the keys and values of so many tokens in every block."""
        shape = (1, self.config.key_heads, length, self.config.head)
        kind = self.norm.weight.dtype
        return [(weft.zeros(shape, dtype=kind), weft.zeros(shape, dtype=kind)) for _ in self.layers]


def generate(model: Llama, prompt: list[int], count: int) -> list[int]:
    """The prompt and the likeliest tokens after it: one program for the prompt, one for the rest,
    which keep keys and values in place. Packed weights become floats inside of them."""
    kind = model.norm.weight.dtype
    step = weft.jit(lambda m, t, at, caches: nn.unpacked(m, kind)(t, at, caches), donate="caches")
    written, new = list(prompt), list(prompt)
    caches = model.empty_caches(len(prompt) + count)
    while len(written) < len(prompt) + count:
        tokens = np.array([new], np.int32)
        scores, caches = step(model, tokens, np.int32(len(written) - len(new)), caches)
        new = [int(scores.numpy()[0, -1].argmax())]
        written += new
        if new[0] in model.config.ends:
            break
    return written


@told
def main() -> None:
    parser = argparse.ArgumentParser(description="generate text with a Llama")
    parser.add_argument("--weights", type=Path, help="a folder as published, or a GGUF file")
    parser.add_argument("--prompt", nargs="+", default=["1", "2", "3"], help="text, or tokens")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    parser.add_argument("--packed", action="store_true", help="keep the few bits of a GGUF file")
    options = parser.parse_args()
    found, model = None, Llama(Config())
    if options.weights is not None:
        model, found = published(Llama, options.weights, options.dtype, options.packed)
    if found is None or all(word.isdecimal() for word in options.prompt):
        print(model, *generate(model, [int(token) for token in options.prompt], options.count))
    else:
        tokeniser = tokeniser_of(found)
        prompt = tokeniser.encode(" ".join(options.prompt)).ids
        print(tokeniser.decode(generate(model, prompt, options.count)))


if __name__ == "__main__":
    main()
