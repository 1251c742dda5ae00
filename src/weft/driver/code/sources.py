"""The sources of a module's kernels as one text: each after a comment with the kernel's symbol."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from weft.foundation.errors import SpecViolation

_NAMES: Final = re.compile(r"k_[0-9a-f]{16}")


@dataclass(frozen=True)
class Language:
    """How a language begins a comment, and what a fault in a text of it is called."""

    comment: str
    fault: str

    @property
    def mark(self) -> str:
        return f"{self.comment} ==== kernel "

    def join(self, sources: Mapping[str, str]) -> str:
        """All sources in one text."""
        return "".join(f"{self.mark}{symbol}\n{text}" for symbol, text in sources.items())

    def split(self, text: str) -> dict[str, str]:
        """The sources back from one text, by symbol."""
        sources = {}
        for part in text.split(self.mark)[1:]:
            symbol, _, source = part.partition("\n")
            if _NAMES.fullmatch(symbol) is None:
                raise SpecViolation(self.fault, f"{symbol!r} is not the symbol of a kernel")
            sources[symbol] = source
        return sources

    def require(self, sources: Mapping[str, str], symbols: Iterable[str]) -> None:
        """There is a source for every kernel that will be launched."""
        missing = sorted(set(symbols) - set(sources))
        if missing:
            raise SpecViolation(self.fault, f"there is no source for the kernel {missing[0]}")


CUDA: Final = Language("//", "CudaText")
LLVM: Final = Language(";", "LlvmText")
