"""Compiling by several processes: the same code, and nothing lost when one of them fails."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from weft.foundation.errors import InternalError
from weft.foundation.pipes import Family, receive, send
from weft.runtime import compilers
from weft.runtime.compilers import SHARE, Workers, compile_objects
from weft.runtime.jit import compile_object


def _group_of(process: Path) -> int:
    try:
        return os.getpgid(int(process.name))
    except ProcessLookupError:
        return 0


def _children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _answered(pipes: tuple[IO[bytes], IO[bytes]]) -> bytes:
    send(pipes[0], sources(1)[0].encode())
    return receive(pipes[1])


def sources(count: int) -> list[str]:
    """Functions that differ."""
    return [
        f"define i64 @f{n}(i64 %x) {{\n  %y = mul i64 %x, {n + 3}\n  ret i64 %y\n}}\n"
        for n in range(count)
    ]


def test_every_process_makes_the_same_code() -> None:
    texts = sources(12)
    assert compile_objects(texts, processes=3) == [compile_object(text) for text in texts]


def test_helpers_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process compiles itself is counted; without it, the helper does everything."""
    taken: list[bytes] = []

    def counted(pipe: Any) -> bytes:
        found = receive(pipe)
        taken.append(found)
        return found

    monkeypatch.setattr(compilers, "receive", counted)
    busy = "\n".join(
        f"define float @g{n}(float %x) {{\n"
        + "\n".join(
            f"  %v{k} = fadd float {f'%v{k - 1}' if k else '%x'}, {k}.0" for k in range(4000)
        )
        + "\n  ret float %v3999\n}"
        for n in range(4)
    )
    texts = [busy] * 6
    made = compile_objects(texts, processes=2)
    assert len(set(made)) == 1
    assert taken


def test_what_a_helper_fails_at_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str, count: int) -> Family:
        return Family([sys.executable, "-c", "print('no')"], count, {})

    texts = sources(6)
    expected = [compile_object(text) for text in texts]
    monkeypatch.setattr(compilers, "_start_family", broken)
    assert compile_objects(texts, processes=3) == expected
    monkeypatch.setattr(compilers, "_start_family", lambda module, count: None)
    assert compile_objects(texts, processes=3) == expected


def test_only_what_is_asked_for_is_made_here() -> None:
    """The least urgent first, which is done soon; others wait for those who ask for them."""
    workers, made = Workers("none"), list[int]()

    def own(number: int) -> bytes:
        made.append(number)
        return b"%d" % number

    long, short, first = workers.add(b"long"), workers.add(b"s"), workers.add(b"f", urgency=9)
    second = workers.add(b"g", urgency=8)
    assert list(workers.each([second, first], own)) == [(second, b"3"), (first, b"2")]
    assert workers.gather(own) == [b"0", b"1", b"2", b"3"]
    assert made == [second, first, short, long]


def test_processes_are_copies_of_one_and_end_with_it() -> None:
    family = compilers._start_family("weft.runtime.compiler_process", 3)
    assert family is not None
    try:
        for pipes in family.pipes:
            assert _answered(pipes) == compile_object(sources(1)[0])
        groups = [_group_of(path) for path in Path("/proc").glob("[0-9]*")]
        assert groups.count(family.pid) == 4
        os.kill(_children(family.pid)[0], signal.SIGKILL)
        with pytest.raises((EOFError, BrokenPipeError)):
            _answered(family.pipes[0])
    finally:
        family.kill()
        family.wait()
        family.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(family.pid, 0)


def test_processes_end_when_nobody_is_left_to_ask() -> None:
    family = compilers._start_family("weft.runtime.compiler_process", 2)
    assert family is not None
    family.close()
    assert family._first.wait(60) == 0


def test_what_cannot_be_started_leaves_no_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    pipe = os.pipe

    def few() -> tuple[int, int]:
        if len(made) == 6:
            raise OSError(errno.EMFILE, "too many open files")
        made.extend(pipe())
        return made[-2], made[-1]

    monkeypatch.setattr(os, "pipe", few)
    assert compilers._start_family("weft.runtime.compiler_process", 3) is None
    assert not any(Path(f"/proc/self/fd/{number}").exists() for number in made)
    made.clear()
    with pytest.raises(FileNotFoundError):
        Family(["/no/such/python"], 1, {})
    assert made
    assert not any(Path(f"/proc/self/fd/{number}").exists() for number in made)


def test_a_wrong_module_is_told_as_ever() -> None:
    with pytest.raises(InternalError, match="generated LLVM IR is not valid"):
        compile_objects([*sources(3), "define nonsense"], processes=2)


@pytest.mark.parametrize(
    ("lengths", "threads", "frozen", "expected"),
    [
        ([SHARE], 16, False, 1),
        ([SHARE] * 3, 16, False, 3),
        ([SHARE] * 3, 2, False, 2),
        ([SHARE] * 99, 64, False, compilers.MOST),
        ([SHARE] * 3, 1, False, 1),
        ([SHARE] * 3, 16, True, 1),
        ([], 16, False, 1),
    ],
)
def test_how_many_processes_pay(
    monkeypatch: pytest.MonkeyPatch,
    lengths: Sequence[int],
    threads: int,
    frozen: bool,
    expected: int,
) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", str(threads))
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    assert compilers._worth(["x" * length for length in lengths]) == expected
