"""`weft.build`: a model as a bundle, a folder that C, C++ and Python run without the compiler."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from weft.bundles import cubins, manifest
from weft.bundles.c_source import c_source, kernel_symbol, linked_symbol
from weft.bundles.elf import renamed
from weft.bundles.header import cmake, example, header
from weft.bundles.layout import Layout, Tensor, constant_places, stored
from weft.bundles.library import compiler_for, link
from weft.bundles.model import Model, model_of
from weft.bundles.processors import machine_of
from weft.bundles.variants import Variant, by_machine, targets_of, variants_of
from weft.bundles.versions import Ranges
from weft.bundles.weights import write_weights
from weft.driver.programs.shape_sets import ShapeSet
from weft.foundation import limits
from weft.foundation.errors import UserError, WeftError, clipped
from weft.ops.calls import public
from weft.ptir.codecs import bincode
from weft.runtime import native
from weft.runtime.jit import object_code
from weft.target.target import Target

_C_LIBRARY: Final = frozenset({*native.EXTERNAL, "memcpy", "memmove", "memset", "memcmp"})
"""What machine code calls that is not ours."""
PROGRAM: Final = "program.bin"


@public
def build(
    source: Any,
    *example: Any,
    out: str | os.PathLike[str],
    name: str | None = None,
    target: str | Target | Sequence[str | Target] = "cpu",
    sizes: Mapping[str, tuple[int, int]] | None = None,
    shapes: ShapeSet | None = None,
    state: Any = (),
    cc: str | Mapping[str, str] | None = None,
) -> Path:
    """Write a bundle: `source`, a function under `jit` with an example of its arguments or a
    program, compiled for a target, with its weights, a header and a library.

    The modules among the arguments, and the tensors that the function captures, are the weights.
    `state` names arguments that stay in an instance: the last of what the function returns are
    their new values; of a program, `{input: result}`. `sizes={"B": (1, 64)}` are the ranges of open
    sizes, and `shapes` says which of them share a program. `target` is `cpu`, a kind of processor,
    or a GPU (`sm80`, `sm90`), which need not be there; or a list of processors, or of GPUs, of
    which the best that a machine runs is chosen there. `cc` is a C compiler for the target; for
    several kinds of machines `{"aarch64": "clang --target=aarch64-linux-gnu"}`.
    """
    targets = targets_of(target)
    model = model_of(source, example, name, state, shapes)
    commands = _compilers(targets, cc)
    folder = Path(out)
    _check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and so on the same file system: a bundle is moved there when it is whole, or
    # never.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".weft-build-") as unfinished:
        made = Path(unfinished) / "bundle"
        made.mkdir()
        _write_bundle(made, model, targets, _ranges(sizes), commands)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder


def _compilers(
    targets: Sequence[Target], given: str | Mapping[str, str] | None
) -> dict[str, list[str]]:
    """The C compiler for every kind of machine."""
    machines = dict.fromkeys(map(machine_of, targets))
    listed = ", ".join(machines)
    if isinstance(given, str):
        if len(machines) > 1:
            other = next(machine for machine in machines if machine != platform.machine())
            raise UserError(
                f"cc names one C compiler, but the targets are different kinds of machines: "
                f"{listed}; name one for each, as in cc={{{other!r}: {clipped(given, 80)!r}}}"
            )
        given = dict.fromkeys(machines, given)
    named = dict(given or {})
    odd = [machine for machine in named if machine not in machines]
    if odd:
        raise UserError(f"cc has a C compiler for {odd[0]!r:.40}; the targets run on {listed}")
    return {machine: compiler_for(machine, named.get(machine)) for machine in machines}


def _check_free(folder: Path) -> None:
    """Only a bundle, or an empty folder, is replaced."""
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / manifest.FILE).is_file()):
        return
    if folder.exists():
        raise UserError(f"{folder} exists and is not a bundle; give a folder that may be replaced")


def _ranges(sizes: Mapping[str, tuple[int, int]] | None) -> Ranges:
    found: Ranges = {}
    for name, span in (sizes or {}).items():
        if not isinstance(span, tuple | list) or [type(size) for size in span] != [int, int]:
            raise UserError(
                f"the range of {name} is {span!r}; give (smallest, largest), such as (1, 64)"
            )
        found[name.removeprefix("?")] = (span[0], span[1])
    return found


def _write_bundle(
    folder: Path,
    model: Model,
    targets: Sequence[Target],
    ranges: Ranges,
    commands: Mapping[str, list[str]],
) -> None:
    layout = _laid_out(folder, model, variants_of(model, targets, ranges))
    texts = {
        f"{model.name}.h": header(layout),
        "example.c": example(layout),
        "CMakeLists.txt": cmake(model.name, len(commands) > 1),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for machine, variants in by_machine(layout.variants).items():
        place = folder / machine if len(commands) > 1 else folder
        _write_library(place, folder, replace(layout, variants=variants), commands[machine])
    with suppress(WeftError):  # Not every program has a wire form; a bundle runs without it.
        (folder / PROGRAM).write_bytes(bincode.encode(model.program))
    manifest.write_manifest(folder, _content(layout, folder))


def _laid_out(folder: Path, model: Model, variants: tuple[Variant, ...]) -> Layout:
    """Write what all libraries of a bundle share, and say what is where."""
    tensors = stored(model, variants)
    return Layout(
        model,
        variants,
        write_weights(folder, tensors),
        tensors,
        constant_places(tensors, variants),
        _builder(),
        limits.current().loop_steps,
        cubins.write_cubins(folder, variants) if variants[0].architecture else None,
    )


def _write_library(place: Path, folder: Path, layout: Layout, command: list[str]) -> None:
    """The library for one kind of machine."""
    place.mkdir(exist_ok=True)
    (place / f"{layout.name}.c").write_text(c_source(layout))
    header = os.path.relpath(folder, place)
    machine = layout.variants[0].machine
    link(place, layout.name, machine, _objects(layout), command, header)


def _objects(layout: Layout) -> dict[str, bytes]:
    """The machine code of the kernels and of the executor, under names of their own; that of a GPU
    is in a file."""
    if layout.cubins is not None:
        return {}
    # The variant that asks for least comes last: what runs any of them runs its executor.
    least = layout.variants[-1].target
    executor, _ = object_code(native.source(least.code[0]), None if least.is_here else least.code)
    name_of = partial(linked_symbol, layout.name)
    objects = {name_of("executor"): renamed(executor, name_of, _C_LIBRARY)}
    for variant in layout.variants:
        name_of = partial(kernel_symbol, layout, variant)
        for version in variant.compiled.versions:
            for kernel in version.artifact.kernels:
                objects[name_of(kernel.symbol)] = renamed(kernel.code, name_of, _C_LIBRARY)
    return objects


def _content(layout: Layout, folder: Path) -> dict[str, Any]:
    """What the manifest says."""
    return {
        "format": manifest.FORMAT,
        "abi": manifest.ABI,
        "name": layout.name,
        "made_by": layout.made_by,
        "targets": [
            {**variant.listed, "programs": _programs(layout.cubins, variant)}
            for variant in layout.variants
        ],
        "inputs": [_tensor_document(layout, tensor) for tensor in layout.inputs],
        "results": [_tensor_document(layout, tensor) for tensor in layout.results],
        "states": [_tensor_document(layout, tensor) for tensor in layout.states],
        "sizes": {name: list(span) for name, span in layout.ranges.items()},
        "files": manifest.file_entries(folder),
    }


def _programs(code: cubins.Cubins | None, variant: Variant) -> list[dict[str, Any]]:
    return [
        {
            "sizes": version.sizes,
            "filled": sorted(version.filled),
            "steps": len(version.artifact.steps),
            "kernels": len(version.artifact.kernels),
            "arena_bytes": version.artifact.arena_bytes,
            **({"launches": cubins.kernel_entries(code, version.artifact)} if code else {}),
        }
        for version in variant.compiled.versions
    ]


def _tensor_document(layout: Layout, tensor: Tensor) -> dict[str, Any]:
    names = [*layout.ranges, *layout.followers]
    shape = [names[-1 - size] if size < 0 else size for size in tensor.shape]
    return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": shape}


def _builder() -> str:
    """Who built a bundle; Weft may run from a folder that was never installed."""
    try:
        return f"weft {metadata.version('weft')}"
    except metadata.PackageNotFoundError:
        return "weft"
