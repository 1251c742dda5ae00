"""PyTorch's models and tensors (`weft[torch]`).

module = weft.torch.from_module(model, example)    a module of Weft; from_exported(program) likewise
torch.compile(model, backend="weft")               Weft as a compiler of torch
"""

from weft.interop.torch.exported import TorchModule, from_exported, from_module
from weft.interop.torch.rules import rule
from weft.interop.torch.tensors import from_tensor, to_tensor

__all__ = ["TorchModule", "from_exported", "from_module", "from_tensor", "rule", "to_tensor"]
