"""Checkpoints as transformers writes them, and as GGUF: the examples give the same scores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import gpt2_generate, llama
from examples.llama_weights import config_of, published
from examples.published import Published, read, tokeniser_of
from tests.support import gguf_files
from weft import nn

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("default_backend")

TOKENS = [3, 14, 15, 9, 26, 5]
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def made(model: Any) -> Any:
    """The model with random weights that are not small."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def a_llama(**changed: Any) -> Any:
    config = transformers.LlamaConfig(**SIZES, max_position_embeddings=512, **changed)
    return made(transformers.LlamaForCausalLM(config))


def scores(model: Any) -> Any:
    return model(torch.tensor([TOKENS])).logits.detach().numpy()


def likeliest(model: Any, count: int) -> list[int]:
    given = torch.tensor([TOKENS])
    return list(model.generate(given, max_new_tokens=count, do_sample=False)[0].tolist())


@pytest.mark.parametrize(
    ("changed", "dtype"),
    [({}, "f32"), ({"rope_parameters": SCALED, "tie_word_embeddings": True}, "f32"), ({}, "bf16")],
    ids=["Llama 2", "Llama 3", "bf16"],
)
def test_a_sharded_llama(changed: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    theirs = a_llama(**changed)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model, _ = published(llama.Llama, tmp_path, dtype)
    found = model(weft.asarray(np.array([TOKENS], np.int32))).numpy().astype(np.float32)
    close = 3e-5 if dtype == "f32" else 0.2
    np.testing.assert_allclose(found, scores(theirs), rtol=close, atol=close)
    if dtype == "f32":
        assert llama.generate(model, TOKENS, 6) == likeliest(theirs, 6)


def pairs(weight: Any, heads: int) -> Any:
    """Rows of queries or keys as GGUF has them: those that turn together side by side."""
    rows, width = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, width)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, width)


def as_gguf(model: Any, packed: Callable[[Any], Any] = lambda weight: weight) -> bytes:
    """The weights of transformers' Llama under the names of GGUF, matrices as `packed` has them."""
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"{x}_proj": f"attn_{x}" for x in "qkv"} | {"o_proj": "attn_output"}
    names |= {f"{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
    tensors: dict[str, Any] = {}
    for name, parameter in model.state_dict().items():
        parts, array = name.split("."), parameter.numpy()
        layer = f"blk.{parts[2]}." if "layers" in parts else ""
        if parts[-2] in ("q_proj", "k_proj"):
            array = pairs(array, 4 if parts[-2] == "q_proj" else 2)
        tensors[f"{layer}{names[parts[-2]]}.weight"] = packed(array) if array.ndim == 2 else array
    facts: dict[str, Any] = {"general.architecture": "llama", "llama.embedding_length": 32}
    facts |= {"llama.block_count": 2, "llama.feed_forward_length": 64}
    facts |= {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    facts |= {"llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.rope.freq_base": 10_000.0}
    return gguf_files.file(tensors, facts)


def test_the_same_llama_as_gguf(tmp_path: Path) -> None:
    theirs = a_llama()
    (tmp_path / "model.gguf").write_bytes(as_gguf(theirs))
    model, _ = published(llama.Llama, tmp_path / "model.gguf", "f32")
    found = model(weft.asarray(np.array([TOKENS], np.int32))).numpy()
    np.testing.assert_allclose(found, scores(theirs), rtol=3e-5, atol=3e-5)


def in_bytes(weight: Any) -> tuple[int, tuple[int, ...], bytes]:
    """A weight in blocks of 32 whole numbers of 8 bits under a scale (Q8_0)."""
    blocks = weight.reshape(-1, 32)
    scales = np.maximum(np.abs(blocks).max(1, keepdims=True) / 127, 1e-6).astype(np.float16)
    codes = np.round(blocks / scales.astype(np.float32)).astype(np.int8)
    raw = np.hstack([scales.view(np.uint8), codes.view(np.uint8)])
    return 8, weight.shape, raw.tobytes()


def test_a_llama_that_stays_packed(tmp_path: Path) -> None:
    """Its scores are those of the same weights in floats, and close to those before rounding."""
    theirs = a_llama()
    path = tmp_path / "model.gguf"
    path.write_bytes(as_gguf(theirs, in_bytes))
    model, _ = published(llama.Llama, path, "f32", packed=True)
    plain, _ = published(llama.Llama, path, "f32")
    kept = model.layers[0].self_attn.q_proj.weight
    assert isinstance(kept, nn.Packed)
    assert kept.nbytes < 32 * 32 * 2
    tokens = weft.asarray(np.array([TOKENS], np.int32))
    found = nn.unpacked(model)(tokens).numpy()
    np.testing.assert_allclose(found, plain(tokens).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, scores(theirs), rtol=0.1, atol=0.1)
    assert llama.generate(model, TOKENS, 4) == llama.generate(plain, TOKENS, 4)


def test_a_gpt2(tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=4, eos_token_id=None
    )
    theirs = made(transformers.GPT2LMHeadModel(config))
    theirs.save_pretrained(tmp_path)
    model = gpt2_generate.published_model(tmp_path)
    found = model(weft.asarray(np.array([TOKENS], np.int32))).numpy()
    np.testing.assert_allclose(found, scores(theirs), rtol=3e-5, atol=3e-5)


def test_text_in_and_text_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = a_llama(eos_token_id=None)
    theirs.save_pretrained(tmp_path)
    words = {f"w{number}": number for number in range(50)}
    tokeniser = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokeniser.save(str(tmp_path / "tokenizer.json"))
    text = " ".join(f"w{token}" for token in TOKENS)
    command = ["llama", "--weights", str(tmp_path), "--prompt", text, "--count", "3"]
    monkeypatch.setattr(sys, "argv", command)
    llama.main()
    expected = " ".join(f"w{token}" for token in likeliest(theirs, 3))
    assert capsys.readouterr().out.strip() == expected


def test_a_tokeniser_that_is_damaged_is_told(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(weft.UserError, match=r"cannot read .*tokenizer\.json: EOF"):
        tokeniser_of(Published({}, {}, path))


def test_models_of_another_kind_are_told(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match=r"a qwen2's with \['attention_bias'\]; this is"):
        config_of(Published({"model_type": "qwen2", "attention_bias": True}, {}, None))
    with pytest.raises(weft.UserError, match="does not say its num_attention_heads"):
        config_of(Published({"model_type": "llama"}, {}, None))
    facts = {"general.architecture": "mamba"}
    array = np.zeros((1, 1), np.float32)
    (tmp_path / "x.gguf").write_bytes(gguf_files.file({"token_embd.weight": array}, facts))
    with pytest.raises(weft.UserError, match="holds a mamba; there are names for llama, gpt2"):
        read(tmp_path)
