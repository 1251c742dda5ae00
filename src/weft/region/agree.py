"""Checks of edited kernels against those that were made: the same inputs and outputs of the
program. What happens between them is free.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.foundation.errors import Finding, SpecViolation
from weft.region.ir import Module, Tensor


def agree(read: Module, made: Module) -> None:
    """Raise where a module that was read is not one of the program."""
    found = list(_module_differences(read, made))
    if found:
        raise SpecViolation.of(found)


def _module_differences(read: Module, made: Module) -> Iterator[Finding]:
    hint = "leave inputs and outputs as they were: they are the program's"
    if read.inputs != made.inputs:
        why = f"they are {', '.join(read.inputs)}; the program has {', '.join(made.inputs)}"
        yield Finding("RegionInputs", "the inputs", why, hint)
    for name in made.inputs:
        got, wanted = read.tensors.get(name), made.tensors[name]
        if got != wanted:
            yield Finding(
                "RegionInputs", name, f"it is {_show_tensor(got)}, not {_show_tensor(wanted)}", hint
            )
    if len(read.outputs) != len(made.outputs):
        why = f"there are {len(read.outputs)}; the program has {len(made.outputs)}"
        yield Finding("RegionOutputs", "the outputs", why, hint)
        return
    for name, original in zip(read.outputs, made.outputs, strict=True):
        got, wanted = read.tensors.get(name), made.tensors[original]
        if got is None or (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
            yield Finding(
                "RegionOutputs",
                name,
                f"it is {_show_tensor(got)}, not {_show_tensor(wanted)}",
                hint,
            )


def _show_tensor(tensor: Tensor | None) -> str:
    if tensor is None:
        return "not declared"
    return f"{tensor.role} {tensor.dtype}{list(tensor.shape)}"
