"""What holds of every kernel of the dialect, whoever wrote it: a kernel without findings becomes
CUDA that compiles.

Names are C identifiers of the dialect's own, defined before they are used and once where they are
visible; every tile, barrier, map, table, buffer and register that is used exists; functions exist
for their dtypes; and the kernel fits its target. Whether waits and barriers are in place is for the
interpreter to find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from weft.codegen.gpu import ir, prelude, values
from weft.codegen.gpu.element import HELD, ElementOp, Number, arity, supports
from weft.codegen.gpu.module import GpuModule
from weft.codegen.gpu.scalar import Lit, Name, Op, Scalar, TableAt, Wide
from weft.codegen.gpu.text import spelling
from weft.foundation.dtypes import BF16, F16, F32, I1, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.target.target import Target

_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_PRINTED: Final = re.compile(
    r"[bm][0-9]+|y[0-3]|g|row|column|.*_(w|[crs][0-9]+)|error|shared(_bytes)?"
)
"""""
