"""Equal parts of a program are worked out once: compiling twelve blocks does the work of three, and
what is left grows with the length of the program and no faster."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest
from typer.testing import CliRunner

import weft
from examples.make_programs import attention_stack
from weft.cli.main import app
from weft.driver.compile import Cluster
from weft.driver.legalise import without_composites
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages import compilation
from weft.driver.stages.compilation import Compilation
from weft.foundation.memo import forget
from weft.ptir import Builder
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.region.fusion.greedy import Fusion
from weft.target.known import target_named
from weft.target.target import Target

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    forget()


def compiled(blocks: int) -> Cluster:
    forget()
    (cluster,) = weft.compile(attention_stack(blocks)).clusters.values()
    return cluster


def test_twelve_blocks_take_the_work_of_three() -> None:
    few, many = compiled(3), compiled(12)
    assert many.compilation.tally.done == few.compilation.tally.done
    assert many.compilation.tally.done["isl queries"] > 0
    assert many.built.compiled == few.built.compiled < 10
    # All blocks share the kernel that looks for rows from which their mask hides everything.
    assert len(many.built.symbols) - 1 == 4 * (len(few.built.symbols) - 1) == 60


def test_equal_blocks_are_cut_alike() -> None:
    """Also where two ways to cut take the same time but for the rounding of a sum."""

    def structures(target: str) -> list[str]:
        program = attention_stack(3)
        started = Compilation(program, target_named(target), make_signature(program))
        region = run_pipeline(started, "region")["region"]
        return [kernel.pattern.value + repr(len(kernel.body)) for kernel in region.kernels]

    for target in ("sm80", "sm90"):
        shared, *found = structures(target)
        assert shared.startswith("row")
        block = len(found) // 3
        assert found[:block] == found[block : 2 * block] == found[2 * block :]


def test_what_is_asked_for_grows_with_the_program() -> None:
    few, more, many = (compiled(n).compilation.tally.asked for n in (2, 4, 8))
    for what in ("kernels drafted", "kernels written out"):
        assert many[what] - more[what] == 2 * (more[what] - few[what])


def test_composite_ops_are_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, the verifier of kernels and whoever builds the artifact ask for the same program."""
    made: list[Program] = []

    def note(program: Program, log: PassLog | None, target: Target) -> Program:
        made.append(without_composites(program, log, target))
        return made[-1]

    monkeypatch.setattr(compilation, "without_composites", note)
    assert compiled(2).compilation.simple() is made[0]
    assert len(made) == 1


def test_a_long_chain_of_numbers_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step asks whether the chain that it ends begins with a contraction."""
    asked: list[str] = []
    is_private = Fusion._is_private

    def note(fusion: Fusion, name: str) -> bool:
        asked.append(name)
        return is_private(fusion, name)

    monkeypatch.setattr(Fusion, "_is_private", note)
    b = Builder("numbers")
    x = b.param("f32", [])
    for step in range(100):
        x = x * 1.5 if step % 2 else x + 0.5
    weft.compile(b.build(x), "cpu")
    assert 0 < len(asked) < 1_000


def calls(work: Callable[[], object]) -> int:
    """How many Python functions a piece of work calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def work_done(blocks: int, target: str = "sm90") -> Counter[str]:
    """How often each function of Weft is called until kernels have plans, as file and name."""
    program = attention_stack(blocks)
    started = Compilation(program, target_named(target), make_signature(program))
    called: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called[frame.f_code] += 1

    forget()
    sys.setprofile(note)
    try:
        run_pipeline(started, "plan")
    finally:
        sys.setprofile(None)
    count: Counter[str] = Counter()
    for code, times in called.items():
        count[f"{Path(code.co_filename).name} {code.co_name}"] += times
    return count


@pytest.fixture(scope="module")
def work_of_few_and_many() -> tuple[Counter[str], Counter[str]]:
    return work_done(3), work_done(12)


@pytest.mark.parametrize(
    "work",
    [
        "verify.py _obeys",
        "verify.py _is_inside",
        "from_tiny.py _in_atoms",
        "templates.py accepts",
    ],
)
def test_questions_about_equal_blocks_are_answered_once(
    work: str, work_of_few_and_many: tuple[Counter[str], Counter[str]]
) -> None:
    few, many = work_of_few_and_many
    assert 0 < few[work] == many[work]


def test_two_groups_that_become_one_are_written_once(
    work_of_few_and_many: tuple[Counter[str], Counter[str]],
) -> None:
    """Where the roots of the second lie is read off the first as it was written, and its kernel
    goes on from there."""
    work, _ = work_of_few_and_many
    begun = work["assemble.py drafted"] - work["assemble.py draft"]
    assert 0 < begun <= work["merge.py _places"]
    assert work["emit.py run"] == work["assemble.py draft"] + work["merge.py _places"]


def test_no_stage_takes_longer_than_the_program_is_long() -> None:
    def lower(blocks: int) -> int:
        program = attention_stack(blocks)
        started = Compilation(program, target_named("cpu"), make_signature(program))
        return calls(lambda: run_pipeline(started, "cpu"))

    lower(2)
    first, second, third = lower(3), lower(6), lower(12)
    assert third - second < 2.2 * (second - first)


def test_the_report_tells_distinct_kernels_and_times() -> None:
    path = str(EXAMPLES / "attention_12_blocks.ptir.txt")
    result = CliRunner().invoke(app, ["compile", path, "-v"])
    assert result.exit_code == 0, result.output
    first = r"^61 kernels, \d of them distinct; \d compiled, 0 from the cache$"
    assert re.search(first, result.output, re.M)
    assert re.search(r"^kernels written out: 85 asked for, \d done$", result.output, re.M)
    assert re.search(r"^isl queries: \d+ asked for, \d+ done$", result.output, re.M)
    assert re.search(r"^matmul1: matmul, and 11 like it$", result.output, re.M)
    for stage in ("frontend", "tiny", "region", "plan", "cpu", "llvm", "machine code"):
        assert re.search(rf"^{stage} +\d+\.\d *$", result.output, re.M), stage
