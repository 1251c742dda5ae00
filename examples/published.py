"""Models as they are published: a folder with config.json and safetensors files, or a GGUF file.

Both give the same: the sizes under the names of config.json, and the weights under the names of
the safetensors files, whatever the file calls them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from weft import nn
from weft.foundation.errors import UserError

Weights = dict[str, Any]
"""Tensors, or `nn.Packed`."""


@dataclass(frozen=True)
class Published:
    """A model: its sizes, its weights, and the file of its tokeniser where there is one."""

    config: dict[str, Any]
    weights: Weights
    tokeniser: Path | None

    def size(self, *names: str, default: Any = None) -> Any:
        """The number under the first of these names that the model gives."""
        for name in names:
            if self.config.get(name) is not None:
                return self.config[name]
        if default is None:
            raise UserError(f"the model does not say its {names[0]}: config.json is not whole")
        return default


def read(path: Path, dtype: str | None = None, packed: bool = False) -> Published:
    """A folder, a file in such a folder, or a GGUF file; floats are cast to the dtype, and weights
    of few bits stay packed where that is wanted."""
    folder = path if path.is_dir() else path.parent
    tokeniser = folder / "tokenizer.json"
    weights, config = weft.load(path, dtype=dtype, packed=packed), folder / "config.json"
    if "token_embd.weight" in weights:
        facts = weft.load_metadata(path)
        found, weights = _config_of(facts), _renamed(weights, facts)
    else:
        found = _json(config) if config.exists() else {}
    return Published(found, weights, tokeniser if tokeniser.exists() else None)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is not a JSON object")
    return found


def tokeniser_of(model: Published) -> Any:
    """The tokeniser of a model; it needs the package `tokenizers`."""
    if model.tokeniser is None:
        raise UserError("there is no tokenizer.json beside the weights; give token numbers")
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415
    except ModuleNotFoundError:
        raise UserError("texts need `pip install tokenizers`; or give token numbers") from None
    try:
        return Tokenizer.from_file(str(model.tokeniser))
    except Exception as error:  # the package has no narrower one
        raise UserError(f"cannot read {model.tokeniser}: {error}") from None


# -- GGUF ------------------------------------------------------------------------------------------

_FACTS = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "n_positions": "context_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_LLAMA = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "rope_freqs": "rope_freqs", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
_GPT2 = {
    "token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f", "output": "lm_head",
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_NAMES = {"llama": (_LLAMA, "model.layers."), "gpt2": (_GPT2, "h.")}


def _config_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a GGUF file under the names of config.json."""
    kind = facts.get("general.architecture")
    found = {name: facts.get(f"{kind}.{theirs}") for name, theirs in _FACTS.items()}
    ends = facts.get("tokenizer.ggml.eos_token_id")
    return {"model_type": kind, "eos_token_id": ends, **found}


def _renamed(weights: Weights, facts: dict[str, Any]) -> Weights:
    """The weights of a GGUF file as the safetensors files have them."""
    kind = facts.get("general.architecture")
    if kind not in _NAMES:
        raise UserError(f"the file holds a {kind}; there are names for {', '.join(_NAMES)}")
    table, layers = _NAMES[kind]
    found = {}
    for name, tensor in weights.items():
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        if match is None or match[2] not in table:
            raise UserError(f"the file has {name}, which no {kind} has")
        layer = "" if match[1] is None else f"{layers}{match[1]}."
        found[f"{layer}{table[match[2]]}.{match[3]}"] = _laid_out(kind, match[2], tensor, facts)
    return found


def _laid_out(kind: str, part: str, weight: Any, facts: dict[str, Any]) -> Any:
    """A weight as the safetensors files lay it out. Llama's queries and keys turn pairs of
    neighbours in GGUF, and of halves there; the linear layers of GPT-2 are turned around, and a
    packed one, whose groups lie along its rows, is unpacked for it."""
    if kind == "llama" and part in ("attn_q", "attn_k"):
        heads = facts["llama.attention.head_count"]
        shared = facts.get("llama.attention.head_count_kv", heads)
        count = heads if part == "attn_q" else shared
        return weft.tree.map(lambda x: _in_halves(x, count), weight)
    linear = part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down") and len(weight.shape) == 2
    return nn.unpacked(weight).T if kind == "gpt2" and linear else weight


def _in_halves(rows: weft.Tensor, heads: int) -> weft.Tensor:
    count, width = rows.type.static_shape
    pairs = weft.reshape(rows, (heads, count // heads // 2, 2, width))
    halves: weft.Tensor = weft.reshape(pairs.swapaxes(1, 2), (count, width))
    return halves
