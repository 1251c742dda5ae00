"""The log of measurements, and how well estimates order what was measured."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from scipy.stats import spearmanr

from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning.measure import (
    Measurement,
    append,
    first_plans,
    measure_program,
    rank_correlation,
    rankings,
    read_log,
)
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program
from weft.target.known import target_named


def line(estimate: float, actual: float) -> Measurement:
    return Measurement("map0", "map", 10, 20, 0.5, estimate, actual, '{"kind": "map"}')


def test_a_log_grows_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    append(path, [line(1e-6, 2e-6)])
    append(path, [line(3e-6, 4e-6), line(5.5e-6, 1 / 3)])
    assert read_log(path) == [line(1e-6, 2e-6), line(3e-6, 4e-6), line(5.5e-6, 1 / 3)]
    assert path.read_text().count("FLOPs") == 1


def test_the_rank_correlation_is_spearmans() -> None:
    rng = random.Random(0)
    for _ in range(20):
        lines = [line(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(rng.randint(3, 30))]
        want = spearmanr([m.estimate for m in lines], [m.actual for m in lines]).statistic
        assert rank_correlation(lines) == pytest.approx(want)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "a,b\n1,2\n",
            "is not a log of measurements: a log begins with the line kernel,pattern,FL",
        ),
        ("program @main\n", "is not a log of measurements: a log begins with the line"),
        ("", "is not a log of measurements: a log begins with the line"),
        ("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\nm,map,x,1,1,1,1,p\n", "line 2 is"),
        ("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\nm,map\n", "line 2 is no"),
        ("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\nm,map,1,1,1,nan,1,p\n", "line 2 is"),
        ("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\nm,map,1,1,1,1,inf,p\n", "line 2 is"),
        ("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\nm,map,1,1,1,1,-1,p\n", "line 2 is"),
    ],
)
def test_what_is_no_log_is_told(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=why):
        read_log(path)


def test_bytes_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\xff\0")
    with pytest.raises(UserError, match=r"log\.csv is not a log of measurements, nor a CSV file"):
        read_log(path)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        read_log(tmp_path / "log.csv")
    with pytest.raises(UserError, match=r"cannot write .*: No such file"):
        append(tmp_path / "missing" / "log.csv", [])


@pytest.mark.parametrize("lines", [[], [line(1, 1)], [line(1, 1), line(1, 2)]])
def test_too_little_to_correlate(lines: list[Measurement]) -> None:
    with pytest.raises(UserError, match="needs measurements that differ"):
        rank_correlation(lines)


def taken(kernel: str, key: str, number: int, estimate: float, actual: float) -> Measurement:
    plan = f'{{"kind": "map", "kernel": "{key}", "vector": {number}}}'
    return Measurement(kernel, "map", 10, 20, 0.5, estimate, actual, plan)


def test_plans_are_ordered_within_their_kernel() -> None:
    """Two kernels of one name, the larger of which is estimated the wrong way round: mixed, the
    correlation would be 0.6."""
    small = [taken("map0", "a", n, 1.0 + n, 1.0 + n) for n in range(4)]
    large = [taken("map0", "b", n, 100.0 - n, 100.0 + 10 * n) for n in range(4)]
    again = taken("map0", "a", 3, 4.0, 6.0)
    found = rankings([*small, *large, again, taken("map1", "c", 0, 1.0, 1.0)])
    assert [(r.kernel, r.plans) for r in found] == [("map0", 4), ("map0", 4)]
    assert [r.correlation for r in found] == pytest.approx([1.0, -1.0])
    assert [r.spread for r in found] == pytest.approx([5.0, 1.3])
    assert len(first_plans([*small, *large])) == 2


def test_equal_estimates_order_nothing() -> None:
    (found,) = rankings([taken("map0", "a", n, 1.0, 1.0 + n) for n in range(3)])
    assert found.correlation == 0.0


def kernels_of_many_sizes() -> Program:
    b = Builder("many")
    shapes = ([32, 32], [96, 128], [512, 256], [768, 1024])
    xs = [b.param("f32", shape) for shape in shapes]
    squares = [b.param("f32", [size, size]) for size in (48, 160, 320)]
    results = [x @ x for x in squares]
    for x in xs:
        results += [b.tanh(x), b.reduce_sum(x, axes=[0])]
    return b.build(*results)


@pytest.mark.usefixtures("small_machine")
def test_estimates_order_kernels_of_all_kinds_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread on a small machine: its times span four powers of ten, so that the order is the
    same where others use the processors as well."""
    monkeypatch.setenv("WEFT_NUM_THREADS", "1")
    program = kernels_of_many_sizes()
    compilation = Compilation(program, target_named("cpu"), make_signature(program))
    lines = list(measure_program(run_pipeline(compilation)))
    assert len(lines) >= 10
    assert {m.pattern for m in lines} >= {"matmul", "row", "map"}
    assert rank_correlation(lines) >= 0.7
