"""`weft.onnx`: models in ONNX."""

from __future__ import annotations

import sys

from weft.interop import onnx

sys.modules[__name__] = onnx
