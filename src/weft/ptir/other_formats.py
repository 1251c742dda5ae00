"""Files that are plainly something else than a program: what their first bytes say they are."""

from __future__ import annotations

import re
from typing import Final

_BEGINNINGS: Final = {
    b"PK\x03\x04": "a zip archive, as NumPy's .npz and PyTorch's .pt files are",
    b"\x1f\x8b": "gzip's: unpack it first",
    b"\x93NUMPY": "one array of NumPy (.npy)",
    b"\x89HDF\r\n": "HDF5",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
    b"ML\xefR": "MLIR bytecode: write StableHLO as text",
    b"\x7fELF": "machine code",
    b"%PDF": "PDF",
    b"GGUF": "GGUF: tensors without a program; weft.load reads them",
}
_ONNX: Final = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]")
"""The version of the IR, and the beginning of the next field of ONNX's outermost message."""


def other_format(data: bytes) -> str | None:
    """What bytes look like that are no program, as it ends `it looks like ...`; None where they
    look like nothing in particular."""
    for beginning, what in _BEGINNINGS.items():
        if data.startswith(beginning):
            return what
    if _is_safetensors(data):
        return "safetensors: tensors without a program; weft.load reads them"
    return "an ONNX model" if _ONNX.match(data) else None


def _is_safetensors(data: bytes) -> bool:
    """The length of a JSON object, and the object."""
    length = int.from_bytes(data[:8], "little")
    return 2 <= length <= len(data) - 8 and data[8:9] == b"{" and data[7 + length] in b"} "
