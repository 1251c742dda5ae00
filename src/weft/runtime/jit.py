"""LLVM: from IR text to object code, and from object code to addresses in this process."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from weft.foundation.errors import BackendUnavailable, InternalError
from weft.runtime import cache

_LOCK = threading.Lock()
_COUNT = [0]


@lru_cache
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def host_cpu() -> tuple[str, str, str]:
    """Triple, processor and features of this machine."""
    _initialise()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


def code_facts() -> tuple[str, ...]:
    """What machine code depends on besides the text it is made from: this machine, and LLVM."""
    return (*host_cpu(), "LLVM " + ".".join(map(str, llvm.llvm_version_info)))


def target_of(triple: str) -> Any:
    """LLVM's code generator for a kind of machine."""
    _initialise()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError:
        raise BackendUnavailable(
            f"LLVM has no code generator for {triple}, so programs cannot be compiled for it; "
            "WEFT_BACKEND=reference chooses the backend that compiles nothing"
        ) from None


def fault_of(text: str, symbol: str) -> str | None:
    """What is wrong with a module; None where LLVM understands it, it has the function, and it
    calls nothing from outside."""
    _initialise()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
        module.get_function(symbol)
    except RuntimeError as error:
        return " ".join(str(error).split())
    except NameError:
        return f"there is no function @{symbol}"
    outside = (f.name for f in module.functions if f.is_declaration)
    return next((f"there is no function @{n}" for n in outside if not n.startswith("llvm.")), None)


def compile_object(text: str, cpu: tuple[str, str, str] | None = None, level: int = 3) -> bytes:
    """The object code of a module, optimised for a processor (this one unless told)."""
    with _LOCK:
        machine, module = _optimised(text, cpu or host_cpu(), level)
        code: bytes = machine.emit_object(module)
    return code


def assembly(text: str, cpu: tuple[str, str, str] | None = None, level: int = 3) -> str:
    """The same machine code, to be read."""
    with _LOCK:
        machine, module = _optimised(text, cpu or host_cpu(), level)
        code: str = machine.emit_assembly(module)
    return code


def _optimised(text: str, cpu: tuple[str, str, str], level: int) -> tuple[Any, Any]:
    """LLVM's machine for a processor, and the module after its passes: those that simplify one
    function. What is unrolled, in vectors or copied to where it is called is decided by whoever
    wrote the module; LLVM's passes that decide it again take as long as all others, and find
    nothing."""
    triple, name, features = cpu
    machine = target_of(triple).create_target_machine(
        cpu=name, features=features, opt=level, reloc="pic", codemodel="default"
    )
    try:
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"generated LLVM IR is not valid: {error}") from None
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    inliner.run(module, builder)
    passes = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    return machine, module


def object_code(text: str) -> tuple[bytes, bool]:
    """The object code of a module for this machine, from the disk where it is there, and whether it
    was compiled now."""
    key = cache.key_of(text, *code_facts())
    code = cache.load(key)
    if code is not None:
        return code, False
    code = compile_object(text)
    cache.save(key, code)
    return code, True


class Library:
    """Object code linked into this process; addresses are good while the library lives."""

    def __init__(self, objects: list[bytes], symbols: list[str]) -> None:
        jit = _compiler()
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code)
        for symbol in symbols:
            builder.export_symbol(symbol)
        builder.add_current_process()
        with _LOCK:
            _COUNT[0] += 1
            try:
                self._tracker: Any = builder.link(jit, f"weft{_COUNT[0]}")
            except RuntimeError as error:
                why = " ".join(str(error).split())
                raise InternalError(f"machine code cannot be linked: {why}") from None

    def address(self, symbol: str) -> int:
        return int(self._tracker[symbol])


@lru_cache
def _compiler() -> Any:
    """One that puts a module's code and its constants side by side: a process that has opened a GPU
    may have no two free places within reach of one another."""
    machine = target_of(llvm.get_default_triple()).create_target_machine(jit=True)
    return llvm.create_lljit_compiler(machine, use_jit_link=True)
