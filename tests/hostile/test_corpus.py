"""Hostile files: each works or is a clear error, in bounded time and memory, and never a crash.

`corpus/` holds small files, and `corpus/EXPECTED` says what must become of each. Large ones are
made by `generated.py`. Every file is loaded, verified, and run if it verifies, in a process that
has one gigabyte of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.hostile.generated import GENERATED, SLOW
from tests.hostile.worker import CORPUS, MEMORY, Outcome, judged
from tests.support.cases import each


def expectations() -> dict[str, str]:
    lines = (CORPUS / "EXPECTED").read_text().splitlines()
    return dict(line.split() for line in lines if not line.startswith("#"))


EXPECTED = expectations()
NAMES = sorted(EXPECTED)
CHUNK = 200
SHARES = 8
"""Of the large files: one of them is judged among the fast tests."""
BOMBS = [name for name in NAMES if name.startswith("bomb-")]
QUICK = [name for name in GENERATED if name not in SLOW]


# What must never hurt, and a few files that try each; the corpus may grow, and none of these go.
CLAIMS = {
    "malformed JSON": ["trailing-comma.json", "single-quotes.json", "two-programs.json"],
    "malformed text": ["no-closing-brace.txt", "double-comma.txt", "prose.txt"],
    "malformed bincode": ["dtype-19.bin", "option-2.bin", "only-ones.bin"],
    "truncated": ["cut-short.json", "cut-in-a-type.txt", "cut-in-the-middle.bin"],
    "wrong version": ["older-version.txt", "version-older.json", "version-older.bin"],
    "unknown ops": ["unknown-op.txt", "op-unknown.json", "op-tag-99.bin"],
    "duplicate ids": ["defined-twice.txt", "parameter-defined-again.txt"],
    "undefined ids": ["undefined-operand.txt", "undefined-result.txt"],
    "use before definition": ["use-before-definition.txt", "use-of-itself.txt"],
    "regions in themselves": ["region-contains-itself.txt", "regions-contain-each-other.txt"],
    "wrong arity": ["too-few-operands.txt", "too-many-operands.txt"],
    "negative dims": ["negative-dim.txt", "dim-negative.json"],
    "rank over 64": ["rank-65.txt", "literal-of-rank-65.txt", "a-type-of-very-high-rank"],
    "dims whose product overflows": ["dims-overflow.txt", "dims-overflow-beside-a-zero.txt"],
    "2^60 elements claimed": ["claims-2-to-the-60.txt", "literal-claims-2-to-the-60.json"],
    "bytes that do not match": ["literal-too-few-bytes.json", "literal-with-half-a-byte.txt"],
    "nesting": ["nested-json-arrays", "a-nested-tuple-type-as-text", "nested-regions-json"],
    "chains": ["chain-text", "chain-json", "chain-bincode"],
    "not UTF-8": ["not-utf-8.txt", "not-utf-8.json", "utf-16.txt", "version-not-utf-8.bin"],
    "NUL bytes": ["nul-in-text.txt", "nul-in-a-string.txt", "a-megabyte-of-nul"],
    "names of a megabyte": ["a-name-of-a-megabyte-text", "a-name-of-a-megabyte-json"],
    "odd names": ["name-of-quotes.txt", "name-of-newlines.txt", "name-of-comment-marks.txt"],
    "numbers that are not finite": ["bare-nan.json", "epsilon-nan.txt", "pad-value-infinite.txt"],
    "the lowest axis": ["axis-lowest-concat.txt", "axis-lowest-reduce.txt", "axis-lowest-sort.txt"],
    "allocation bombs": [
        "bomb-tile.txt", "bomb-pad.txt", "bomb-broadcast.txt", "bomb-iota.txt", "bomb-one-hot.txt",
    ],
}  # fmt: skip


@each("claim", CLAIMS)
def test_everything_that_must_never_hurt_is_tried(claim: str) -> None:
    assert set(CLAIMS[claim]) <= EXPECTED.keys() | GENERATED.keys()


def compare(outcomes: Sequence[Outcome], expected: dict[str, str]) -> None:
    """Every verdict is the expected one."""
    wrong = [
        f"{o.name}: {o.verdict}, expected {expected[o.name.partition(' ')[2]]}\n{o.crash}"
        for o in outcomes
        if o.verdict != expected[o.name.partition(" ")[2]]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_file_has_an_expectation() -> None:
    files = {path.name for path in CORPUS.iterdir()} - {"EXPECTED", ".gitattributes"}
    assert files == set(EXPECTED)
    assert len(files) >= 150
    assert {path.rpartition(".")[2] for path in files} == {"txt", "json", "bin"}


def test_odd_but_valid_files_are_among_them() -> None:
    assert sum(verdict == "ok" for verdict in EXPECTED.values()) >= 20
    assert len(set(EXPECTED.values())) >= 35


@pytest.mark.parametrize("start", range(0, len(NAMES), CHUNK))
def test_a_small_file_is_what_it_is_expected_to_be(start: int) -> None:
    names = NAMES[start : start + CHUNK]
    outcomes = judged([f"file {name}" for name in names])
    assert len(outcomes) == len(names)
    compare(outcomes, EXPECTED)


RUN = [name for name in NAMES if EXPECTED[name] in ("ok", "ResourceExceeded")]
"""Files that get as far as a backend."""


@pytest.mark.parametrize("start", range(0, len(RUN), CHUNK))
def test_a_small_file_does_no_harm_to_the_compiler(start: int) -> None:
    """What is too large and not needed is not made, which is fine as well."""
    outcomes = judged([f"file {name}" for name in RUN[start : start + CHUNK]], backend="cpu")
    wrong = [o for o in outcomes if o.verdict not in ("ok", EXPECTED[o.name.partition(" ")[2]])]
    assert not wrong


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, SHARES))]
)
def test_a_large_file_is_what_it_is_expected_to_be(start: int) -> None:
    names = QUICK[start::SHARES]
    outcomes = judged([f"made {name}" for name in names])
    assert len(outcomes) == len(names)
    compare(outcomes, {name: GENERATED[name][0] for name in names})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_a_very_large_file_is_what_it_is_expected_to_be(name: str) -> None:
    compare(judged([f"made {name}"]), {name: GENERATED[name][0]})


def test_what_would_be_too_large_is_refused_before_it_is_allocated() -> None:
    outcomes = judged([f"file {name}" for name in BOMBS])
    assert {outcome.verdict for outcome in outcomes} == {"ResourceExceeded"}
    assert outcomes[-1].peak < (MEMORY >> 20) // 2, "something was allocated all the same"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("memory-")])
def test_running_out_of_memory_is_an_error_of_wefts(name: str) -> None:
    """Within the limits that Weft has by default, but more than there is."""
    (outcome,) = judged([f"file {name}"], limits={})
    assert (outcome.verdict, outcome.crash) == ("ResourceExceeded", "")
