"""ONNX models on the command line. Loaded where one is given: its package is not always there."""

from __future__ import annotations

from weft.interop.onnx.model import load
from weft.interop.onnx.program import load_program
from weft.interop.onnx.writing.model import export

__all__ = ["export", "load", "load_program"]
