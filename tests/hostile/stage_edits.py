"""Edited stage dumps: every field of a JSON dump, and every word of a text dump, made wrong in a
few ways each. The list of a dump's edits is always the same."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

Json: TypeAlias = Any
Path: TypeAlias = tuple[str | int, ...]
HUGE = 2**62
_TOKENS = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z_$][\w.]*")


@dataclass(frozen=True)
class Edit:
    """What is done to a dump; `text` is what comes of it."""

    what: str
    text: Callable[[], str]


def edits(dump: str) -> list[Edit]:
    """Every edit of a dump."""
    if dump.lstrip().startswith("{"):
        return list(_json_edits(json.loads(dump)))
    return list(_text_edits(dump))


# -- JSON ------------------------------------------------------------------------------------------


def _json_edits(document: Json) -> Iterator[Edit]:
    names = sorted({leaf for _, leaf in _leaves(document) if isinstance(leaf, str)})
    following = dict(zip(names, names[1:] + names[:1], strict=True))
    for path, value in _nodes(document):
        where = _shown(path)
        for new in _instead_of(value, following):
            yield Edit(f"{where} = {json.dumps(new)[:60]}", partial(_with, document, path, new))
        if path:
            yield Edit(f"{where} removed", partial(_without, document, path))
            yield Edit(f"{where} twice or renamed", partial(_again, document, path))


def _nodes(document: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    yield path, document
    if isinstance(document, dict | list):
        children = document.items() if isinstance(document, dict) else enumerate(document)
        for key, child in children:
            yield from _nodes(child, (*path, key))


def _leaves(document: Json) -> Iterator[tuple[Path, Json]]:
    return ((path, node) for path, node in _nodes(document) if not isinstance(node, dict | list))


def _instead_of(value: Json, following: dict[str, str]) -> list[Json]:
    if isinstance(value, bool):
        return [not value, 1]
    if isinstance(value, int):
        return [0, -1, value + 1, 2 * value, HUGE, 1.5, str(value)]
    if isinstance(value, float):
        return [0, -value, "NaN", "x"]
    if isinstance(value, str):
        other = following[value]
        numbers = [re.sub(r"\d+", str(new), value, count=1) for new in (0, 1, HUGE)]
        return [n for n in ("", "nobody", other, *numbers, 0) if n != value]
    return [None, [], {}, 0, "x"]


def _with(document: Json, path: Path, new: Json) -> str:
    if not path:
        return json.dumps(new)
    made = copy.deepcopy(document)
    _parent(made, path)[path[-1]] = new
    return json.dumps(made)


def _without(document: Json, path: Path) -> str:
    made = copy.deepcopy(document)
    del _parent(made, path)[path[-1]]
    return json.dumps(made)


def _again(document: Json, path: Path) -> str:
    """An item of a list twice; a field under another name."""
    made = copy.deepcopy(document)
    parent, key = _parent(made, path), path[-1]
    if isinstance(parent, list):
        parent.append(copy.deepcopy(parent[int(key)]))
    else:
        parent[f"{key}x"] = parent.pop(key)
    return json.dumps(made)


def _parent(document: Json, path: Path) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def _shown(path: Path) -> str:
    return ".".join(map(str, path)) or "everything"


# -- text ------------------------------------------------------------------------------------------


def _text_edits(dump: str) -> Iterator[Edit]:
    lines = dump.splitlines(keepends=True)
    words = sorted(set(_TOKENS.findall(dump)))
    following = dict(zip(words, words[1:] + words[:1], strict=True))
    for number, line in enumerate(lines):
        where = f"line {number + 1}"
        yield Edit(f"{where} removed", partial(_replaced, lines, number, ""))
        yield Edit(f"{where} twice", partial(_replaced, lines, number, line + line))
        for found in _TOKENS.finditer(line):
            word = found.group()
            for new in _other_words(word, following):
                edited = line[: found.start()] + new + line[found.end() :]
                yield Edit(f"{where}: {word} -> {new}", partial(_replaced, lines, number, edited))


def _replaced(lines: list[str], number: int, line: str) -> str:
    return "".join([*lines[:number], line, *lines[number + 1 :]])


def _other_words(word: str, following: dict[str, str]) -> list[str]:
    if re.fullmatch(r"-?\d+", word):
        value = int(word)
        return [str(n) for n in (0, -1, value + 1, 2 * value, HUGE) if n != value]
    if re.fullmatch(r"-?\d+\.\d+", word):
        return ["0.0", "nan"]
    return ["nobody", following[word]]
