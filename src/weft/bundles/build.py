"""`weft.build`: a model as a bundle, a folder that C, C++ and Python run without the compiler."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from weft.bundles import cubins, manifest
from weft.bundles.c_source import c_source, kernel_symbol
from weft.bundles.elf import renamed
from weft.bundles.header import cmake, example, header
from weft.bundles.layout import Layout, Tensor, stored
from weft.bundles.library import compiler_for, link
from weft.bundles.model import Model, model_of
from weft.bundles.processors import features_of, machine_of, required
from weft.bundles.versions import Ranges, compile_versions
from weft.bundles.weights import write_weights
from weft.driver.programs.shape_sets import ShapeSet
from weft.foundation import limits
from weft.foundation.errors import UserError, WeftError
from weft.ops.calls import public
from weft.ptir.codecs import bincode
from weft.runtime import native
from weft.runtime.jit import host_cpu, object_code
from weft.target.known import target_named
from weft.target.target import Kind, Target

_C_LIBRARY: Final = frozenset({*native.EXTERNAL, "memcpy", "memmove", "memset", "memcmp"})
"""What machine code calls that is not ours."""
PROGRAM: Final = "program.bin"


@public
def build(
    source: Any,
    *example: Any,
    out: str | os.PathLike[str],
    name: str | None = None,
    target: str | Target = "cpu",
    sizes: Mapping[str, tuple[int, int]] | None = None,
    shapes: ShapeSet | None = None,
    state: Any = (),
    cc: str | None = None,
) -> Path:
    """Write a bundle: `source`, a function under `jit` with an example of its arguments or a
    program, compiled for a target, with its weights, a header and a library.

    The modules among the arguments, and the tensors that the function captures, are the weights.
    `state` names arguments that stay in an instance: the last of what the function returns are
    their new values; of a program, `{input: result}`. `sizes={"B": (1, 64)}` are the ranges of open
    sizes, and `shapes` says which of them share a program. `target` is `cpu`, a kind of processor,
    or a GPU (`sm80`, `sm90`), which need not be there. `cc` is a C compiler for the target.
    """
    chosen = target_named(target)
    if chosen.kind is Kind.GPU:
        # Machine code for GPUs of that kind, whichever this machine has.
        chosen = replace(chosen, machine=chosen.name)
    model = model_of(source, example, name, state, shapes)
    command = compiler_for(machine_of(chosen), cc)
    folder = Path(out)
    _check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".weft-build-") as unfinished:
        made = Path(unfinished) / "bundle"
        made.mkdir()
        _write(made, model, chosen, _ranges(sizes), command)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder


def _check_free(folder: Path) -> None:
    """Only a bundle, or an empty folder, is replaced."""
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / manifest.FILE).is_file()):
        return
    if folder.exists():
        raise UserError(f"{folder} is there, and is no bundle; give a folder that may be replaced")


def _ranges(sizes: Mapping[str, tuple[int, int]] | None) -> Ranges:
    found: Ranges = {}
    for name, span in (sizes or {}).items():
        if not isinstance(span, tuple | list) or [type(size) for size in span] != [int, int]:
            raise UserError(f"the range of {name} is {span!r}; give (least, most), such as (1, 64)")
        found[name.removeprefix("?")] = (span[0], span[1])
    return found


def _write(folder: Path, model: Model, target: Target, ranges: Ranges, command: list[str]) -> None:
    versions = compile_versions(model, target, ranges)
    tensors = stored(model, versions)
    code = cubins.write_cubins(folder, versions) if target.kind is Kind.GPU else None
    features = [] if code else features_of(target, host_cpu()[2])
    layout = Layout(
        model,
        versions,
        write_weights(folder, tensors),
        tensors,
        _built_for(target, code),
        _builder(),
        required(machine_of(target), features),
        limits.current().loop_steps,
        code,
    )
    texts = {
        f"{model.name}.h": header(layout),
        f"{model.name}.c": c_source(layout),
        "example.c": example(layout),
        "CMakeLists.txt": cmake(model.name),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    link(folder, model.name, _objects(layout, target), command)
    with suppress(WeftError):  # Not every program has a wire form; a bundle runs without it.
        (folder / PROGRAM).write_bytes(bincode.encode(model.program))
    manifest.write(folder, _content(layout, target, features, folder))


def _built_for(target: Target, code: cubins.Cubins | None) -> str:
    """The machine, in words."""
    if code is not None:
        return f"{target.name} ({code.architecture})"
    return target.machine or f"{machine_of(target)} ({host_cpu()[1]})"


def _objects(layout: Layout, target: Target) -> dict[str, bytes]:
    """The machine code of the kernels and of the executor, under names of their own; that of a GPU
    is in a file."""
    if layout.cubins is not None:
        return {}
    code = None if target.is_here else target.code
    executor, _ = object_code(native.SOURCE, code)
    objects = {"executor": executor}
    for version in layout.versions:
        objects |= {kernel.symbol: kernel.code for kernel in version.artifact.kernels}
    return {
        kernel_symbol(layout.name, symbol): renamed(
            each, lambda name: kernel_symbol(layout.name, name), _C_LIBRARY
        )
        for symbol, each in objects.items()
    }


def _content(layout: Layout, target: Target, features: list[str], folder: Path) -> dict[str, Any]:
    """What the manifest says."""
    triple, processor, _ = target.code if target.machine else host_cpu()
    code = layout.cubins
    if code is not None:
        triple, processor = "", code.architecture
    name = target.name if code else target.machine or "cpu"
    machine = {"name": name, "machine": machine_of(target), "triple": triple}
    return {
        "format": manifest.FORMAT,
        "abi": manifest.ABI,
        "name": layout.name,
        "made_by": layout.made_by,
        "target": {**machine, "processor": processor, "features": features},
        "inputs": [_tensor(layout, tensor) for tensor in layout.inputs],
        "results": [_tensor(layout, tensor) for tensor in layout.results],
        "states": [_tensor(layout, tensor) for tensor in layout.states],
        "sizes": {name: list(span) for name, span in layout.ranges.items()},
        "programs": [
            {
                "sizes": version.sizes,
                "filled": sorted(version.filled),
                "steps": len(version.artifact.steps),
                "kernels": len(version.artifact.kernels),
                "arena_bytes": version.artifact.arena_bytes,
                **({"launches": cubins.listed(code, version.artifact)} if code else {}),
            }
            for version in layout.versions
        ],
        "files": manifest.listed(folder),
    }


def _tensor(layout: Layout, tensor: Tensor) -> dict[str, Any]:
    names = [*layout.ranges, *layout.followers]
    shape = [names[-1 - size] if size < 0 else size for size in tensor.shape]
    return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": shape}


def _builder() -> str:
    """Who built a bundle; Weft may run from a folder that was never installed."""
    try:
        return f"weft {metadata.version('weft')}"
    except metadata.PackageNotFoundError:
        return "weft"
