"""The code of a program's kernels, the slowest first: as much as a page has room for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

from weft.driver.code.gpu_kernels import compile_sources
from weft.driver.code.gpu_linker import arch_for
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.variables import Lets
from weft.explorer.listings import Listing, assembly_listing, gpu_listings, llvm_listing
from weft.foundation.errors import WeftError
from weft.foundation.tally import counted
from weft.target.target import Kind

MOST_LINES: Final = 30_000
"""Lines of one kind of code after which no other routine is begun: all of GPT-2's fit in."""
Json: TypeAlias = dict[str, Any]


def codes_of(
    compilation: Compilation, dearest: Iterable[str], full: bool, variables: Mapping[str, Lets]
) -> dict[str, Listing]:
    """LLVM IR and machine code of a CPU's routines; CUDA, PTX and SASS of a GPU's kernels, of whose
    `variables` it is known by symbol what they are."""
    stage = "llvm" if compilation.target.kind is Kind.CPU else "cu"
    sources = getattr(compilation.values.get(stage), "sources", None)
    if sources is None:
        return {}
    symbols = [symbol for symbol in dict.fromkeys(dearest) if symbol in sources]
    if compilation.target.kind is Kind.CPU:
        return _take_fitting(symbols, lambda symbol: _of_cpu(compilation, symbol), full)
    lets = variables.get
    return _take_fitting(
        symbols, lambda symbol: _of_gpu(compilation, symbol, lets(symbol, {})), full
    )


def _of_cpu(compilation: Compilation, symbol: str) -> dict[str, Listing]:
    target = compilation.target
    routine = compilation["cpu"].routines[symbol]
    ir = llvm_listing(compilation["llvm"].sources[symbol], routine, target.features)
    cpu = None if target.is_here else target.code
    return {"llvm": ir, "asm": assembly_listing(ir, symbol, cpu)}


def _of_gpu(compilation: Compilation, symbol: str, lets: Lets) -> dict[str, Listing]:
    source = compilation["cu"].sources[symbol]
    try:
        made = gpu_listings(source, arch_for(compilation.target), lets)
    except WeftError as error:
        lines = source.rstrip("\n").split("\n")
        return {"cu": Listing(lines), "ptx": Listing([f"; there is none: {error}"])}
    return {"cu": made.cuda, "ptx": made.ptx, "sass": made.sass}


def _take_fitting(
    symbols: Sequence[str], make: Callable[[str], Mapping[str, Listing]], full: bool
) -> dict[str, Listing]:
    """Routines one after the other, until there is no room for more."""
    found: dict[str, Listing] = {}
    at_once = os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        for start in range(0, len(symbols), at_once):
            batch = symbols[start : start + at_once]
            for number, (symbol, listings) in enumerate(
                zip(batch, pool.map(make, batch), strict=True), start
            ):
                if not full and _is_full(found):
                    _tell_left(found, len(symbols) - number)
                    return found
                for stage, listing in listings.items():
                    whole = found.setdefault(stage, Listing())
                    whole.lines.append(f"; ==== kernel {symbol}")
                    whole.extend(listing)
    return found


def _is_full(found: Mapping[str, Listing]) -> bool:
    return any(len(listing.lines) >= MOST_LINES for listing in found.values())


def _tell_left(found: Mapping[str, Listing], count: int) -> None:
    left = counted(count, "routine")
    for listing in found.values():
        listing.lines.append(f"; {left} of faster kernels left out: weft explore --full has them")


def resources_of(compilation: Compilation) -> dict[str, Json]:
    """What every distinct kernel of a GPU takes, by symbol; nothing where none can be compiled."""
    module, sources = compilation.values.get("gpu"), compilation.values.get("cu")
    if module is None or sources is None:
        return {}
    try:
        reports = compile_sources(sources, arch_for(compilation.target)).cubins
    except WeftError:
        return {}
    return {
        symbol: {
            "blocks": kernel.grid,
            "threads": kernel.threads,
            "registers": reports[symbol].report.registers,
            "spilled": reports[symbol].report.spilled_bytes,
            "stack": reports[symbol].report.stack_bytes,
            "shared": kernel.shared_bytes,
        }
        for symbol, kernel in module.kernels.items()
        if symbol in reports
    }
