"""The models that importers are measured by, with random weights and sizes cut so that they run in
seconds. Each function gives a module and the arguments of a call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
SMALL: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED: dict[str, Any] = SMALL | {"num_key_value_heads": 2}


def tokens(count: int = 7) -> torch.Tensor:
    return torch.randint(3, 99, (2, count))


def image(size: int = 64) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def hugging(model: str, config: str, settings: dict[str, Any], **inputs: Any) -> Built:
    """A model of transformers."""
    library = importlib.import_module("transformers")
    made = getattr(library, config)(**settings)
    given = inputs or {"input_ids": tokens()}
    made.use_cache = False
    return getattr(library, model)(made), (), given


def pictures(name: str, size: int = 64, **settings: Any) -> Built:
    """A model of timm."""
    library = importlib.import_module("timm")
    return library.create_model(name, pretrained=False, **settings), (image(size),), {}


def t5() -> Built:
    settings = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                "num_heads": 4, "decoder_start_token_id": 0}  # fmt: skip
    given = {"input_ids": tokens(), "decoder_input_ids": tokens(5)}
    return hugging("T5Model", "T5Config", settings, **given)


def whisper() -> Built:
    library = importlib.import_module("transformers")
    config = library.WhisperConfig(
        vocab_size=99, d_model=32, encoder_layers=2, encoder_attention_heads=4, decoder_layers=2,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    return library.WhisperModel(config).get_encoder(), (torch.randn(2, 8, 40),), {}


def clip() -> Built:
    library = importlib.import_module("transformers")
    text = SMALL | {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 1}
    seen = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "image_size": 32, "patch_size": 8}  # fmt: skip
    config = library.CLIPConfig(text_config=text, vision_config=seen, projection_dim=16)
    return library.CLIPModel(config), (), {"input_ids": tokens(), "pixel_values": image(32)}


def vit() -> Built:
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                "intermediate_size": 64, "image_size": 32, "patch_size": 8}  # fmt: skip
    return hugging("ViTModel", "ViTConfig", settings, pixel_values=image(32))


def masked_llama() -> Built:
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[0, :3] = 0
    given = {"input_ids": tokens(), "attention_mask": mask}
    return hugging("LlamaForCausalLM", "LlamaConfig", GROUPED, **given)


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.around(x))


class UNet(nn.Module):  # type: ignore[misc]
    """Down by pooling, up by transposed convolution and by resampling, with shortcuts."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = Block(3, width, 1)
        self.deep = Block(width, 2 * width, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = Block(2 * width, width, 1)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        high = self.down(x)
        low = self.deep(nn.functional.max_pool2d(high, 2))
        smooth = nn.functional.interpolate(low, scale_factor=2, mode="bilinear")
        made = self.out(torch.cat([high, self.up(low)], 1))
        return self.head(made) + smooth.mean(1, keepdim=True)


class DLRM(nn.Module):  # type: ignore[misc]
    """Bags of embeddings and dense features, which meet pairwise."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Any, indices: Any, offsets: Any) -> Any:
        first = self.dense(x)
        rows = [bag(indices[at], offsets[at]) for at, bag in enumerate(self.bags)]
        both = torch.stack([first, *rows], 1)
        meet = both @ both.mT
        at = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([first, meet[:, at[0], at[1]]], 1)).sigmoid()


class Recurrent(nn.Module):  # type: ignore[misc]
    """A recurrent layer and a head."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = kind(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(x)[0])


def dlrm() -> Built:
    indices = torch.randint(0, 50, (3, 9))
    offsets = torch.tensor([[0, 2, 5, 7]] * 3)
    return DLRM(), (torch.randn(4, 5), indices, offsets), {}


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 6, 32),), {}


MODELS: dict[str, Callable[[], Built]] = {
    "GPT-2": lambda: hugging(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "Llama": lambda: hugging("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "Llama with a mask": masked_llama,
    "Mistral": lambda: hugging("MistralForCausalLM", "MistralConfig", GROUPED),
    "Qwen3": lambda: hugging("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"head_dim": 8}),
    "Gemma2": lambda: hugging("Gemma2ForCausalLM", "Gemma2Config", GROUPED | {"head_dim": 8}),
    "Mixtral": lambda: hugging(
        "MixtralForCausalLM", "MixtralConfig", GROUPED | {"num_local_experts": 4}
    ),
    "BERT": lambda: hugging("BertModel", "BertConfig", SMALL),
    "DeBERTa-v2": lambda: hugging("DebertaV2Model", "DebertaV2Config", SMALL),
    "T5": t5,
    "Whisper encoder": whisper,
    "ViT": vit,
    "CLIP": clip,
    "Mamba": lambda: hugging(
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    ),
    "Mamba2": lambda: hugging(
        "Mamba2ForCausalLM", "Mamba2Config",
        {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4,
         "num_heads": 4, "head_dim": 8, "chunk_size": 4, "n_groups": 1},
    ),
    "ResNet18": lambda: pictures("resnet18", 32),
    "ResNet50": lambda: pictures("resnet50", 32),
    "ConvNeXt atto": lambda: pictures("convnext_atto", 32),
    "EfficientNet b0": lambda: pictures("efficientnet_b0", 32),
    "MobileNetV3 small": lambda: pictures("mobilenetv3_small_100", 32),
    "Swin tiny": lambda: pictures(
        "swin_tiny_patch4_window7_224", 56, img_size=56, depths=(1, 1, 1, 1), window_size=7,
    ),
    "ViT tiny": lambda: pictures("vit_tiny_patch16_224", 32, img_size=32, depth=2),
    "DenseNet121": lambda: pictures("densenet121", 32),
    "U-Net": lambda: (UNet(), (image(16),), {}),
    "DLRM": dlrm,
    "LSTM": lambda: (Recurrent(nn.LSTM), (torch.randn(2, 5, 6),), {}),
    "GRU": lambda: (Recurrent(nn.GRU), (torch.randn(2, 5, 6),), {}),
    "TransformerEncoder": encoder,
}  # fmt: skip
