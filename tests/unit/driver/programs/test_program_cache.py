"""Whole programs on disk: what another process finds, and when it must not find it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.compile import Executable
from weft.driver.programs import program_cache
from weft.driver.signature import make_signature
from weft.foundation.limits import Limits
from weft.ptir import Builder, Program
from weft.ptir.ir import ElementRef, Function, Instruction, Ref, Region
from weft.ptir.ops.control import Cond
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.types import TupleType
from weft.runtime import cache
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    Enter,
    HostCall,
    Jump,
    JumpUnless,
    Launch,
    Reset,
    Site,
    TensorSpec,
)
from weft.runtime.packing import Packed, pack, unpack
from weft.target.known import target_named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def program(factor: float = 2.0) -> Program:
    """A product, a sort that no kernel expresses, and an update of a state."""
    b = Builder("mixed")
    x, w, past = b.param("f32", [4, 8]), b.param("f32", [8, 6]), b.param("f32", [4, 6])
    y = b.tanh(x @ w) * factor
    return b.build(b.sort(y, axis=1), past + y)


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 6))]


def test_a_kept_program_does_what_the_compiled_one_does() -> None:
    first = weft.compile(program(), params=[1], state=[2])
    again = weft.compile(program(), params=[1], state=[2])
    (cluster,) = again.clusters.values()
    assert list(cluster.times) == ["disk"]
    assert (cluster.built.compiled, cluster.built.reused) == (
        0,
        len(set(cluster.built.symbols.values())),
    )
    for executable in (first, again):
        executable.state[0][...] = 1.0
    for _ in range(2):
        want, got = ([a.tobytes() for a in e(*inputs())] for e in (first, again))
        assert got == want
    bound = again.bind(inputs()[1:])
    assert np.array_equal(bound(inputs()[0])[0], first(*inputs())[0])


def looped() -> Program:
    b = Builder("looped")
    x = b.param("f32", [4, 8])
    return b.build(
        b.scan(lambda r, c, row: [r.tanh(c + row), c * row], [b.reduce_sum(x, [0])], [x])
    )


@pytest.mark.parametrize("build", [program, looped])
def test_a_kept_program_still_tells_its_stages(build: Callable[[], Program]) -> None:
    first, again = weft.compile(build()), weft.compile(build())
    assert again.stages == first.stages
    assert "from the cache" in again.explain()
    # What was worked out depends on what this process knew before.
    told, told_again = (
        [line for line in e.report()[1:] if " asked for, " not in line] for e in (first, again)
    )
    assert told_again == told
    if build is looped:
        assert any(line.startswith("region0_carried: ") for line in told)


SECOND_PROCESS = """
import sys
import llvmlite.binding as llvm
import numpy as np
import weft
from weft.driver.programs import program_cache
from weft.runtime import cache

cache.source_digest = lambda: sys.argv[2]  # whatever is edited while this runs
made, parse = [], llvm.parse_assembly
llvm.parse_assembly = lambda text, *more: made.append(text) or parse(text, *more)
found = []


def squares(x, w):
    return weft.sum((x @ w) ** 2)


if sys.argv[1] == "jit":
    rng = np.random.default_rng(0)
    x, w = (weft.asarray(rng.standard_normal((5, 5)).astype(np.float32)) for _ in range(2))
    value, slope = weft.jit(weft.value_and_grad(squares, 1))(x.to("cpu"), w.to("cpu"))
    found = [float(value), np.asarray(slope).tobytes().hex()]
else:
    executable = weft.compile(weft.ptir.load(sys.argv[1]))
    shapes = [[d if type(d) is int else 3 for d in kind.shape] for kind in executable.inputs]
    results = executable.run([np.ones(shape, np.float32) for shape in shapes])
    found = [result.tobytes().hex() for result in results]
