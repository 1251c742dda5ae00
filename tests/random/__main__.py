"""Many random programs on the cpu backend, in blocks: `python -m tests.random --help`.

Each block is a process of its own, so that a crash costs a block and says which. Blocks that are
done stand in the journal, one line of JSON each, and are not run again: a run that was stopped goes
on where it was, and shards on several machines need no more than their own journal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.random.programs import check_program, size_of

FIRST, COUNT, BLOCK = 10_000, 100_000, 100
_LIMIT = 1800
"""How many seconds a block may take."""


@dataclass(frozen=True)
class Outcome:
    """A block that ran, and what its process said where a program failed."""

    first: int
    count: int
    passed: bool
    said: str = ""


def main() -> int:
    options = _options()
    if options.inside:
        return _check_here(options.first, options.count)
    blocks = list(_blocks(options.first, options.count, options.shard))
    done = _read(options.resume)
    left = [block for block in blocks if done.get(block[0]) != block[1]]
    print(f"{len(blocks)} blocks, {len(blocks) - len(left)} done before", flush=True)
    failed = 0
    with ThreadPoolExecutor(options.processes) as pool:
        running = [pool.submit(_run, block) for block in left]
        for number, future in enumerate(as_completed(running), 1):
            outcome = future.result()
            _note(options.resume, outcome)
            failed += not outcome.passed
            state = "passed" if outcome.passed else f"FAILED\n{outcome.said}"
            print(f"{number}/{len(left)}: {_spelled(outcome)} {state}", flush=True)
    print(f"{len(left)} blocks, {failed} with failures")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.random", description=__doc__)
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--count", type=int, default=COUNT, help="how many programs")
    parser.add_argument("--shard", default="1/1", type=_shard, metavar="I/N")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="the journal")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--inside", action="store_true", help="run the programs in this process")
    return parser.parse_args()


def _shard(text: str) -> tuple[int, int]:
    part, _, whole = text.partition("/")
    if not (part.isdecimal() and whole.isdecimal() and 1 <= int(part) <= int(whole)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shard such as 1/4")
    return int(part), int(whole)


def _blocks(first: int, count: int, shard: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """First seed and number of seeds of the blocks that belong to a shard."""
    part, whole = shard
    for start in range(first + (part - 1) * BLOCK, first + count, whole * BLOCK):
        yield start, min(BLOCK, first + count - start)


def _read(journal: Path | None) -> dict[int, int]:
    """The blocks that passed before; those that failed run again."""
    if journal is None or not journal.exists():
        return {}
    lines = (json.loads(line) for line in journal.read_text().splitlines())
    return {line["first"]: line["count"] for line in lines if line["passed"]}


def _note(journal: Path | None, outcome: Outcome) -> None:
    if journal is not None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        with journal.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def _run(block: tuple[int, int]) -> Outcome:
    first, count = block
    command = [sys.executable, *f"-m tests.random --inside --first {first} --count {count}".split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(first, count, False, f"not done after {_LIMIT} seconds")
    said = done.stdout + done.stderr
    return Outcome(first, count, done.returncode == 0, f"{said}\nexit code {done.returncode}")


def _check_here(first: int, count: int) -> int:
    failed = 0
    for seed in range(first, first + count):
        print(f"{seed}", end=" ", flush=True)
        try:
            check_program(seed, size_of(seed))
        except Exception as error:
            failed += 1
            print(f"\nseed {seed}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


def _spelled(outcome: Outcome) -> str:
    return f"seeds {outcome.first} to {outcome.first + outcome.count - 1}"


if __name__ == "__main__":
    sys.exit(main())
