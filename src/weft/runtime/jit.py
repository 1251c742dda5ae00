"""LLVM: from IR text to object code, and from object code to addresses in this process."""

from __future__ import annotations

import re
import struct
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import llvmlite.binding as llvm

from weft.foundation.errors import BackendUnavailable, InternalError
from weft.foundation.forks import new_lock, no_fork
from weft.runtime import cache as disk

_LOCK: Final = new_lock()
_ELF: Final = b"\x7fELF"
_MACH_O: Final = b"\xcf\xfa\xed\xfe"
_ELF_HEADER: Final = struct.Struct("<40xQ10xHH2x")
"""Of the header of an object file: where the table of sections is, the bytes of an entry, and how
many there are."""
_DEFINED: Final = re.compile(r"^define (?!internal|private)[^@\n]*@([\w.]+)\(", re.MULTILINE)
"""The functions of a module that others call."""


@cache
def _initialise() -> None:
    """Make LLVM ready for this kind of machine. Each of the others that it knows brings passes that
    are looked through for every module."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@cache
def _initialise_others() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def host_cpu() -> tuple[str, str, str]:
    """Triple, processor and features of this machine."""
    with no_fork:
        _initialise()
        features = llvm.get_host_cpu_features().flatten()
        return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


def code_facts(cpu: tuple[str, str, str] | None = None) -> tuple[str, ...]:
    """What machine code depends on besides the text it is made from: the processor, this one unless
    told, and LLVM."""
    return (*(cpu or host_cpu()), "LLVM " + ".".join(map(str, llvm.llvm_version_info)))


def target_of(triple: str) -> Any:
    """LLVM's code generator for a kind of machine."""
    _initialise()
    try:
        return llvm.Target.from_triple(triple)
    except RuntimeError:
        _initialise_others()
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
        module = llvm.parse_assembly(text, llvm.create_context())
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
    with no_fork, _LOCK:
        machine, module = _optimise_module(text, cpu or host_cpu(), level)
        code: bytes = machine.emit_object(module)
    return code


def assembly(text: str, cpu: tuple[str, str, str] | None = None, level: int = 3) -> str:
    """The same machine code, to be read."""
    with no_fork, _LOCK:
        machine, module = _optimise_module(text, cpu or host_cpu(), level)
        code: str = machine.emit_assembly(module)
    return code


def _optimise_module(text: str, cpu: tuple[str, str, str], level: int) -> tuple[Any, Any]:
    """LLVM's machine for a processor, and the module after its passes."""
    passes = _passes(cpu, level)
    try:
        # A context of its own: what is written into the common one is never given back.
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = cpu[0]
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"generated LLVM IR is not valid: {error}") from None
    # The pass goes through the whole module: few modules have anything to inline.
    if "alwaysinline" in text:
        passes.inliner.run(module, passes.builder)
    may_be_cold = "cold" in text
    for function in module.functions:
        # What is hardly ever called is written well enough as it is.
        if not function.is_declaration and not (may_be_cold and _is_cold(function)):
            passes.simplifier.run(function, passes.builder)
    return passes.machine, module


def _is_cold(function: Any) -> bool:
    return any(b"cold" in attributes.split() for attributes in function.attributes)


@dataclass
class _Passes:
    """LLVM's machine for a processor, and its passes: those that simplify one function. What is
    unrolled, in vectors, copied to where it is called, computed once or before a loop is decided by
    whoever wrote the module; LLVM's passes that look for it again take longer than these and all
    that makes machine code, and find next to nothing."""

    machine: Any
    builder: Any
    inliner: Any
    simplifier: Any
    modules: int = 0
    """How many they ran on."""


_PASSES: Final[dict[tuple[tuple[str, str, str], int], _Passes]] = {}
_MOST_MODULES: Final = 16
"""How many modules passes run on before they are made anew. Each run leaves some calls with
llvmlite's builder that all later runs carry out: after 256, a short module takes more than twice as
long, after thousands ten times. Making them takes 0.1 ms, and of each builder some 20 kB stay
behind."""


