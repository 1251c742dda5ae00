"""Exported programs of torch on the command line. Loaded where one is given: torch is not always
there."""

from __future__ import annotations

from weft.interop.torch.program import load_program

__all__ = ["load_program"]
