"""Readable listings of routines, with what each line is about.

A line of a CPU's routine is about a value of its kernel: LLVM IR knows the statement that every
line was written for, and the assembler, given the lines of the IR as those of a source file, says
from which every instruction comes. A GPU's dialect and CUDA name the same variables, each of which
is a value of the kernel; PTX and SASS say from which line of the CUDA they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from weft.codegen.cpu import ir
from weft.codegen.cpu.llvm import emit_module, statements_by_line
from weft.codegen.gpu.compile import Cubin, compile_cuda
from weft.codegen.gpu.sass import available, listing
from weft.driver.stages.variables import Lets
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
_WORD: Final = re.compile(r"\b[A-Za-z_]\w*")
_BEGINS: Final = re.compile(r"kernel \w+ ")


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
        case ir.For() | ir.Prefetch() | ir.Sort() | ir.Fourier() | ir.Tiles() | ir.Turn():
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


def cuda_names(lines: Iterable[str], lets: Lets) -> dict[int, str]:
    """The variable that is set on each line of a kernel, in the dialect and in CUDA alike, and the
    values of the kernel in Region that it is; where none is set, the values of what is used."""
    found: dict[int, str] = {}
    for at, line in enumerate(lines):
        match = _SET.match(line.replace(" : ", " = ", 1))
        if match:
            found[at] = " ".join([VARIABLE + match[1], *lets.get(match[1], ())])
        elif used := [each for word in _WORD.findall(line) for each in lets.get(word, ())]:
            found[at] = " ".join(dict.fromkeys(used))
    return found


def dialect_names(lines: Sequence[str], variables: Mapping[str, Lets]) -> dict[int, str]:
    """The same of a program's kernels, one below the other."""
    starts = [at for at, line in enumerate(lines) if _BEGINS.match(line)]
    found: dict[int, str] = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        symbol = lines[start].split()[1]
        names = cuda_names(lines[start:end], variables.get(symbol, {}))
        found.update((start + at, name) for at, name in names.items())
    return found


@dataclass(frozen=True)
class GpuListings:
    """A kernel's CUDA, and what the compiler makes of it."""

    cuda: Listing
    ptx: Listing
    sass: Listing


def gpu_listings(source: str, arch: str, lets: Lets) -> GpuListings:
    """PTX and machine code, each line about what its line of the source is about."""
    cubin = compile_cuda(source, arch, to_read=True)
    lines = source.rstrip("\n").split("\n")
    start = next((at for at, line in enumerate(lines) if "__global__" in line), 0)
    names = {start + at: name for at, name in cuda_names(lines[start:], lets).items()}
    ptx = _link_lines(_ptx_lines(cubin.ptx), names)
    return GpuListings(_kernel_alone(lines, start, names), ptx, _sass(cubin, names))


def _kernel_alone(lines: Sequence[str], start: int, names: Mapping[int, str]) -> Listing:
    """CUDA without the functions that every kernel begins with."""
    shown = [f"// after {start} lines of functions that kernels call", *lines[start:]]
    return Listing(shown, {at - start + 1: name for at, name in names.items()})


def _sass(cubin: Cubin, names: Mapping[int, str]) -> Listing:
    if not available():
        return Listing(["; the disassembler nvdisasm is not installed: weft[dev] has it"])
    return _link_lines(_sass_lines(listing(cubin.code)), names)


def _link_lines(pairs: Iterable[tuple[str, int]], names: Mapping[int, str]) -> Listing:
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
