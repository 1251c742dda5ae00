"""The code of routines as people read it, with what each line is about.

A line of a CPU's routine is about a value of its kernel: LLVM IR knows the statement that every
line was written for, and the assembler, given the lines of the IR as those of a source file, says
from which every instruction comes. A GPU's dialect and CUDA name the same variables; PTX and SASS
say from which line of the CUDA they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.llvm import emit_module, statements_by_line
from weft.codegen.gpu.compile import Cubin, compile_cuda
from weft.codegen.gpu.sass import available, listing
from weft.runtime.jit import assembly

VARIABLE: Final = "$"
"""What the names of a GPU's variables begin with here: its kernels count them differently."""
_DEBUG: Final = """\
!llvm.dbg.cu = !{!91}
!llvm.module.flags = !{!92}
!90 = distinct !DISubprogram(file: !93, type: !94, unit: !91, spFlags: DISPFlagDefinition)
!91 = distinct !DICompileUnit(language: DW_LANG_C99, file: !93, emissionKind: LineTablesOnly)
!92 = !{i32 2, !"Debug Info Version", i32 3}
!93 = !DIFile(filename: "routine.ll", directory: "")
!94 = !DISubroutineType(types: !0)"""
_FIRST: Final = 100
"""The number of the first line's node; those before it are taken."""
_LOC: Final = re.compile(r"\s*\.loc\s+1 (\d+) ")
_FROM: Final = re.compile(r'\s*//## File ".*", line (\d+)')
_SASS: Final = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);|(\.L_x_\d+:)")
_SET: Final = re.compile(r"\s*(?:const )?(?:[a-z]\w*(?:<\w+>)? )?(\w+)(?:, \w+)*(?:\[\d+\])? = ")
"""A variable that is set, in CUDA or in the dialect: the first, where there are several."""


@dataclass(frozen=True)
class Listing:
    """Lines, and the names in the kernel of what they are about, where it is known."""

    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def extend(self, other: Listing) -> None:
        """Put another one below."""
        start = len(self.lines)
        self.lines.extend(other.lines)
        self.names.update((start + at, name) for at, name in other.names.items())


# -- CPUs ----------------------------------------------------------------------------------------


def llvm_listing(source: str, routine: ir.Routine, features: frozenset[str]) -> Listing:
    """LLVM IR; the value of the kernel that a line helps to compute."""
    lines = source.rstrip("\n").split("\n")
    if source != emit_module([routine], "", features):
        return Listing(lines)  # Somebody wrote it.
    start = _definition(lines, routine.name)
    found = {}
    for at, statement in statements_by_line(routine, features).items():
        name = subject(statement)
        if name:
            found[start + at] = name
    return Listing(lines, found)


def subject(statement: ir.Stmt) -> str:
    """The Let that a statement is for."""
    match statement:
        case ir.Init(acc=name) | ir.Accumulate(acc=name) | ir.Assign(acc=name):
            pass
        case ir.Store(value=name):
            pass
        case ir.Merge(names=names):
            name = names[0] if names else ""
        case ir.For() | ir.Prefetch() | ir.Sort():
            name = ""
        case _:
            name = statement.name
    return name.partition(".")[0]


def assembly_listing(above: Listing, symbol: str, cpu: tuple[str, str, str] | None) -> Listing:
    """The machine code of LLVM IR; an instruction is about what its line of the IR is about."""
    made = Listing()
    line = 0
    source = _with_lines(above.lines, symbol) if above.names else "\n".join([*above.lines, ""])
    for text in assembly(source, cpu).expandtabs(8).split("\n"):
        if match := _LOC.match(text):
            line = int(match[1])
        elif _is_code(text):
            if line - 1 in above.names:
                made.names[len(made.lines)] = above.names[line - 1]
            made.lines.append(text)
    return made


def _definition(lines: list[str], symbol: str) -> int:
    begins = f"define void @{symbol}("
    return next((at for at, line in enumerate(lines) if line.startswith(begins)), 0)


def _with_lines(lines: list[str], symbol: str) -> str:
    """A module whose instructions know their lines, which changes nothing that they become."""
    start = _definition(lines, symbol)
    end = lines.index("}", start)
    made = list(lines)
    made[start] = lines[start].replace(" nounwind {", " nounwind !dbg !90 {")
    for at in range(start + 1, end):
        if lines[at].startswith("  "):
            made[at] = f"{lines[at]}, !dbg !{_FIRST + at}"
    nodes = (f"!{_FIRST + at} = !DILocation(line: {at + 1}, scope: !90)" for at in range(end))
    return "\n".join([*made, _DEBUG, *nodes, ""])


def _is_code(line: str) -> bool:
    word = line.strip()
    return bool(word) and (not word.startswith((".", "#")) or word.startswith(".LBB"))


# -- GPUs ----------------------------------------------------------------------------------------


def cuda_names(lines: Iterable[str]) -> dict[int, str]:
    """The variable that is set on each line, in the dialect and in CUDA alike."""
    matches = ((at, _SET.match(line.replace(" : ", " = ", 1))) for at, line in enumerate(lines))
    return {at: VARIABLE + match[1] for at, match in matches if match}


@dataclass(frozen=True)
class GpuListings:
    """A kernel's CUDA, and what the compiler makes of it."""

    cuda: Listing
    ptx: Listing
    sass: Listing


def gpu_listings(source: str, arch: str) -> GpuListings:
    """PTX and machine code, each line about what its line of the source is about."""
    cubin = compile_cuda(source, arch, to_read=True)
    names = cuda_names(source.split("\n"))
    ptx = _linked(_ptx_lines(cubin.ptx), names)
    return GpuListings(_kernel_alone(source, names), ptx, _sass(cubin, names))


def _kernel_alone(source: str, names: Mapping[int, str]) -> Listing:
    """CUDA without the functions that every kernel begins with."""
    lines = source.rstrip("\n").split("\n")
    start = next((at for at, line in enumerate(lines) if "__global__" in line), 0)
    shown = [f"// after {start} lines of functions that kernels call", *lines[start:]]
    return Listing(shown, {at - start + 1: name for at, name in names.items() if at >= start})


def _sass(cubin: Cubin, names: Mapping[int, str]) -> Listing:
    if not available():
        return Listing(["; the disassembler nvdisasm is not installed: weft[dev] has it"])
    return _linked(_sass_lines(listing(cubin.code)), names)


def _linked(pairs: Iterable[tuple[str, int]], names: Mapping[int, str]) -> Listing:
    made = Listing()
    for text, line in pairs:
        if line - 1 in names:
            made.names[len(made.lines)] = names[line - 1]
        made.lines.append(text)
    return made


def _ptx_lines(text: str) -> Iterator[tuple[str, int]]:
    """Lines with the line of the source that each comes from: of what is inside a function that was
    put in, that which calls it."""
    line = 0
    for each in text.expandtabs(8).split("\n"):
        if match := _LOC.match(each):
            line = line if "inlined_at" in each else int(match[1])
        elif each.lstrip().startswith(".file"):
            return
        elif each.strip():
            yield each, line


def _sass_lines(text: str) -> Iterator[tuple[str, int]]:
    """The same of machine code, whose comments go from the inside out."""
    line = 0
    for each in text.split("\n"):
        if match := _FROM.match(each):
            line = int(match[1])
        elif match := _SASS.match(each):
            yield (match[3] or f"  {match[1]}  {match[2].rstrip()}"), line
