"""`weft.onnx`: models in ONNX."""

from __future__ import annotations

import sys

try:
    from weft.interop import onnx
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "onnx":
        raise
    raise ModuleNotFoundError(
        "weft.onnx needs the package onnx, which is not installed: pip install 'weft[onnx]'",
        name=error.name,
    ) from None

sys.modules[__name__] = onnx
