"""What a score says: what does not count yet and why, how much does, and what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def report(
    outcomes: Mapping[str, str],
    good: str,
    score: Callable[[list[str]], str],
    record: Path,
    *,
    update: bool,
    whole: bool,
) -> int:
    """Print it; `score` says the sum, given what is missed, which the record lists. 1 where
    something is missed that the record does not have."""
    missed = {name: why for name, why in outcomes.items() if why != good}
    for name, why in missed.items():
        print(f"{name}: {why}")
    counts = Counter(why.split(":")[0] for why in missed.values())
    print("\n" + "".join(f"{count:5} {reason}\n" for reason, count in counts.most_common()))
    print(score(list(missed)))
    return int(is_lost(list(missed), good, record, update=update, whole=whole))


def is_lost(missed: Sequence[str], good: str, record: Path, *, update: bool, whole: bool) -> bool:
    """Whether something is missed that the record does not list, which is told, as is what the
    record lists for nothing. With `update` the record is written instead."""
    if update:
        record.write_text("".join(f"{name}\n" for name in missed))
        return False
    expected = set(record.read_text().split()) if record.exists() else set()
    lost = [name for name in missed if name not in expected]
    for name in lost:
        print(f"{good} before: {name}")
    for name in sorted(expected - set(missed)) if whole else []:
        print(f"{good} now, take it off {record.name}: {name}")
    return bool(lost)
