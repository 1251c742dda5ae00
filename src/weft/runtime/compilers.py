"""Compiling many modules: from the disk cache, or by several worker processes at once.

LLVM compiles one module at a time in a process, however many threads ask, and NVRTC reads one
source at a time. Where there is much to compile and more than one processor, further processes
help: each runs a module such as `compiler_process`, gets texts through a pipe and answers code. The
code is the same whoever makes it. A helper that cannot be started, or fails, is done without: what
it had is compiled here.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from weft.foundation.memo import forgettable
from weft.foundation.pipes import Family, receive, send
from weft.foundation.progress import at
from weft.runtime import cache
from weft.runtime.jit import code_facts, compile_object, kept_object
from weft.runtime.threads import thread_count

SHARE: Final = 300_000
"""Characters of LLVM IR for which a further process pays: a second of compiling, of which starting
the process takes a third."""
MOST: Final = 8
"""The most processes that compile, this one included."""
_SMALL: Final = 1 << 14
"""Bytes of object code that is short enough to be remembered where no disk keeps it: programs of
few elements have the same short kernels again and again."""
_MOST_MADE: Final = 256
_MADE: Final[dict[str, bytes]] = {}
"""The last of these that were compiled, by what they would be kept under."""
forgettable(_MADE.clear)
_PROCESS: Final = "weft.runtime.compiler_process"
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def object_codes(
    texts: Sequence[str], cpu: tuple[str, str, str] | None = None
) -> list[tuple[bytes, bool]]:
    """The object code of every module, for this processor unless told, and whether it was compiled
    now."""
    facts, on_disk = code_facts(cpu), cache.chosen_folder() is not None
    keys = [cache.key_of(text, *facts) for text in texts]
    pairs = zip(keys, texts, strict=True)
    found = [kept_object(key, text) if on_disk else _MADE.get(key) for key, text in pairs]
    missing = [number for number, code in enumerate(found) if code is None]
    made = compile_objects([texts[number] for number in missing], cpu=cpu)
    fresh = dict(zip(missing, made, strict=True))
    for number, code in fresh.items():
        if on_disk:
            cache.save(keys[number], code)
        elif len(code) <= _SMALL:
            _MADE[keys[number]] = code
    while len(_MADE) > _MOST_MADE:
        _MADE.pop(next(iter(_MADE)), None)
    known = enumerate(found)
    return [(fresh[n], True) if code is None else (code, False) for n, code in known]


def compile_objects(
    texts: Sequence[str],
    processes: int | None = None,
    cpu: tuple[str, str, str] | None = None,
) -> list[bytes]:
    """The object code of every module, made by this process and perhaps by others, which compile
    for this processor alone."""
    if cpu is not None:
        return [compile_object(text, cpu) for text in texts]
    count = _worth(texts) if processes is None else processes
    if len(texts) == 1:
        return [compile_object(texts[0])]
    messages = [text.encode() for text in texts]
    return shared_out(messages, lambda n: compile_object(texts[n]), _PROCESS, count)


def shared_out(
    messages: Sequence[bytes], own: Callable[[int], bytes], module: str, processes: int
) -> list[bytes]:
    """What is made of every message: by `own`, which gets its number, and in all but one of so many
    processes, which run a module that answers messages."""
    workers = Workers(module)
    for message in messages:
        workers.add(message)
    workers.start(processes - 1)
    return workers.finish(own)


def _worth(texts: Sequence[str]) -> int:
    """How many processes shall compile."""
    # LLVM's time goes with the length of the text. A process has to save more than it takes to
    # start.
    shares = sum(map(len, texts)) // SHARE
    return max(1, min(thread_count(), MOST, shares)) if shares > 1 and can_start() else 1


def can_start() -> bool:
    """Whether further processes can be started."""
    return _python() is not None


def _python() -> str | None:
    """The interpreter, where there is one that can be started: not in a program that brings its
    own."""
    name = sys.executable or ""
    plain = Path(name).name.startswith("python") and not getattr(sys, "frozen", False)
    return name if plain else None


class Workers:
    """Other processes that run a module which answers messages. They can be started before there
    are any, and messages may come while others are worked on."""

    def __init__(self, module: str) -> None:
        self.made: dict[int, bytes] = {}
        """Answers by the numbers of messages, which count from 0."""
        self._module = module
        self._messages: list[bytes] = []
        self._waiting: list[tuple[int, int]] = []
        """The most urgent come first: unless told the longest, so that none of them is the one all
        others wait for."""
        lock = threading.Lock()
        self._changed, self._answered = threading.Condition(lock), threading.Condition(lock)
        """Told of messages and of the end; and of answers, which only one thread waits for."""
        self._is_complete = False
        self._families: list[Family] = []
        self._threads: list[threading.Thread] = []
        """One for each process, which hands messages to it."""
        self._working = 0
        """Threads that hand messages to processes."""
        self._unanswered: set[int] = set()
        """Messages of which a process could make nothing."""

    def start(self, count: int) -> None:
        """Start so many more processes."""
        family = _start_family(self._module, count) if count > 0 else None
        if family is None:
            return
        with self._changed:
            self._working += count
        self._families.append(family)
        for pipes in family.pipes:
            thread = threading.Thread(target=self._hand_on, args=pipes, daemon=True)
            self._threads.append(thread)
            thread.start()

    def add(self, message: bytes, urgency: int | None = None) -> int:
        """Have something made of a message; its number."""
        with self._changed:
            number = len(self._messages)
            self._messages.append(message)
            first = len(message) if urgency is None else urgency
            heapq.heappush(self._waiting, (-first, number))
            self._changed.notify()
        return number

    def gather(self, own: Callable[[int], bytes]) -> list[bytes]:
        """What is made of every message so far. This process takes part: `own` gets the number of
        one."""
        at("machine code", lambda: (len(self.made), len(self._messages)))
        numbers = range(len(self._messages))
        for _ in self.each(numbers, own):
            pass
        return [self.made[number] for number in numbers]

    def each(
        self, numbers: Collection[int], own: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes]]:
        """The same of some messages, with their numbers, as soon as it is there."""
        left = set(numbers)
        while left:
            done = [number for number in sorted(left) if number in self.made]
            left.difference_update(done)
            yield from ((number, self.made[number]) for number in done)
            if left and not done:
                # Others begin with the longest. Whoever also has to look at answers takes the
                # shortest, and so is never the one that all wait for.
                number = self._least(left)
                if number is None:
                    number = self._wait_for_answer(left)
                if number is not None and number not in self.made:
                    self.made[number] = own(number)

    def finish(self, own: Callable[[int], bytes]) -> list[bytes]:
        """The same where no further ones come: the processes end."""
        try:
            return self.gather(own)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the processes, whatever they do; nobody waits until they are gone, a tenth of a
        second."""
        with self._changed:
            self._is_complete = True
            self._waiting.clear()
            self._changed.notify_all()
        for family in self._families:
            family.kill()
        if self._families:
            gone = tuple(self._families), tuple(self._threads)
            threading.Thread(target=_bury, args=gone, daemon=True).start()
        self._families.clear()
        self._threads.clear()

    def _hand_on(self, there: IO[bytes], back: IO[bytes]) -> None:
        """Hand messages to a process until there are none."""
        try:
            self.work(there, back)
        except (OSError, EOFError, ValueError):
            # The process is gone: what is missing is made by the others.
            return
        finally:
            with self._answered:
                self._working -= 1
                self._answered.notify_all()

    def work(self, there: IO[bytes], back: IO[bytes]) -> None:
        """The same; a process that is gone is an error."""
        while (number := self._next()) is not None:
            code = b""
            try:
                send(there, self._messages[number])
                code = receive(back)
            finally:
                with self._answered:
                    if code:
                        self.made[number] = code
                    else:
                        self._unanswered.add(number)
                    self._answered.notify_all()

    def _wait_for_answer(self, numbers: Collection[int]) -> int | None:
        """Wait until something was made of one of some messages; the number of one of which no
        process can make anything."""
        with self._answered:
            self._answered.wait_for(
                lambda: (
                    any(n in self.made or n in self._unanswered for n in numbers)
                    or not self._working
                )
            )
            if any(number in self.made for number in numbers):
                return None
            return min(self._unanswered.intersection(numbers), default=min(numbers))

    def _next(self) -> int | None:
        """The number of the most urgent message that nobody works on; None where none will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_complete)
            return heapq.heappop(self._waiting)[1] if self._waiting else None

    def _least(self, numbers: Collection[int]) -> int | None:
        """The least urgent of some messages that nobody works on, if there is one: whoever takes it
        is soon back to look at what others made."""
        with self._changed:
            last = max((entry for entry in self._waiting if entry[1] in numbers), default=None)
            if last is None:
                return None
            self._waiting.remove(last)
            heapq.heapify(self._waiting)
            return last[1]


def _bury(families: Sequence[Family], threads: Sequence[threading.Thread]) -> None:
    """Wait for processes that were told to end, and give back what was kept for them."""
    for family in families:
        family.wait()
    for thread in threads:
        thread.join()
    for family in families:
        family.close()


def _start_family(module: str, count: int) -> Family | None:
    """Processes that run a module, on the same sources as this one; None where there are none."""
    python = _python()
    if python is None:
        return None
    path = os.pathsep.join(entry for entry in sys.path if entry)
    # They compute nothing that a library would share out to threads, of which each had as many as
    # there are processors.
    env = {**os.environ, **dict.fromkeys(_THREADS, "1"), "PYTHONPATH": path}
    try:
        return Family([python, "-P", "-m", module], count, env)
    except OSError:
        return None