def _passes(cpu: tuple[str, str, str], level: int) -> _Passes:
    """The passes for a processor, for one more module."""
    found = _PASSES.get((cpu, level))
    if found is None or found.modules >= _MOST_MODULES:
        found = _PASSES[cpu, level] = _new_passes(found.machine if found else None, cpu, level)
    found.modules += 1
    return found


def _new_passes(machine: Any, cpu: tuple[str, str, str], level: int) -> _Passes:
    triple, name, features = cpu
    machine = machine or target_of(triple).create_target_machine(
        cpu=name, features=features, opt=level, reloc="pic", codemodel="default"
    )
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(level))
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    return _Passes(machine, builder, inliner, _simplifier(triple))


def _simplifier(triple: str) -> Any:
    """Passes that simplify one function. For x86-64, choosing instructions finds what combining
    them before would, and as many come out; for others a few more would."""
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    if not triple.startswith("x86_64"):
        passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    return passes


def object_code(text: str, cpu: tuple[str, str, str] | None = None) -> tuple[bytes, bool]:
    """The object code of a module for a processor, this one unless told, from the disk where it is
    there, and whether it was compiled now."""
    key = disk.key_of(text, *code_facts(cpu))
    code = kept_object(key, text)
    if code is not None:
        return code, False
    code = compile_object(text, cpu)
    disk.save(key, code)
    return code, True


def kept_object(key: str, text: str) -> bytes | None:
    """The object code of a module that the disk has under a key; None where it has none, or
    something else."""
    code = disk.load(key)
    if code is None or not _is_whole_object(code):
        return None
    # The linker will ask for these symbols: an object that lacks one is made again, where linking
    # it would be an error.
    return code if all(name.encode() in code for name in _DEFINED.findall(text)) else None


def _is_whole_object(code: bytes) -> bool:
    """Whether bytes are an object file up to its end, where the table of its sections is."""
    if not code.startswith(_ELF):
        return code.startswith(_MACH_O)
    if len(code) < _ELF_HEADER.size:
        return False
    table, size, count = _ELF_HEADER.unpack_from(code)
    return bool(table + size * count == len(code))


class _Session:
    """A linker, for some libraries. It keeps some kilobytes for each of them, and gives all back
    with itself: when it has made its share of libraries, and the last of them is gone."""

    def __init__(self) -> None:
        machine = target_of(llvm.get_default_triple()).create_target_machine(jit=True)
        # It puts a module's code and its constants side by side: a process that has opened a GPU
        # may have no two free places within reach of one another.
        self.jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self.made = 0


_SESSION: list[_Session] = []
"""The linker at hand."""
_MOST_LIBRARIES: Final = 16
"""How many libraries a linker makes: making one takes as long as linking a few libraries."""


class Library:
    """Object code linked into this process; addresses are good while the library lives, and its
    memory is given back with it."""

    def __init__(self, objects: list[bytes], symbols: list[str]) -> None:
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code)
        for symbol in symbols:
            builder.export_symbol(symbol)
        builder.add_current_process()
        with no_fork, _LOCK:
            session = _session()
            try:
                tracker: Any = builder.link(session.jit, f"weft{session.made}")
            except RuntimeError as error:
                why = " ".join(str(error).split())
                raise InternalError(f"machine code cannot be linked: {why}") from None
        self._addresses = {symbol: int(tracker[symbol]) for symbol in symbols}
        release = weakref.finalize(self, _unload, [tracker, session])
        # At the end of the process its memory goes anyway, and LLVM may have been taken down
        # before.
        release.atexit = False

    def address(self, symbol: str) -> int:
        return self._addresses[symbol]


def _unload(held: list[Any]) -> None:
    """Give back what was linked, and then, where it was the last, the linker that keeps account of
    it."""
    with no_fork:
        del held[0]
        held.clear()


def _session() -> _Session:
    """A linker that makes one more library."""
    if not _SESSION or _SESSION[0].made >= _MOST_LIBRARIES:
        _SESSION[:] = [_Session()]
    _SESSION[0].made += 1
    return _SESSION[0]
