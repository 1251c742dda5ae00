"""The type of a row in the table of lowerings from PTIR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from weft.ptir.op import Op
from weft.tiny.ir import Value

Tree: TypeAlias = "Value | tuple[Tree, ...]"
"""What a PTIR value becomes: a Tiny value, or a tuple of them for a tuple."""
Row: TypeAlias = "Callable[[Any, Sequence[Value], Any], Tree | None] | str"
"""Builds the result of an op from the op, its operands and its type, or None where this very op
stays whole; a string is the reason why it always does."""
Rows: TypeAlias = Mapping[type[Op], Row]
