"""`import weft.onnx`: models in ONNX. Needs the package onnx."""

from __future__ import annotations

from weft.foundation.errors import UserError

try:
    from weft.interop.onnx import Model, backend, export, load, to_program
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "onnx":
        raise
    raise UserError(
        "weft.onnx needs the package onnx, which is not installed; pip install 'weft[onnx]'",
        "PackageMissing",
    ) from None

__all__ = ["Model", "backend", "export", "load", "to_program"]
