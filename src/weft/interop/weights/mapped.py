"""A file as bytes that the system reads when they are used, and the tensors that lie in it.

Nothing here trusts a table: a tensor lies inside its file, has as many bytes as its shape and
dtype say, and shares none with another.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError

Array = NDArray[Any]
_MOST_AXES: Final = 64
_PICKLES: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How the files of `torch.save` begin: zip archives of a pickle, or pickles."""
_NUMPY: Final = {".npz": b"PK\x03\x04", ".npy": b"\x93NUM"}
_LEGACY: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the bytes of a file."""

    name: str
    start: int
    size: int


def map_file(path: Path, caller: str = "load", *, strict: bool = False) -> memoryview:
    """The bytes of a file, which nobody can write through this. A pipe is not waited for. If
    `strict`, the file is of one name only: neither a link nor a file that is elsewhere too."""
    flags = ("O_NONBLOCK", "O_CLOEXEC", *(("O_NOFOLLOW",) if strict else ()))
    try:
        descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    except OSError as error:
        raise UserError(f"[{caller}] cannot read {path}: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"[{caller}] cannot read {path}: it is not a plain file")
        if strict and found.st_nlink > 1:
            raise UserError(f"[{caller}] cannot read {path}: it is a file of another name, too")
        if not found.st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise UserError(f"[{caller}] cannot read {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def refuse_pickle(path: Path, data: memoryview) -> None:
    """A file of `torch.save` is refused: reading one runs what its author wrote. Arrays of NumPy
    are none, but have no reader here."""
    beginning = bytes(data[:4])
    if path.suffix in _NUMPY and beginning in _NUMPY.values():
        arrays = "dict(arrays)" if path.suffix == ".npz" else '{"x": arrays}'
        raise UserError(
            f"[load] {path} holds arrays of NumPy, and weights are read from safetensors and GGUF "
            f"files. Convert it once: arrays = numpy.load({path.name!r}), then weft.save("
            f"{path.with_suffix('.safetensors').name!r}, {arrays})"
        )
    if beginning.startswith(_PICKLES) or (path.suffix in _LEGACY and beginning[:1] == b"\x80"):
        target = path.with_suffix(".safetensors").name
        raise UserError(
            f"[load] {path} is a pickle, as torch.save writes them; reading one can run any code, "
            f"so Weft reads none. Convert it once, where you trust it: safetensors.torch.save_file("
            f"torch.load({path.name!r}, weights_only=True), {target!r})"
        )


def array_at(data: memoryview, start: int, kind: DType, shape: tuple[int, ...]) -> Array:
    """Elements in a file as an array that shares its bytes, where they are aligned."""
    count = math.prod(shape)
    if not count:
        return np.empty(shape, kind.numpy)
    return np.frombuffer(data, kind.numpy, count, start).reshape(shape)


def checked_shape(name: str, given: Any) -> tuple[int, ...]:
    """A shape that an array can have, or a `ValueError` that says why not."""
    good = isinstance(given, list) and all(type(n) is int and 0 <= n < 2**63 for n in given)
    if not good or len(given) > _MOST_AXES:
        raise ValueError(f"{name} has the shape {str(given)[:80]}")
    # A size of 0 makes a tensor of no bytes, and the others may still be too large for an array.
    if math.prod(max(n, 1) for n in given) >= 2**60:
        raise ValueError(f"{name} has the shape {str(given)[:80]}, which no memory can hold")
    return tuple(given)


def check_places(places: Iterable[Place], end: int, *, dense: bool) -> None:
    """Tensors lie between 0 and `end` and share no byte; if `dense`, they leave none out."""
    reached = 0
    for place in sorted(places, key=lambda p: (p.start, p.size)):
        if place.start + place.size > end:
            raise ValueError(
                f"{place.name} ends at byte {place.start + place.size} of {end}; the file is cut "
                "short or its table is wrong"
            )
        if place.start < reached and place.size:
            raise ValueError(f"{place.name} begins inside of another tensor")
        if dense and place.start != reached and place.size:
            raise ValueError(f"nothing is in the {place.start - reached} bytes before {place.name}")
        reached = max(reached, place.start + place.size)
    if dense and reached != end:
        raise ValueError(f"the last {end - reached} bytes belong to no tensor")
