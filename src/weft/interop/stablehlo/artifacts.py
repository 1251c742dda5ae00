"""Portable artifacts: StableHLO as bytes, the form that JAX and others keep programs in.

MLIR's reader of these bytes does not check them well enough: broken ones can destroy the memory of
the process that reads them. So another process reads them, and hands back the module as text, which
is then read as any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Final

from weft.foundation.errors import SpecViolation
from weft.interop.stablehlo.bindings import bindings

MAGIC: Final = b"ML\xefR"
"""How MLIR's bytecode begins."""
_SECONDS: Final = 300
_READER: Final = "from weft.interop.stablehlo.artifacts import print_module; print_module()"
_FAILED: Final = 3
_MOST_REASON: Final = 200


def artifact_text(data: bytes) -> str:
    """The module of a portable artifact as text, with the lines it came from."""
    bindings()  # says what to install before another process looks for it
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-c", _READER]
    try:
        found = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, timeout=_SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _violation(f"reading it takes longer than {_SECONDS} s") from None
    if found.returncode == 0:
        return found.stdout.decode()
    said = found.stderr.decode("utf-8", "replace").strip() if found.returncode == _FAILED else ""
    raise _violation(said.splitlines()[0][:_MOST_REASON] if said else "MLIR's reader broke down")


def _violation(why: str) -> SpecViolation:
    return SpecViolation(
        "MalformedText", f"the file is not a portable artifact of StableHLO that can be read: {why}"
    )


def print_module() -> None:
    """Read an artifact from standard input, write its module's text to standard output, and end
    the process; a reason goes to standard error."""
    mlir = bindings()
    reasons: list[str] = []

    def note(diagnostic: Any) -> bool:
        reasons.append(str(diagnostic.message))
        return True

    mlir.context.attach_diagnostic_handler(note)
    try:
        data = sys.stdin.buffer.read()
        module = mlir.stablehlo.deserialize_portable_artifact(mlir.context, data)
        text = module.operation.get_asm(enable_debug_info=True)
    except Exception as error:  # whatever MLIR's bindings raise
        sys.stderr.write(reasons[0] if reasons else str(error))
        sys.exit(_FAILED)
    sys.stdout.buffer.write(text.encode())
