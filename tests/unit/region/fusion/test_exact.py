"""Exact fusion: never dearer than greedy, as cheap as trying every choice, cheaper where greedy
takes the wrong first step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import fusion_programs
from benchmarks.fusion_peers import weft_program
from tests.support.cases import one_in
from weft.indexbook.from_tiny import build_book
from weft.poly_view.from_tiny import build_scop
from weft.ptir import Builder, Program, gradient
from weft.region.cost import kernel_seconds
from weft.region.from_poly_view import Fuse, lower_scop
from weft.region.fusion import exact
from weft.region.fusion.exact import fuse_exactly, window_of
from weft.region.fusion.greedy import HEAVY, Fusion
from weft.region.fusion.merge import Group, _Merger, fuse_greedily, fuse_nothing
from weft.region.fusion.milp import Candidate, Window, solve
from weft.region.fusion.windows import MOST_BLOCKS, windows_of
from weft.region.ir import Module
from weft.region.verify import verify
from weft.region.writing.emit import Root, Stop
from weft.target.known import target_named
from weft.tiny.from_ptir import lower_program

pytestmark = pytest.mark.usefixtures("small_machine")


def random_blocks(seed: int) -> Program:
    """Elementwise chains that meet, rows and columns reduced on the way, up to three results."""
    rng = random.Random(seed)
    b = Builder("blocks")
    shape = list(rng.choice(((64, 512), (512, 1024), (2048, 4096))))
    values = [b.param("f32", shape) for _ in range(rng.randint(1, 3))]
    bias, given = b.param("f32", shape[1:]), len(values)
    for _ in range(rng.randint(5, 12)):
        x, y = rng.choice(values[-5:]), rng.choice(values)
        kinds = rng.random()
        if kinds < 0.3:
            made = rng.choice((b.exp, b.tanh, b.log))(x)
        elif kinds < 0.75:
            made = x * y if kinds < 0.6 else x + y
        elif kinds < 0.85:
            made = x + b.broadcast_to(bias, shape)
        else:
            reduce = rng.choice((b.reduce_sum, b.reduce_max))
            row = reduce(x, axes=[rng.choice((0, 1))], keepdims=True)
            made = x * b.broadcast_to(row, shape)
        values.append(made)
    others = rng.sample(values[given:-1], rng.randint(0, 2))
    return b.build(values[-1], *others)


def kernels_of(program: Program, target: str, fuse: Fuse = fuse_greedily) -> Module:
    graph = lower_program(program)
    scop = build_scop(graph, build_book(graph))
    return lower_scop(scop, graph, target_named(target), fuse=fuse)


def greedy_choice(program: Program, target: str = "cpu") -> Fusion:
    """Greedy's choice, before kernels are merged."""
    held: list[Fusion] = []

    def fuse(fusion: Fusion) -> list[Group]:
        groups = fuse_greedily(fusion)
        fusion.inlined.clear()
        fusion.choose()
        held.append(fusion)
        return groups

    kernels_of(program, target, fuse)
    return held[0]


def present_seconds(fusion: Fusion, blocks: Sequence[str], roots: Sequence[str]) -> float:
    stored = [name for name in blocks if name not in fusion.inlined]
    return sum(fusion.kernel((Root(name),))[1] for name in (*stored, *roots))


def every_choice(fusion: Fusion, blocks: Sequence[str], roots: Sequence[str]) -> Iterator[float]:
    """The time of each choice about some blocks that is one: what the solver is compared with."""
    outside = fusion.inlined - set(blocks)
    for taken in itertools.product((False, True), repeat=len(blocks)):
        inside = {name for name, is_inlined in zip(blocks, taken, strict=True) if is_inlined}
        fusion.inlined = outside | inside
        kernels = [*(name for name in blocks if name not in inside), *roots]
        once = [n for k in kernels for n in fusion.closure((k,)) if _is_heavy(fusion, n)]
        if len(set(once)) < len(once):
            continue
        try:
            yield sum(fusion.kernel((Root(name),))[1] for name in kernels)
        except Stop:
            continue


def _is_heavy(fusion: Fusion, name: str) -> bool:
    return fusion.view.blocks[name].kind in HEAVY


@pytest.mark.parametrize("target", one_in(2, ["cpu", "sm90"]))
def test_no_window_is_dearer_than_greedy_has_it(target: str) -> None:
    """A hundred and more windows a target, and some of them cheaper."""
    count = cheaper = 0
    for seed in itertools.count():
        fusion = greedy_choice(random_blocks(seed), target)
        for blocks in windows_of(fusion):
            window, roots = window_of(fusion, blocks)
            solution = solve(window, time_limit=60.0)
            assert solution is not None
            assert solution.proved
            greedy = present_seconds(fusion, blocks, roots)
            assert solution.seconds <= greedy * (1 + 1e-9), seed
            cheaper += solution.seconds < greedy * (1 - 1e-6)
            count += 1
        if count >= 110:
            break
    assert cheaper > 0


def test_it_is_as_cheap_as_trying_every_choice() -> None:
    count = 0
    for seed in range(60):
        fusion = greedy_choice(random_blocks(seed))
        for blocks in windows_of(fusion):
            if 3 <= len(blocks) <= 7:
                window, roots = window_of(fusion, blocks)
                solution = solve(window, time_limit=60.0)
                assert solution is not None
                least = min(every_choice(fusion, blocks, roots))
                assert solution.seconds == pytest.approx(least, rel=1e-9), seed
                count += 1
                break
    assert count >= 30


