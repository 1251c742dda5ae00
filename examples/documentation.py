"""The sentences of this repository's pages, as numbers that a model can read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
Array = NDArray[Any]
_PIECE = re.compile(r" ?[a-z]+| ?[0-9]+|.")
_SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'()-]{20,}\.")


def documentation() -> str:
    """The sentences of the pages, in order and in small letters: what is neither code, table nor
    heading, and has nothing but words in it."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)|[*`\[]", "", text)
    text = re.sub(r"^([|#!]|\d+\.|-).*$", "", text, flags=re.MULTILINE)
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    sentences = [each for part in paragraphs for each in re.split(r"(?<=\.) ", part)]
    return " ".join(each.lower() for each in sentences if _SENTENCE.fullmatch(each))


class Text:
    """A text as numbers of words, each with the space before it, and of signs. The words are those
    of a model, or else all of the text; what is none of them is left out."""

    def __init__(self, text: str, words: Sequence[str] = ()) -> None:
        pieces = _PIECE.findall(text)
        self.words = list(words) or sorted(set(pieces))
        number = {word: i for i, word in enumerate(self.words)}
        self.numbers = np.array([number[p] for p in pieces if p in number], np.int32)

    def batches(self, batch: int, context: int, seed: int) -> Iterator[tuple[Array, Array]]:
        """Random pieces, and the same pieces one word later."""
        rng = np.random.default_rng(seed)
        while True:
            starts = rng.integers(0, len(self.numbers) - context - 1, batch)
            rows = starts[:, None] + np.arange(context)
            yield self.numbers[rows], self.numbers[rows + 1]

    def decode(self, numbers: Array) -> str:
        return "".join(self.words[i] for i in numbers)
