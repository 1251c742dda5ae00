"""Models in ONNX: reading them as modules, running them by ONNX's own interface."""

from __future__ import annotations

from weft.interop.onnx import backend
from weft.interop.onnx.model import Model, load
from weft.interop.onnx.program import to_program

__all__ = ["Model", "backend", "load", "to_program"]
