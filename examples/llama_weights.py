"""The sizes of a Llama as config.json tells them, its positions, and its weights by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import weft
from examples.published import Published, read
from weft import functional as F
from weft import nn
from weft.foundation.errors import UserError

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Config:
    """The sizes of a model; `key_heads` are shared by `heads` of queries."""

    vocabulary: int = 256
    width: int = 64
    hidden: int = 160
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    head: int = 16
    eps: float = 1e-5
    base: float = 10_000.0
    slower: tuple[float, ...] = ()
    """By how much each pair of features turns slower than `base` says, in models for long texts."""
    ends: tuple[int, ...] = ()
    """The tokens that end a text."""


def config_of(model: Published) -> Config:
    """The sizes of a published model."""
    kind = model.config.get("model_type")
    strange = [name for name in ("attention_bias", "mlp_bias") if model.config.get(name)]
    if kind not in ("llama", "mistral") or strange or model.config.get("sliding_window"):
        raise UserError(f"the weights are a {kind}'s with {strange}; this is a Llama without")
    size, heads = model.size, model.size("num_attention_heads")
    width = size("hidden_size")
    turning = size("rope_parameters", "rope_scaling", default={})
    head = size("head_dim", default=width // heads)
    base = size("rope_theta", default=turning.get("rope_theta", 10_000.0))
    ends = model.config.get("eos_token_id")
    return Config(
        vocabulary=size("vocab_size", default=_vocabulary(model)),
        width=width,
        hidden=size("intermediate_size"),
        layers=size("num_hidden_layers"),
        heads=heads,
        key_heads=size("num_key_value_heads", default=heads),
        head=head,
        eps=size("rms_norm_eps"),
        base=base,
        slower=_slower(model, turning, head, base),
        ends=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
    )


def _vocabulary(model: Published) -> int:
    name = "model.embed_tokens.weight"
    if name not in model.weights:
        raise UserError(f"the weights have no {name}; they are not Llama's")
    return int(model.weights[name].shape[0])


def _slower(model: Published, turning: dict[str, Any], head: int, base: float) -> tuple[float, ...]:
    """Of Llama 3: features that turn less than once in the old context turn slower by a factor,
    those that turn often as before, and those in between by something in between."""
    if "rope_freqs.weight" in model.weights:
        return tuple(map(float, nn.unpacked(model.weights["rope_freqs.weight"]).numpy()))
    kind = turning.get("rope_type", turning.get("type", "default"))
    if kind == "default":
        return ()
    if kind != "llama3":
        raise UserError(f"positions are turned by the rule {kind!r}, which this Llama has not")
    low, high = turning["low_freq_factor"], turning["high_freq_factor"]
    factor, context = turning["factor"], turning["original_max_position_embeddings"]
    turns = context * base ** (-np.arange(0, head, 2) / head) / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return tuple(1 / (share + (1 - share) / factor))


def turned(x: Any, places: Any, config: Config) -> Any:
    """Queries or keys [B, heads, S, size], turned by their positions [S]."""
    if not config.slower:
        return F.rotary_embedding(x, places, base=config.base)
    rates = config.base ** (-np.arange(0, config.head, 2) / config.head) / config.slower
    angles = weft.tile(places[:, None] * weft.asarray(rates.astype(np.float32)), (1, 2))
    first, second = x[..., : config.head // 2], x[..., config.head // 2 :]
    across = weft.concat([-second, first], axis=-1)
    return x * weft.cos(angles).astype(x.dtype) + across * weft.sin(angles).astype(x.dtype)


def with_weights(model: M, weights: Mapping[str, Any]) -> M:
    """The model with weights under the published names: arrays, tensors of torch or of Weft, or
    packed ones. Without an output layer it is the embedding."""
    found = {
        name.removeprefix("model."): x if isinstance(x, nn.Packed) else weft.asarray(x)
        for name, x in weights.items()
    }
    named = {name: t for name, t in found.items() if "rotary_emb" not in name}
    named.pop("rope_freqs.weight", None)
    if "embed_tokens.weight" not in named:
        raise UserError("the weights have no embed_tokens.weight; they are not Llama's")
    return model.with_state({"lm_head.weight": named["embed_tokens.weight"], **named})


def published(
    make: Callable[[Config], M], path: Path, dtype: str, packed: bool = False
) -> tuple[M, Published]:
    """The model that a folder or a GGUF file holds."""
    found = read(path, dtype, packed)
    with nn.unfilled():
        model = make(config_of(found)).map(lambda x: x.astype(dtype))
    return with_weights(model, found.weights), found
