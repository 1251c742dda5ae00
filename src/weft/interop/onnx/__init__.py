"""Models in ONNX: reading them as modules, writing them, running them by ONNX's own interface."""

from __future__ import annotations

from weft.interop.onnx import backend
from weft.interop.onnx.model import Model, load
from weft.interop.onnx.program import to_program
from weft.interop.onnx.writing.model import export

__all__ = ["Model", "backend", "export", "load", "to_program"]
