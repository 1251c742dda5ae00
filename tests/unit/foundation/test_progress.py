"""The line that tells what is compiled."""

from __future__ import annotations

import io
import sys
import threading

import pytest

import weft
from weft.foundation import progress
from weft.ptir import Builder


class Terminal(io.StringIO):
    """A terminal, which tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("WEFT_PROGRESS", raising=False)


def test_a_line_comes_and_goes() -> None:
    terminal = Terminal()
    with progress.compiling("@main", terminal, patience=0.0):
        progress.at("machine code", lambda: (3, 12))
        assert terminal.written.wait(60)
        with progress.compiling("@inner", terminal, patience=0.0):
            progress.at("machine code", lambda: (4, 12))
    text = terminal.getvalue()
    assert text.startswith("\r\x1b[2Kcompiling @main ...")
    assert text.endswith("\r\x1b[2K")
    assert "@inner" not in text
    assert not [t for t in threading.enumerate() if t.name == "weft-progress"]


def test_the_line_says_stage_and_kernels() -> None:
    line = progress._Line("@main", Terminal(), 0.0)
    assert str(line) == "compiling @main ..."
    line.stage = "region"
    assert str(line) == "compiling @main ... region"
    line.stage, line.count = "machine code", lambda: (3, 12)
    assert str(line) == "compiling @main ... machine code, 3 of 12 kernels"


def test_what_is_quick_shows_nothing() -> None:
    terminal = Terminal()
    with progress.compiling("@main", terminal, patience=60.0):
        progress.at("region")
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("why", ["pipe", "CI", "off", "closed"])
def test_nobody_looks(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO() if why == "pipe" else Terminal()
    if why == "CI":
        monkeypatch.setenv("CI", "true")
    if why == "off":
        monkeypatch.setenv("WEFT_PROGRESS", "off")
    if why == "closed":
        monkeypatch.setattr(stream, "isatty", closed)
    with progress.compiling("@main", stream, patience=0.0):
        assert not [t for t in threading.enumerate() if t.name == "weft-progress"]
    assert stream.getvalue() == ""


def closed() -> bool:
    raise ValueError("I/O operation on closed file")


def test_compiling_tells_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(
        progress._Line,
        "stage",
        property(lambda self: "", lambda self, name: told.append(name)),
        raising=False,
    )
    b = Builder("told")
    program = b.build(b.exp(b.param("f32", [3])))
    monkeypatch.setenv("WEFT_CACHE", "off")
    weft.compile(program, "cpu")
    assert [name for name in told if name][:3] == ["frontend", "tiny", "indexbook"]
    assert told[-1] == "machine code"


def test_where_there_is_no_terminal_it_may_be_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(Terminal):
        def isatty(self) -> bool:
            return False

    pipe = Pipe()
    with progress.compiling("@main", pipe, aloud=0.0):
        assert pipe.written.wait(60)
        progress.at("region")
    assert pipe.getvalue() == "compiling @main ...\n"
    quick = Pipe()
    with progress.compiling("@main", quick, aloud=60.0):
        progress.at("region")
    with progress.compiling("@main", quick, patience=0.0):
        assert not quick.written.wait(0.05)
    monkeypatch.setenv("WEFT_PROGRESS", "off")
    with progress.compiling("@main", quick, aloud=0.0):
        assert not quick.written.wait(0.05)
    assert quick.getvalue() == ""


def end_when_told(terminal: Terminal, over: threading.Event) -> None:
    def end() -> None:
        terminal.written.wait(60)
        over.set()

    threading.Thread(target=end).start()


def test_a_long_run_tells_what_it_is_and_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, over = Terminal(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    end_when_told(terminal, over)
    progress.wait_for(over, "sum0", 2599.6)
    text = terminal.getvalue()
    assert text.startswith("\r\x1b[2Krunning sum0 ... 0 s, estimated at 2,600")
    assert text.endswith("\r\x1b[2K")


def test_a_run_tells_nothing_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, over = io.StringIO(), threading.Event()
    monkeypatch.setattr(sys, "stderr", pipe)
    threading.Timer(0.01, over.set).start()
    progress.wait_for(over, "sum0", 2600.0)
    assert pipe.getvalue() == ""


def test_a_terminal_that_has_gone_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            self.written.set()
            raise OSError

    terminal, over = Gone(), threading.Event()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    end_when_told(terminal, over)
    progress.wait_for(over, "sum0", 1.0)
    assert terminal.written.is_set()
