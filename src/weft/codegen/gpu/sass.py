"""Checks of the machine code (SASS) of a kernel: what it must and must not contain.

The assembler may quietly undo a plan: serialise matrix instructions, put a device-wide memory
barrier between them, or move registers to memory. Each is visible in the disassembly, so it is
read, with the CUDA disassembler where one is installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from weft.foundation.dtypes import F64, DType
from weft.foundation.errors import ExecutionError, Finding, UserError
from weft.foundation.records import dataclass

_LINE: Final = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")

COPY: Final = {
    "sm90": "UTMALDG", "planes": "UTMALDG", "sm80": "LDGSTS", "groups": "LDGSTS", "codes": "LDG",
}  # fmt: skip
"""Instructions that bring operands to a matrix kernel, by the `arch` of its plan."""
_WARPGROUP: Final = frozenset({"HGMMA", "IGMMA", "QGMMA"})


def matrix_instruction(arch: str, dtype: DType) -> str:
    """The instruction that multiplies operands of a dtype."""
    if dtype.is_integer:
        return {"sm90": "IGMMA", "sm80": "IMMA"}[arch]
    if dtype is F64:
        return "DMMA"
    narrow = "QGMMA" if dtype.storage_bytes == 1 else "HGMMA"
    return narrow if arch in ("sm90", "planes") else "HMMA"


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: its name with modifiers, and its operands."""

    name: str
    operands: str

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]


def disassemble(cubin: bytes) -> tuple[Instruction, ...]:
    """The instructions of a cubin, in order."""
    return parse(listing(cubin))


def listing(cubin: bytes) -> str:
    """A cubin as the disassembler writes it, with the lines of the source where it knows them."""
    tool = _tool("nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(  # noqa: S603 - the tool is ours, the argument a file of ours
            [tool, "--print-code", "--print-line-info-inline", "--no-dataflow", file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ExecutionError(f"nvdisasm failed: {done.stderr.strip()}")
    return done.stdout


def parse(listing: str) -> tuple[Instruction, ...]:
    """The instructions of a disassembler's listing."""
    found = (_LINE.match(line) for line in listing.splitlines())
    return tuple(Instruction(m[1], m[2].strip()) for m in found if m)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found:
        return found
    package = find_spec("nvidia")
    for folder in package.submodule_search_locations or () if package else ():
        for path in sorted(Path(folder).glob(f"*/bin/{name}")):
            return str(path)
    raise UserError(f"{name} is not installed; it comes with the extra weft[dev]")


def available() -> bool:
    """Whether there is a disassembler."""
    try:
        _tool("nvdisasm")
    except UserError:
        return False
    return True


def check(code: Sequence[Instruction], wanted: Sequence[str] = ()) -> list[Finding]:
    """What is wrong with a kernel's machine code; `wanted` instructions must be there."""
    return list(_instruction_findings(code, wanted))


def _instruction_findings(code: Sequence[Instruction], wanted: Sequence[str]) -> Iterator[Finding]:
    roots = [instruction.root for instruction in code]
    for name in wanted:
        if name not in roots:
            yield Finding("MissingInstruction", "", f"there is no {name} in the kernel")
    for name in ("LDL", "STL"):
        if name in roots:
            yield Finding("LocalMemory", "", f"{roots.count(name)} {name}: registers in memory")
    yield from _barriers(code, roots)


def _barriers(code: Sequence[Instruction], roots: Sequence[str]) -> Iterator[Finding]:
    """Memory barriers between matrix instructions, but for those that a proxy fence is made of."""
    matrix = [number for number, root in enumerate(roots) if root in _WARPGROUP]
    for number in range(matrix[0], matrix[-1]) if matrix else ():
        root, name = roots[number], code[number].name
        fence = name == "MEMBAR.ALL.CTA" and code[number + 1].name.startswith("FENCE.VIEW.ASYNC")
        if root in ("MEMBAR", "ERRBAR", "CGAERRBAR", "CCTL") and not fence:
            yield Finding("MemoryBarrier", "", f"a {name} stands between matrix instructions")
