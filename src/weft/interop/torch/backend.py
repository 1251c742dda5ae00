"""`torch.compile(model, backend="weft")`: Weft as a compiler of torch, found by its entry point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.driver.stages.compilation import check_level
from weft.foundation.errors import UserError, a_type
from weft.foundation.lines import reading_line, shown
from weft.interop.torch import decompositions
from weft.interop.torch.attention_op import keep_attention
from weft.interop.torch.compiled import Settings
from weft.interop.torch.fallback import compiled

OPTIONS: Final = ("dump", "explain", "opt_level")


def weft_backend(
    module: GraphModule,
    example_inputs: list[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Any:
    """A graph of Dynamo, with the gradients that AOTAutograd makes of it, as programs of Weft."""
    settings = replace(_settings(options or {}, mode), whole=_wants_full_graph())
    make = partial(_compile_module, settings=settings)
    lower = aot_autograd(
        fw_compiler=make,
        bw_compiler=make,
        inference_compiler=make,
        decompositions=decompositions.of_compile(),
        keep_inference_input_mutations=True,
    )
    with _plain_words():
        return lower(keep_attention(module), example_inputs)


@contextmanager
def _plain_words() -> Iterator[None]:
    """While torch traces, tensors on a GPU must not bring in ops of the libraries that torch would
    call there."""
    if not torch.cuda.is_available():
        yield
        return
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


def _compile_module(module: GraphModule, fakes: list[Any], settings: Settings) -> Any:
    with unset_fake_temporarily():
        return compiled(module, fakes, settings)


def _settings(options: Mapping[str, Any], mode: str | None) -> Settings:
    """What the caller of `torch.compile` wants; what is wrong with it is told with his line, which
    is behind torch's own."""
    try:
        return _check_options(options, mode)
    except UserError as error:
        raise error.at("torch.compile", shown(reading_line())) from None


def _check_options(options: Mapping[str, Any], mode: str | None) -> Settings:
    strange = sorted(set(options) - set(OPTIONS))
    if strange:
        raise UserError(
            f"weft has no option {strange[0]!r}; its options are {', '.join(OPTIONS)}",
            "UnknownOption",
        )
    if mode not in (None, "default"):
        raise UserError(
            f"weft has no mode {mode!r}; leave mode= out, and give "
            "options={'opt_level': 3} for a search that takes longer",
            "UnknownOption",
        )
    made = Settings(**options)
    check_level(made.opt_level)
    if not isinstance(made.dump, str):
        raise UserError(f"dump is the name of a folder, not {a_type(made.dump)}", "UnknownOption")
    return made


def _wants_full_graph() -> bool:
    """Whether `fullgraph=True` was asked for."""
    try:
        translator: Any = InstructionTranslator.current_tx()
    except AttributeError:
        return False
    return bool(getattr(translator, "one_graph", False))
