"""The example's Llama against one that is written in torch, with the weights of the latter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from examples.llama import Llama, generate
from examples.llama_weights import Config, with_weights

torch = pytest.importorskip("torch")

SMALL = Config(vocabulary=50, width=32, hidden=48, layers=2, heads=4, key_heads=2, head=8)
pytestmark = pytest.mark.usefixtures("default_backend")


def published() -> dict[str, Any]:
    """Random weights under the names of published files."""
    torch.manual_seed(0)
    kept = SMALL.width * SMALL.key_heads // SMALL.heads
    shapes = {"model.embed_tokens.weight": (50, 32), "model.norm.weight": (32,)}
    shapes["lm_head.weight"] = (50, 32)
    for number in range(SMALL.layers):
        layer = f"model.layers.{number}."
        for name in ("q_proj", "o_proj"):
            shapes[f"{layer}self_attn.{name}.weight"] = (32, 32)
        for name in ("k_proj", "v_proj"):
            shapes[f"{layer}self_attn.{name}.weight"] = (kept, 32)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{layer}mlp.{name}.weight"] = (48, 32)
        shapes[f"{layer}mlp.down_proj.weight"] = (32, 48)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}{name}.weight"] = (32,)
    return {name: torch.randn(shape) * 0.3 for name, shape in shapes.items()}


def norm(x: Any, weight: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def turned(x: Any) -> Any:
    """Rotary positions as Llama's authors publish them: the second half against the first."""
    length, size = x.shape[-2:]
    rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = (torch.arange(length)[:, None] * rates).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


def llama(tokens: Any, w: dict[str, Any]) -> Any:
    """The same model in torch, for one sequence."""
    x = w["model.embed_tokens.weight"][tokens]
    for number in range(SMALL.layers):
        own = {n.removeprefix(f"model.layers.{number}."): t for n, t in w.items()}
        h = norm(x, own["input_layernorm.weight"])
        q, k, v = (
            (h @ own[f"self_attn.{name}.weight"].T).view(len(tokens), -1, 8).transpose(0, 1)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        q, k = turned(q), turned(k)
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(0, 1).reshape(x.shape) @ own["self_attn.o_proj.weight"].T
        h = norm(x, own["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(h @ own["mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def test_scores_are_those_of_torch() -> None:
    weights = published()
    model = with_weights(Llama(SMALL), weights)
    tokens = [3, 14, 15, 9, 26, 5]
    found = weft.jit(lambda model, tokens: model(tokens))(model, np.array([tokens], np.int32))
    expected = llama(torch.tensor(tokens), weights).numpy()
    np.testing.assert_allclose(found.numpy()[0], expected, rtol=1e-4, atol=1e-4)


def test_what_is_written_is_likeliest_to_torch_too() -> None:
    weights = published()
    tokens = [3, 14, 15]
    written = generate(with_weights(Llama(SMALL), weights), tokens, 4)
    while len(tokens) < 7:
        tokens.append(int(llama(torch.tensor(tokens), weights)[-1].argmax()))
    assert written == tokens


def test_an_output_layer_that_is_missing_is_the_embedding() -> None:
    weights = published()
    del weights["lm_head.weight"]
    model = with_weights(Llama(SMALL), weights)
    np.testing.assert_array_equal(
        model.lm_head.weight.numpy(), weights["model.embed_tokens.weight"].numpy()
    )


def test_other_weights_are_told() -> None:
    with pytest.raises(weft.UserError, match=r"have no embed_tokens\.weight; they are not Llama's"):
        with_weights(Llama(SMALL), {"wte.weight": torch.zeros(2, 2)})
