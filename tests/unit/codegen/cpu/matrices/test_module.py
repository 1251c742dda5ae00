"""Machine code of factorisations: every machine's module is one that LLVM takes, and it calls
nothing but what it has."""

from __future__ import annotations

from tests.support.cases import each
from weft.codegen.cpu.matrices.module import ENTRIES, module_text
from weft.runtime.jit import compile_object, fault_of


@each("scalar", ["float", "double"])
@each("machine", [(128, 16), (128, 32), (256, 16), (512, 32)])
def test_modules_are_complete(scalar: str, machine: tuple[int, int]) -> None:
    text = module_text(scalar, *machine)
    for name in ENTRIES:
        assert fault_of(text, name) is None


def test_the_module_compiles_for_other_machines() -> None:
    arm = ("aarch64-unknown-linux-gnu", "generic", "")
    assert compile_object(module_text("float", 128, 32), arm)
