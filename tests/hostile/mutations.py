"""Random damage to valid files: to their bytes, to the structure of their JSON, to their tokens."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.hostile.bases import program_of
from weft.foundation.dtypes import BY_NAME, BY_WIRE
from weft.ptir import dumps, loads
from weft.ptir.op import all_ops

Json = Any
GOLDEN = Path(__file__).parents[1] / "compat" / "2026-11-ptir-golden"
UNREADABLE = "pad_neginf.json"
"""Golden JSON that does not load: its writer put null for a number that is not finite."""

EXTREMES: list[Json] = [
    0, 1, -1, 63, 64, 65, 255, 256, 2**31, 2**32 - 1, 2**32, 2**53, 2**59, 2**60, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, -(2**31), -(2**63), -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 5e-324, True,
    None, "", "x", "NaN", "Infinity", "F32", "\u202e", "\u0000", [], {}, [[]], {"Value": 0},
    {"Static": 0}, {"Dynamic": "B"}, {"Dynamic": ""}, "Infer", {"Tuple": []}, {"dims": []},
]  # fmt: skip
WORDS = [
    "0", "1", "-1", "64", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
    "1e400", "0.5", "inf", "nan", "true", "infer", "%", "%0", "%1", "?B", '?""', '""', '"\\u0000"',
    "(", ")", "[", "]", "{", "}", "<", ">", ",", ":", "=", "->", "@", "^", "0x", "0x00", "f32",
    "cf64", "si4", "f32[]", "()", "neg", "concat", "cond", "func", "region", "return", "hint", "#",
    "\x00", "\u0663", "$",
]  # fmt: skip
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_][\w.]*|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\s+|.', re.S)


@cache
def originals(form: str) -> list[bytes]:
    """Every golden file in one form, and a program of every op that is not in the contract."""
    suffix = {"bincode": "bin", "json": "json", "text": "bin"}[form]
    golden = [
        path.read_bytes() for path in sorted(GOLDEN.glob(f"*.{suffix}")) if path.name != UNREADABLE
    ]
    programs = [program_of(cls) for cls in all_ops() if cls.tag is None]
    if form == "text":
        programs, golden = [*map(loads, golden), *programs], []
    return golden + [_bytes(dumps(program, form)) for program in programs]


def _bytes(data: str | bytes) -> bytes:
    return data if isinstance(data, bytes) else data.encode()


def mutant(seed: int) -> bytes:
    """A golden file with one to three kinds of damage; the same for the same seed."""
    rng = random.Random(seed)
    form = rng.choice(["bincode", "json", "text"])
    return damaged(rng, rng.choice(originals(form)), form)


# -- bytes -----------------------------------------------------------------------------------------


def _span(rng: random.Random, data: bytes, longest: int = 40) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(longest))


def _flip(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return b"\1"
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data, 9)
    filling = rng.choice([b"\0", b"\xff", b"\x01", b"\x7f", b"\x80"])
    return data[:start] + filling * (stop - start) + data[stop:]


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _delete(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data)
    return data[:start] + data[stop:]


def _duplicate(rng: random.Random, data: bytes) -> bytes:
    start, stop = _span(rng, data, 200)
    return data[:stop] + data[start:stop] * rng.choice([1, 1, 2, 50]) + data[stop:]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice([1, 2, 4, 8, 16])) + data[at:]


def _splice(rng: random.Random, data: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    other = rng.choice(originals(rng.choice(["bincode", "json", "text"])))
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _number(rng: random.Random, data: bytes) -> bytes:
    """An extreme number where one of bincode's may stand."""
    width = rng.choice([4, 8])
    if len(data) < width:
        return data
    at = rng.randrange(len(data) - width + 1)
    value = rng.choice([0, 1, 2, 36, 37, 38, 39, 2**16, 2**31, 2**32 - 1, 2**60, 2**64 - 1])
    raw = int(value % 256**width).to_bytes(width, "little")
    return data[:at] + raw + data[at + width :]


# -- structure -------------------------------------------------------------------------------------