print(len(made), "weft.driver.pipeline" in sys.modules, *found)
"""


def another_process(*arguments: str) -> list[str]:
    """How many modules LLVM compiled, whether the stages were loaded, and the results."""
    done = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def open_program() -> Program:
    """A program that is compiled for the sizes it meets."""
    b = Builder("open")
    x, w = b.param("f32", ["?B", 8]), b.param("f32", [8, 6])
    return b.build(b.tanh(x @ w))


@pytest.mark.parametrize("what", one_in(2, ["mixed", "open", "jit"]))
def test_another_process_compiles_nothing(what: str, folder: Path) -> None:
    argument = what
    if what != "jit":
        argument = str(folder / f"{what}.ptir.txt")
        made = program() if what == "mixed" else open_program()
        Path(argument).write_text(str(weft.ptir.dumps(made, "text")))
    modules, loaded, *results = another_process(argument, "this version")
    assert int(modules) > 0
    assert loaded == "True"
    assert another_process(argument, "this version") == ["0", "False", *results]
    if what == "mixed":
        modules, loaded, *again = another_process(argument, "another version")
        assert int(modules) > 0
        assert (loaded, again) == ("True", results)


def test_everything_a_compilation_depends_on_is_in_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = target_named("cpu")
    plain = make_signature(program())
    key = program_cache.key_of(program(), target, plain)
    assert key is not None
    assert program_cache.key_of(program(), target, plain) == key
    others = [
        (program(3.0), target, plain),
        (replace(program(), locations={}), target, plain),
        (program(), target, make_signature(program(), params=[1])),
        (program(), target, make_signature(program(), donate=[2])),
        (program(), replace(target, features=frozenset({"other"})), plain),
        (program(), replace(target, rates=replace(target.rates, bandwidth=1.0)), plain),
    ]
    found = [key, *(program_cache.key_of(*other) for other in others)]
    found.append(program_cache.key_of(program(), target, plain, 3))
    found.append(program_cache.key_of(program(), target, plain, overrides={"plan": "{}"}))
    found.append(program_cache.key_of(program(), target, plain, overrides={"plan": "{ }"}))
    found.append(program_cache.key_of(program(), target, plain, overrides={"region": "{}"}))
    for name, value in (
        ("weft.runtime.cache.source_digest", lambda: "another version of Weft"),
        ("llvmlite.binding.llvm_version_info", (99, 0, 0)),
        ("weft.runtime.jit.host_cpu", lambda: ("another", "machine", "")),
        ("weft.foundation.limits.current", lambda: Limits(kernel_steps=1000)),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(name, value)
            found.append(program_cache.key_of(program(), target, plain))
    cache.save(program_cache.tuned_key(target), b"{}")
    found.append(program_cache.key_of(program(), target, plain))
    assert None not in found
    assert len(set(found)) == 16


def test_the_key_of_a_program_for_a_gpu_has_its_compiler_and_what_it_builds_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_signature(program())

    def keys() -> list[str | None]:
        return [
            program_cache.key_of(program(), target_named(name), plain) for name in ("sm80", "sm90")
        ]

    found = keys()
    with monkeypatch.context() as changed:
        changed.setattr("weft.runtime.jit.host_cpu", lambda: ("another", "machine", ""))
        assert keys() == found
    with monkeypatch.context() as changed:
        changed.setattr("weft.runtime.cuda.driver.compute_capability", lambda: (9, 0))
        newer = keys()
    assert newer[0] != found[0]
    assert newer[1] == found[1]
    monkeypatch.setattr("weft.driver.code.gpu_linker.version", lambda: (99, 0))
    found += [newer[0], *keys()]
    assert None not in found
    assert len(set(found)) == 5


def test_a_given_stage_is_part_of_what_is_kept() -> None:
    text = weft.compile(program()).stages["plan"]
    first, again = (weft.compile(program(), overrides={"plan": text}) for _ in range(2))
    other = weft.compile(program(), overrides={"plan": text + "\n"})
    times = [list(e._latest.times) for e in (first, again, other)]
    assert ["machine code" in each for each in times] == [True, False, True]
    want, got = (
        [a.tobytes() for a in e(*inputs(), np.zeros((4, 6), np.float32))] for e in (first, again)
    )
    assert got == want
    assert again.stages["plan"] == first.stages["plan"]


def test_a_stage_that_cannot_be_given_is_refused_also_where_the_program_is_kept() -> None:
    weft.compile(program())
    with pytest.raises(weft.UserError, match="there is no stage 'moon'"):
        weft.compile(program(), overrides={"moon": ""})
    with pytest.raises(weft.UserError, match="the text of stage 'plan' is int, not str"):
        weft.compile(program(), overrides={"plan": 3})  # type: ignore[dict-item]


def test_a_broken_entry_is_compiled_again_and_that_is_said(folder: Path) -> None:
    key = program_cache.key_of(program(), target_named("cpu"), make_signature(program()))
    assert key is not None
    assert program_cache.DAMAGED not in weft.compile(program()).report()
    whole = (folder / key).read_bytes()
    flipped = whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]
    for damage in (b"", b"weftobj2", whole[:-1], whole + b"x", flipped, b"weftobj3" + whole[8:]):
        (folder / key).write_bytes(damage)
        executable = weft.compile(program())
        assert "machine code" in executable._latest.times
        assert program_cache.DAMAGED in executable.report()
        assert executable.explain().endswith(program_cache.DAMAGED)
    for payload in (b"something else", b"weftprg1" + (8).to_bytes(8, "little") + b"[" * 8):
        cache.save(key, payload)
        assert program_cache.DAMAGED in weft.compile(program()).report()
    again = weft.compile(program())
    assert list(again._latest.times) == ["disk"]
    assert program_cache.DAMAGED not in again.report()


def offset(by: float, size: int = 4) -> Program:
    b = Builder("offset")
    x = b.param("f32", [size])
    return b.build(x * x + by)


def test_an_entry_in_the_place_of_another_is_compiled_again(folder: Path) -> None:
    """Another sum, and a larger program, which would read outside the inputs it is given."""
    target, x = target_named("cpu"), np.arange(4, dtype=np.float32)
    wanted = offset(3.0)
    keys = {}
    for made in (wanted, offset(-3.0), offset(3.0, 1 << 20)):
        weft.compile(made)
        key = program_cache.key_of(made, target, make_signature(made))
        assert key is not None
        keys[made] = folder / key
    for other in list(keys)[1:]:
        keys[wanted].write_bytes(keys[other].read_bytes())
        executable = weft.compile(wanted)
        assert program_cache.DAMAGED in executable.report()
        assert executable(x)[0].tolist() == [3, 4, 7, 12]
        assert program_cache.DAMAGED not in weft.compile(wanted).report()


def entry_of(made: Program) -> tuple[str, Packed]:
    """The key of a program that is kept, and what is kept."""
    key = program_cache.key_of(made, target_named("cpu"), make_signature(made))
    assert key is not None
    found = unpack(cache.load(key) or b"")
    assert found is not None
    return key, found


def unsound(artifact: Artifact) -> Iterator[Artifact]:
    """Artifacts that are whole, and not those of the program."""
    (launch, *_), (kernel, *_), slots = artifact.steps, artifact.kernels, artifact.buffers
    assert isinstance(launch, Launch)
    larger = TensorSpec("x", "f32", (1 << 20,))
    yield replace(artifact, inputs=(larger,))
    yield replace(artifact, outputs=(larger,))
    yield replace(artifact, inputs=())
    yield replace(artifact, outputs=(replace(artifact.outputs[0], dtype="si32"),))
    yield replace(artifact, outputs=(replace(artifact.outputs[0], dtype="f33"),))
    for slot in (
        BufferSlot("input", 1, 0, 16),
        BufferSlot("input", 0, 4, 16),
        BufferSlot("input", 0, -4, 16),
        BufferSlot("input", 0, 0, 1 << 40),
        BufferSlot("output", 5, 0, 16),
        BufferSlot("state", 0, 0, 16),
        BufferSlot("constant", -1, 0, 0),
        BufferSlot("arena", 0, 0, 1 << 40),
        BufferSlot("moon", 0, 0, 0),
    ):
        yield replace(artifact, buffers=(slot, *slots[1:]))
    for step in (
        replace(launch, kernel=7),
        replace(launch, kernel=-1),
        replace(launch, buffers=(0, 99)),
        replace(launch, where=(Site("one"), Site("two"))),
        CopyBuffer(0, 1, 1 << 30, "copy"),
        CopyBuffer(0, 1, 4, "copy", 0, 4, 4),
        Jump(99, "jump"),
        JumpUnless(99, 0, "jump"),
        Enter(3, "enter"),
        Reset(0, "reset"),
        HostCall("sort", ((0, larger),), (), "sort"),
        HostCall("[" * 100_000, (), (), "deep"),
        HostCall('["moon", [], []]', (), (), "moon"),
        HostCall("{}", (), (), "nothing"),
    ):
        yield replace(artifact, steps=(step, *artifact.steps[1:]))
    yield replace(artifact, output_slots=(99,))
    yield replace(artifact, output_slots=())
    yield replace(artifact, bodies=0)
    yield replace(artifact, counters=1 << 60)
    yield replace(artifact, kernels=(replace(kernel, code=b"no code"),))
    yield replace(artifact, kernels=(replace(kernel, symbol="another"),))
    yield replace(artifact, kernels=(replace(kernel, work_items=-1),))


@pytest.fixture
def kept_offset() -> tuple[str, Packed]:
    weft.compile(offset(3.0))
    return entry_of(offset(3.0))


def test_whole_entries_that_are_unsound_are_compiled_again(kept_offset: tuple[str, Packed]) -> None:
    key, found = kept_offset
    x = np.arange(4, dtype=np.float32)
    for number, artifact in enumerate(unsound(found.artifact)):
        assert artifact != found.artifact
        cache.save(key, pack(replace(found, artifact=artifact)))
        executable = weft.compile(offset(3.0))
        assert program_cache.DAMAGED in executable.explain(), (number, artifact)
        assert executable(x)[0].tolist() == [3, 4, 7, 12]
        assert list(weft.compile(offset(3.0))._latest.times) == ["disk"]


def test_object_code_that_is_none_is_compiled_again(
    folder: Path, kept_offset: tuple[str, Packed]
) -> None:
    key, found = kept_offset
    (kernel,) = found.artifact.kernels
    # It is kept under a name that says nothing of the kernel.
    code = kernel.code.replace(kernel.symbol.encode(), b"k_any".ljust(len(kernel.symbol), b"_"))
    objects = [path.name for path in folder.iterdir() if cache.load(path.name) == code]
    assert len(objects) == 1
    for damage in (b"", b"no code", code[:-1], code.replace(b"k_", b"j_")):
        cache.save(objects[0], damage)
        (folder / key).unlink()
        executable = weft.compile(offset(3.0))
        assert executable(np.ones(4, np.float32))[0].tolist() == [4, 4, 4, 4]
        assert cache.load(objects[0]) == code


def taking(*lines: str) -> Program:
    """Two rows of a table, written on the lines of a file."""
    b = Builder("taking")
    table, rows = b.param("f32", [5, 3]), b.param("si32", [2])
    made = b.build(b.take(table, rows), b.take(table, rows + rows))
    values = sorted(made.locations)
    return replace(made, locations=dict(zip(values, lines, strict=True)))


def complaint(executable: Executable, rows: list[int]) -> str:
    with pytest.raises(weft.SpecViolation) as caught:
        executable(np.zeros((5, 3), np.float32), np.array(rows, np.int32))
    return caught.value.where


def test_a_program_whose_lines_have_moved_is_found_and_names_them_as_they_are_now() -> None:
    first = weft.compile(taking("old.py:1", "old.py:2", "old.py:3"))
    assert "machine code" in first._latest.times
    assert complaint(first, [9, 9]).endswith("(old.py:1)")
    moved = weft.compile(taking("new.py:7", "new.py:8", "new.py:9"))
    assert list(moved._latest.times) == ["disk"]
    assert complaint(moved, [9, 9]) == complaint(first, [9, 9]).replace("old.py:1", "new.py:7")


def test_what_one_line_wrote_and_several_write_now_names_all_of_them() -> None:
    weft.compile(taking("one.py:1", "one.py:1", "one.py:1"))
    apart = weft.compile(taking("one.py:1", "one.py:1", "one.py:2"))
    assert list(apart._latest.times) == ["disk"]
    assert complaint(apart, [9, 9]).endswith("(one.py:1 or one.py:2)")


def test_a_program_without_a_wire_form_is_compiled_every_time() -> None:
    """Its regions return the tuple that they are given, which no file can say."""
    kind = weft.ptir.tensor("f32", [3])
    pair = TupleType((kind, kind))
    body = (
        Instruction(3, MakeTuple(), (Ref(1), Ref(2)), pair),
        Instruction(4, Cond(0, 1), (Ref(0), Ref(3)), pair),
        Instruction(5, BroadcastTo((3,)), (ElementRef(4, 1),), kind),
    )
    parameters = (weft.ptir.tensor("i1"), kind, kind)
    main = Function("main", parameters, (0, 1, 2), (kind,), body, (), (5,))
    regions = tuple(Region(number, (pair,), (), (pair,), (0,)) for number in range(2))
    made = Program("main", (main,), regions)
    x = np.arange(3, dtype=np.float32)
    for _ in range(2):
        executable = weft.compile(made)
        assert "machine code" in executable._latest.times
        assert executable(np.array(True), x, x + 1)[0].tolist() == [1, 2, 3]


def test_programs_with_huge_constants_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_cache, "MOST_BYTES", 1 << 10)
    for _ in range(2):
        (cluster,) = weft.compile(program()).clusters.values()
        assert "machine code" in cluster.times


def test_threads_that_ask_for_the_stages_of_a_kept_program_get_all_of_them() -> None:
    weft.compile(program())
    (cluster,) = weft.compile(program()).clusters.values()
    assert list(cluster.times) == ["disk"]
    start, found = threading.Barrier(4), list[Any]()

    def ask() -> None:
        start.wait()
        found.append(list(cluster.compilation.values))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(cluster.compilation.values)] * 4
    assert "region" in found[0]
