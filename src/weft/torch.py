"""`import weft.torch`: PyTorch's models and tensors. Needs the package torch."""

from __future__ import annotations

from weft.foundation.errors import UserError

try:
    from weft.interop.torch import (
        TorchModule,
        from_exported,
        from_module,
        from_tensor,
        rule,
        to_tensor,
    )
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise UserError(
        "weft.torch needs PyTorch, which is not installed; pip install 'weft[torch]'",
        "PackageMissing",
    ) from None

__all__ = ["TorchModule", "from_exported", "from_module", "from_tensor", "rule", "to_tensor"]
