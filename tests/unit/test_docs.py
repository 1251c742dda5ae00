"""Documentation that shows code: the code is run, and what it is said to print is what it prints.

A `python` block is run after those before it on the page; a `text` block right after it holds its
output. In a `console` block the lines after `$ ` are run, the others are their output; a line that
ends in `...` shows only how the real one begins. A `ptir` block is a program that verifies. What is
in a `c` block is compiled by the tests of bundles.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import weft
from examples import gpt
from tests.support.cases import each
from tests.support.command_line import Weft, command_runner
from tests.support.doc_pages import blocks, run_python
from weft.ptir import dumps, loads, verify

pytestmark = pytest.mark.usefixtures("default_backend", "small_machine")

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "docs/backends.md": "its example is tests/example_backend, which has tests of its own",
    "docs/torch.md": "it needs torch; tests/torch/test_page.py runs it",
}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if str(path.relative_to(ROOT)) not in ELSEWHERE
)
LANGUAGES = {"python", "text", "console", "ptir", "sh", "c"}
DUMPED, DUMPS = "docs/walkthrough.md", {"json", "llvm", "asm"}
"""What stages made, on the page that tests/unit/test_walkthrough.py writes anew and compares."""


def lines(text: str) -> list[str]:
    """The lines of a text without the spaces at their ends and without empty lines around."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def check_console(code: str, run: Weft) -> None:
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        program, *args = shlex.split(command)
        assert program == "weft", f"only the weft command is run, not {program}"
        done = run(*args)
        expected, real = lines(shown), lines(done.out + done.err)
        assert len(real) == len(expected), f"{command} prints\n" + "\n".join(real)
        for want, got in zip(expected, real, strict=True):
            if want.endswith("..."):
                assert got.startswith(want.removesuffix("...").rstrip())
            else:
                assert got == want


@pytest.mark.parametrize("page", PAGES)
def test_the_code_on_the_page_does_what_it_says(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{page}:{block.line}"
        checked = block.language in (LANGUAGES | DUMPS if page == DUMPED else LANGUAGES)
        assert checked, f"{where} is in no language that is checked"
        assert not printed or block.language == "text", f"{where}: the code before it prints"
        match block.language:
            case "python":
                printed = run_python(block.code, names)
            case "text" if block.follows == "python":
                assert lines(printed) == lines(block.code), f"{where} shows another output"
                printed = ""
            case "console":
                check_console(block.code, command_runner(capfd))
            case "ptir":
                program = loads(block.code)
                verify(program)
                assert dumps(program, "text") == block.code
    assert not printed, f"{page}: the last code prints, and nothing shows what"


@each("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    for target in targets:
        if not target.startswith("https://"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in PAGES:
        text = (ROOT / page).read_text()
        for name in re.findall(r"(?:`make |^make (?=[a-z-]+ *(?:#|$)))([a-z-]+)", text, re.M):
            assert name in targets, f"{page} mentions make {name}"


def test_every_make_target_is_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    gpt.main()
    shown = capsys.readouterr().out
    for expected in ("func @gpt(", "next tokens", "time by op", "dot_general", "layer_norm"):
        assert expected in shown


def test_the_newest_release_in_the_changelog_is_this_version_and_entries_are_short() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    first, newest = re.findall(r"^## (.*)$", changes, re.MULTILINE)[:2]
    assert first == "Unreleased"
    assert re.fullmatch(re.escape(weft.__version__) + r" — \d{4}-\d\d-\d\d", newest)
    for entry in re.findall(r"^- .*(?:\n  .*)*", changes, re.MULTILINE):
        assert entry.count("\n") < 2, f"longer than two lines:\n{entry}"