def scaled_by_the_greatest(rows: int, columns: int) -> Program:
    """Two results read `z * max(z)`; greedy computes that product in both of their kernels before
    it comes to the maximum, which can then be in neither."""
    b = Builder("scaled")
    x, y = b.param("f32", [rows, columns]), b.param("f32", [rows, columns])
    z = b.exp(x)
    top = b.broadcast_to(b.reduce_max(z, axes=[1], keepdims=True), [rows, columns])
    scaled = z * top
    return b.build(b.log(scaled), scaled * y)


def test_the_greatest_is_found_in_the_pass_that_scales_by_it() -> None:
    """By both: greedy merges the kernel of the maximum into the one that reads it."""
    program = scaled_by_the_greatest(512, 1024)
    for fuse in (fuse_greedily, fuse_exactly):
        made = kernels_of(program, "cpu", fuse)
        assert len(made.kernels) == 1
        assert {t.role for t in made.tensors.values()} == {"input", "output"}


def test_what_was_chosen_is_told_with_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is merged, exact fusion stores what greedy computes twice."""
    monkeypatch.setattr(_Merger, "run", lambda merger: None)
    made = kernels_of(scaled_by_the_greatest(512, 1024), "cpu", fuse_exactly)
    assert made.notes[-1].startswith(
        f"exact fusion, 1 window of up to {MOST_BLOCKS} blocks, 1 distinct, 1 s each at most: "
    )
    assert "the kernels around it take less time with it stored" in made.stored.values()


def test_a_window_without_time_for_its_kernels_is_cut_in_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until there is time; where there is none for one block, greedy's choice stays."""
    program = scaled_by_the_greatest(512, 1024)
    for tick, windows in ((0.05, "2 windows"), (1.0, "0 windows")):
        clock = itertools.count()
        monkeypatch.setattr(exact, "thread_time", lambda: tick * next(clock))  # noqa: B023
        made = kernels_of(program, "cpu", fuse_exactly)
        verify(made)
        assert any(note.startswith(f"exact fusion, {windows} of") for note in made.notes)
    assert made.kernels == kernels_of(program, "cpu", fuse_greedily).kernels


def test_exact_fusion_is_no_dearer_once_kernels_have_stages() -> None:
    """The cheapest kernels before there are stages are not the cheapest with them."""
    line = replace(fusion_programs.PROGRAMS["harris"], shapes=((300, 300),))
    program = weft_program(line, [np.zeros((300, 300), np.float32)])
    target = target_named("cpu")
    greedy, best = (
        sum(kernel_seconds(kernel, made.tensors, target) for kernel in made.kernels)
        for made in (kernels_of(program, "cpu", fuse) for fuse in (fuse_greedily, fuse_exactly))
    )
    assert best <= greedy


def test_equal_layers_are_solved_once() -> None:
    b = Builder("layers")
    x = b.param("f32", [64, 64])
    weights = [b.param("f32", [64, 64]) for _ in range(6)]
    for weight in weights:
        x = b.tanh(b.exp(x) * x) @ weight
    notes = kernels_of(b.build(x), "cpu", fuse_exactly).notes
    # The first reads an input, the others what a product stored.
    assert "6 windows of up to 20 blocks, 2 distinct" in notes[-1]


def test_without_time_there_is_no_solution_or_a_sound_one() -> None:
    candidates = (
        Candidate(0, (), (), (), 3e-6),
        Candidate(1, (0,), (), (), 5e-6),
        Candidate(1, (), (0,), (), 1e-6),
    )
    assert solve(Window(1, candidates)) is not None
    late = solve(Window(1, candidates), time_limit=0.0)
    assert late is None or late.seconds >= 4e-6


def test_where_greedy_stays_its_kernels_stay_whole() -> None:
    """Merging finds that a block need not be stored; exact fusion, finding nothing better, must
    not forget it."""
    b = Builder("loss")
    x, y = b.param("f32", [128, 256]), b.param("f32", [128, 64])
    first, second = b.param("f32", [256, 512]), b.param("f32", [512, 64])
    wrong = b.gelu(x @ first) @ second - y
    loss = gradient(b.build(b.reduce_sum(wrong * wrong, axes=[0, 1])), wrt=[2, 3])
    for target in ("cpu", "sm90"):
        verify(kernels_of(loss, target, fuse_exactly))


@pytest.mark.parametrize("fuse", [fuse_exactly, fuse_nothing])
def test_kernels_of_other_choices_are_sound(fuse: Fuse) -> None:
    for seed in range(40):
        verify(kernels_of(random_blocks(seed), "cpu", fuse))


@pytest.mark.parametrize("fuse", [fuse_exactly, fuse_nothing])
def test_a_number_that_is_an_output_is_stored(fuse: Fuse) -> None:
    b = Builder("number")
    x = b.param("f32", [4])
    two = b.constant(2.0, "f32")
    module = kernels_of(b.build(two, x * b.broadcast_to(two, [4])), "cpu", fuse)
    verify(module)
    assert len(module.outputs) == 2
