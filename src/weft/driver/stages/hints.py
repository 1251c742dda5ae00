"""Required hints: their instructions run as one kernel, or the program is refused with the
reason."""

from __future__ import annotations

from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import Unimplemented
from weft.ptir.ir import HintPolicy, HintRegion
from weft.region.ir import Module


def check_required_hints(compilation: Compilation) -> None:
    """Every Required hint of the program has a kernel that computes all of it."""
    main = compilation.simple().main
    for hint in main.hints:
        if hint.policy is HintPolicy.REQUIRED:
            _check_hint(hint, compilation["region"], main.label)


def _check_hint(hint: HintRegion, module: Module, label: str) -> None:
    wanted = {instruction.id for instruction in hint.body}
    found = {name: wanted.intersection(ids) for name, ids in module.origin.items()}
    found = {name: ids for name, ids in found.items() if ids}
    computed = set().union(*found.values())
    if any(ids == computed for ids in found.values()) or not computed:
        return
    parts = [i.summary for i in hint.body if i.id in computed]
    raise Unimplemented(
        f"hint {hint.id} of {label}",
        f"it is a required {hint.kind}, but {', '.join(parts)} become {len(found)} kernels here: "
        f"{', '.join(found)}; make it preferred, or give it fewer instructions",
    )
