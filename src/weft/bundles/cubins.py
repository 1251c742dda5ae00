"""The machine code of a model for a GPU: one file of cubins, and the launch data of its kernels.

The file holds every cubin once, each at a multiple of 64 bytes; the library knows where they are,
and the digest of them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.bundles.c_text import c_array, c_string
from weft.bundles.manifest import CODE
from weft.bundles.variants import Variant
from weft.bundles.versions import Version
from weft.runtime.artifact import Artifact, KernelCode, TensorMap
from weft.runtime.cuda.sections import sections

_ALIGNMENT: Final = 64
_MOST_AXES: Final = 5
_DTYPES: Final = {
    "ui8": 0, "si8": 0, "i1": 0, "fp8_e4m3": 0, "fp8_e5m2": 0, "ui16": 1, "ui32": 2, "si32": 3,
    "ui64": 4, "si64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
"""What the driver calls the elements of tensor maps."""
_SWIZZLES: Final = {16: 0, 32: 1, 64: 2, 128: 3}


@dataclass(frozen=True)
class Cubins:
    """The file, and where in it each cubin begins."""

    size: int
    digest: bytes
    offsets: Mapping[bytes, int]


def write_cubins(folder: Path, variants: Sequence[Variant]) -> Cubins:
    """Write the file of all programs of a model."""
    artifacts = [each.artifact for variant in variants for each in variant.compiled.versions]
    offsets: dict[bytes, int] = {}
    parts, end = list[bytes](), 0
    for kernel in (kernel for artifact in artifacts for kernel in artifact.kernels):
        if kernel.code not in offsets:
            padded = kernel.code + bytes(-len(kernel.code) % _ALIGNMENT)
            offsets[kernel.code] = end
            parts.append(padded)
            end += len(padded)
    # A model whose results are inputs has no kernel; a file that is mapped is not empty.
    data = b"".join(parts) or bytes(_ALIGNMENT)
    (folder / CODE).write_bytes(data)
    return Cubins(len(data), hashlib.sha256(data).digest(), offsets)


def kernel_entries(cubins: Cubins, artifact: Artifact) -> list[dict[str, Any]]:
    """The kernels of a program as the manifest lists them."""
    return [
        {
            "symbol": kernel.symbol,
            "offset": cubins.offsets[kernel.code],
            "bytes": len(kernel.code),
            "grid": list(kernel.grid),
            "block": list(kernel.block),
            "cluster": list(kernel.cluster),
            "shared_bytes": kernel.shared_bytes,
            "workspace_bytes": kernel.workspace_bytes,
        }
        for kernel in artifact.kernels
    ]


def c_kernels(cubins: Cubins, number: int, version: Version) -> Iterator[str]:
    """The kernels of a version, with their tensor maps."""
    entries = []
    for place, kernel in enumerate(version.artifact.kernels):
        maps = "NULL"
        if kernel.tensor_maps:
            maps = f"maps_{number}_{place}"
            yield c_array("weft_map_of", maps, map(_map_initialiser, kernel.tensor_maps))
        entries.append(_kernel(cubins, kernel, maps))
    nothing = '{"", 0, {0, 0, 0}, {0, 0, 0}, 0, 0, NULL, 0, 0, 0, 0, 0, 0}'
    yield c_array("weft_kernel", f"kernels_{number}", entries, nothing)


def c_sections(number: int, artifact: Artifact) -> str:
    """Where the sections end that begin at each step."""
    found = sections(artifact.steps, turning=False)
    ends = {section.first: section.last for section in found}
    listed = (str(ends.get(step, 0)) for step in range(len(artifact.steps)))
    return c_array("int32_t", f"sections_{number}", listed)


def _kernel(cubins: Cubins, kernel: KernelCode, maps: str) -> str:
    head = f"{c_string(kernel.symbol)}, {cubins.offsets[kernel.code]}"
    launch = f"{_number_list(kernel.grid)}, {_number_list(kernel.block)}, {kernel.cluster[0]}"
    flags = ", ".join(str(int(on)) for on in (kernel.reports, kernel.waits, kernel.together))
    rest = f"{maps}, {len(kernel.tensor_maps)}, {flags}, {kernel.workspace_bytes}, {kernel.sets}"
    return f"{{{head}, {launch}, {kernel.shared_bytes}, {rest}}}"


def _map_initialiser(found: TensorMap) -> str:
    window, rank = found.window, len(found.sizes)
    steps = (1,) * rank if window is None else (1, *window.steps, 1)
    lower, upper = ((), ()) if window is None else (window.lower, window.upper)
    numbers = f"{found.buffer}, {_DTYPES[found.dtype]}, {_SWIZZLES[found.swizzle]}, {rank}"
    lists = (found.sizes, found.strides, found.box, steps)
    tables = ", ".join(_number_list(each, _MOST_AXES) for each in lists)
    corners = f"{_number_list(lower, 3)}, {_number_list(upper, 3)}"
    return f"{{{numbers}, {found.offset}, {tables}, {corners}, {int(window is not None)}}}"


def _number_list(values: Sequence[int], count: int = 0) -> str:
    """A list of numbers, with zeros behind them up to a count."""
    padded = [*values, *[0] * (count - len(values))]
    return f"{{{', '.join(map(str, padded))}}}"
