"""Matrix products by their sizes: as programs, and as data of the planner."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import weft
from tests.support.gpu_machine import Machine
from weft.cli.main import app
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning import tune as tuner
from weft.driver.tuning.measure import Measurement
from weft.driver.tuning.products import Product, product_named
from weft.foundation.errors import UserError
from weft.plan.ir import MmaPlan
from weft.region.ir import Kernel, Module
from weft.target.known import target_named
from weft.target.matrix_tiles import Extent
from weft.target.matrix_time import Contraction
from weft.target.measured_forms import form_name, parse_table
from weft.target.target import Target


@pytest.mark.parametrize(
    ("text", "product"),
    [
        ("5x7x8", Product(5, 7, 8)),
        (" 5x7x8  NT ", Product(5, 7, 8, layout="NT")),
        ("3*5x7x8", Product(5, 7, 8, 3)),
        ("3*5x7x8 TT", Product(5, 7, 8, 3, "TT")),
        ("5x7x8 TN", Product(5, 7, 8, layout="TN")),
    ],
)
def test_products_have_names(text: str, product: Product) -> None:
    assert product_named(text) == product
    assert product_named(str(product)) == product
    program = product.program("f32")
    rng = np.random.default_rng(0)
    lead = (product.batch,) if product.batch > 1 else ()
    a, b = (
        rng.standard_normal((*lead, *sizes)).astype(np.float32)
        for sizes in ((product.m, product.k), (product.k, product.n))
    )
    stored = [
        x if letter == "N" else np.ascontiguousarray(np.swapaxes(x, -1, -2))
        for x, letter in zip((a, b), product.layout, strict=True)
    ]
    (got,) = weft.run(program, stored, backend="reference")
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", ["", "5x7", "5x7x8x9", "axbxc", "5x7x8 NX", "5.0x7x8", "-1x2x3"])
def test_what_is_no_product(text: str) -> None:
    with pytest.raises(UserError, match="is not a matrix product: write MxNxK"):
        product_named(text)


def test_a_product_of_nothing() -> None:
    with pytest.raises(UserError, match="has no elements"):
        product_named("0x7x8")


# -- on a pretended GPU ----------------------------------------------------------------------------

MEASURED: list[str] = []


def timed(kernel: Kernel, module: Module, plan: object, target: Target) -> Measurement:
    """A clock on which the narrowest tile is fastest."""
    assert isinstance(plan, MmaPlan)
    MEASURED.append(kernel.name)
    return Measurement("matmul", "matmul", 1, 1, 1.0, 1e-6, 1e-6 * plan.tile[1], "{}")


@pytest.fixture
def gpu(gpu: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """With a cache of its own, and times that are known."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuner, "measure", timed)
    MEASURED.clear()
    return gpu


def tune(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["tune", *words], catch_exceptions=True)
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.usefixtures("gpu")
def test_times_of_forms_are_kept_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    data = tmp_path / "times.json"
    code, text = tune("--gpu", "--shapes", "512x768x1024 NT", "--data", str(data))
    assert code == 0, text
    assert "512x768x1024 NT: " in text
    table = parse_table(data.read_text())
    assert (table.device, table.target) == ("Interpreter", "sm90")
    times = table.products[Contraction(Extent(1, 512, 768, 1024))]
    assert 8 <= len(times) <= 12
    assert {form_name(f): t for f, t in times.items()} == pytest.approx(
        {form_name(f): float(f.columns) for f in times}
    )
    first = len(MEASURED)
    code, text = tune("--gpu", "--shapes", "512x768x1024 NT,1024x1024x512", "--data", str(data))
    assert code == 0, text
    assert "512x768x1024 NT: 0 plans measured on the GPU, 1 kernel tuned before" in text
    assert first < len(MEASURED) < 3 * first
    assert set(json.loads(data.read_text())["products"]) == {
        "1*512x768x1024 k k",
        "1*1024x1024x512 k n",
    }


@pytest.mark.usefixtures("gpu")
def test_compiles_take_the_plan_that_was_best(tmp_path: Path) -> None:
    product = product_named("4096x4096x512 NT")
    chosen = plan_of(product)
    code, text = tune("--gpu", "--shapes", str(product))
    assert code == 0, text
    tuned = plan_of(product)
    assert tuned.tile[1] < chosen.tile[1]
    weft.ptir.save(product.program(), tmp_path / "product.ptir.txt")
    words = ["compile", str(tmp_path / "product.ptir.txt"), "--target", "sm90", "-v"]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "plans measured: " in told.output


def plan_of(product: Product) -> MmaPlan:
    """The plan by which a compile carries a product out."""
    source = product.program()
    compilation = Compilation(source, target_named("sm90"), make_signature(source))
    (plan,) = run_pipeline(compilation, until="plan")["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    return plan


@pytest.mark.usefixtures("gpu")
def test_products_may_stand_in_a_file(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("# two products\n512x512x512\n\n2*256x256x512 NT\n")
    code, text = tune("--gpu", "--shapes", str(shapes))
    assert code == 0, text
    assert "512x512x512: " in text
    assert "2*256x256x512 NT: " in text


@pytest.mark.usefixtures("gpu")
def test_times_of_another_device_are_not_mixed(tmp_path: Path) -> None:
    data = tmp_path / "times.json"
    data.write_text('{"device": "Other", "target": "sm90", "products": {}}')
    code, text = tune("--gpu", "--shapes", "512x512x512", "--data", str(data))
    assert code != 0
    assert "holds times of Other (sm90), not of Interpreter (sm90)" in text
    data.write_text("[]")
    assert (
        "this is not a table of measured forms"
        in tune("--gpu", "--shapes", "512x512x512", "--data", str(data))[1]
    )


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "takes a program, or --shapes"),
        (["--shapes", "5x5x5"], "add --gpu"),
        (["x.ptir", "--data", "d.json"], "name them with --shapes"),
        (["--gpu", "--shapes", ","], "there is no matrix product in"),
        (["--gpu", "--shapes", "5x5"], "'5x5' is not a matrix product"),
    ],
)
def test_wrong_calls_are_sentences(words: list[str], why: str) -> None:
    code, text = tune(*words)
    assert code != 0
    assert why in text


# -- weft bench ------------------------------------------------------------------------------------


def bench(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", *words], catch_exceptions=True)
    return result.exit_code, result.output + str(result.exception or "")


def test_bench_says_how_long_programs_and_products_take(tmp_path: Path) -> None:
    b = weft.ptir.Builder()
    x = b.param("f32", [32])
    weft.ptir.save(b.build(b.exp(x)), tmp_path / "exp.ptir.txt")
    code, text = bench(str(tmp_path / "exp.ptir.txt"), "--shapes", "16x16x16")
    assert code == 0, text
    header, _, first, second = text.splitlines()
    assert header.split() == ["program", "µs", "TFLOP/s"]
    assert float(first.split()[1].replace(",", "")) > 0
    assert second.split()[0] == "16x16x16"


def test_bench_needs_something_to_measure(tmp_path: Path) -> None:
    assert "takes programs, or --shapes" in bench()[1]
    b = weft.ptir.Builder()
    weft.ptir.save(b.build(b.exp(b.param("f32", ["?N"]))), tmp_path / "any.ptir.txt")
    assert "has dynamic dims" in bench(str(tmp_path / "any.ptir.txt"))[1]