def _nodes(root: Json) -> list[tuple[Json, str | int]]:
    """Every place in a JSON value that holds something: the holder and the key."""
    found: list[tuple[Json, str | int]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        keys: list[Any] = list(node) if isinstance(node, dict) else []
        keys = list(range(min(len(node), 12))) if isinstance(node, list) else keys
        found += [(node, key) for key in keys]
        stack += [node[key] for key in keys if isinstance(node[key], dict | list)]
    return found


def _replace(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    holder[key] = copy.deepcopy(rng.choice(EXTREMES))


def _nudge(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    """A number a little off, or another dtype, somewhere: what most often still loads."""
    numbers = [(h, k) for h, k in _nodes(root) if type(h[k]) is int]
    dtypes = [(h, k) for h, k in _nodes(root) if k == "dtype"]
    if dtypes and rng.random() < 0.3:
        holder, key = rng.choice(dtypes)
        holder[key] = rng.choice(list(BY_WIRE))
    elif numbers:
        holder, key = rng.choice(numbers)
        holder[key] = max(0, holder[key] + rng.choice([-2, -1, 1, 2]))


def _exchange(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    other, other_key = rng.choice(_nodes(root))
    holder[key] = copy.deepcopy(other[other_key])


def _foreign(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    other, other_key = rng.choice(_nodes(json.loads(rng.choice(originals("json")))))
    holder[key] = other[other_key]


def _drop(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    del holder[key]


def _rename(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    if isinstance(holder, dict):
        names = [str(k) for node, k in _nodes(root) if isinstance(node, dict)]
        holder[rng.choice([*names, "", "x", "\u202e"])] = holder.pop(key)


def _grow(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice([1, 1, 2, 70]))]
    else:
        holder[key] = [holder[key]] * rng.choice([1, 2, 70])


def _wrap(rng: random.Random, holder: Json, key: Any, root: Json) -> None:
    tag = rng.choice(["Tensor", "Tuple", "Static", "Value", "Literal", "x"])
    holder[key] = {tag: holder[key]}


_STRUCTURAL = [_replace, *[_nudge] * 8, _exchange, _foreign, _drop, _rename, _grow, _wrap]


def _restructure(rng: random.Random, data: bytes) -> bytes:
    try:
        root = json.loads(data)
    except ValueError:
        return data
    places = _nodes(root)
    if places:
        holder, key = rng.choice(places)
        rng.choice(_STRUCTURAL)(rng, holder, key, root)
    return json.dumps(root).encode()


# -- tokens ----------------------------------------------------------------------------------------


def _one(rng: random.Random, tokens: list[str], wanted: Callable[[str], bool]) -> int:
    """The position of one of the tokens that are wanted, of any if none is."""
    return rng.choice([i for i, t in enumerate(tokens) if wanted(t)] or range(len(tokens)))


def _retoken(rng: random.Random, data: bytes) -> bytes:
    tokens: list[str] = _TOKENS.findall(data.decode(errors="replace"))
    if not tokens:
        return data
    a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    match rng.randrange(12):
        case 0:
            tokens[a], tokens[b] = tokens[b], tokens[a]
        case 1:
            del tokens[a]
        case 2:
            tokens.insert(a, tokens[b])
        case 3:
            tokens[a] = rng.choice(WORDS)
        case 4:
            tokens.insert(a, rng.choice(WORDS))
        case 5:
            tokens[a:a] = tokens[a : a + 20]
        case 6:
            tokens[_one(rng, tokens, str.isdecimal)] = rng.choice(WORDS[:8])
        case 7 | 8 | 9:
            tokens[_one(rng, tokens, str.isdecimal)] = str(rng.randrange(5))
        case _:
            tokens[_one(rng, tokens, BY_NAME.__contains__)] = rng.choice(list(BY_NAME))
    return "".join(tokens).encode(errors="replace")


Damage = Callable[[random.Random, bytes], bytes]
_ANY: list[Damage] = [_flip, _overwrite, _truncate, _delete, _duplicate, _insert, _splice]
_DAMAGE: dict[str, list[Damage]] = {
    "bincode": [*_ANY, _flip, _number, _number, _number],
    "json": [*_ANY, *[_restructure] * 20],
    "text": [*_ANY, *[_retoken] * 14],
}


def damaged(rng: random.Random, data: bytes, form: str = "bincode") -> bytes:
    """Bytes, JSON or a text with one to three kinds of damage."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(_DAMAGE[form])(rng, data)
    return data
