"""Bundles for several targets: a machine runs the best that it can, or the one that is named."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.c_callers import STRICT, call, needs
from tests.unit.bundles import models
from weft.bundles.elf import Elf
from weft.bundles.library import compiler_for
from weft.bundles.processors import machine_of
from weft.bundles.variants import targets_of
from weft.foundation.errors import BackendUnavailable, UserError
from weft.ptir import Builder
from weft.target.known import target_named

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86-64-v3"
"""A target for which this machine has no code."""


@pytest.fixture(scope="module")
def both(folder: Path) -> Path:
    """A model for this machine, and for any of its kind."""
    targets = (models.PORTABLE, "cpu")
    return weft.build(models.mixture(), out=folder / "both", name="both", target=targets)


def test_the_best_that_a_machine_runs_is_chosen(both: Path) -> None:
    inputs = models.inputs_of(models.mixture())
    best = weft.load_bundle(both)
    named = weft.load_bundle(both, target=models.PORTABLE)
    assert (best.target, named.target) == ("cpu", models.PORTABLE)
    for one, other in zip(best(*inputs), named(*inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_it_is_one_bundle(both: Path) -> None:
    content = json.loads((both / "manifest.json").read_text())
    assert [target["name"] for target in content["targets"]] == ["cpu", models.PORTABLE]
    assert sorted(path.name for path in both.iterdir()) == [
        "CMakeLists.txt", "both.c", "both.h", "example.c", "libboth.a", "libboth.so",
        "manifest.json", "program.bin", "weights.safetensors",
    ]  # fmt: skip
    # The table of the model is there once, however many programs read it.
    assert list(weft.load(both / "weights.safetensors")) == ["constant.0"]


NAMED = """
#include <stdio.h>
#include "both.h"

int main(int count, char **given) {
    weft_options options = {sizeof(weft_options), 1, 0, NULL, NULL, NULL, 0, 0, NULL};
    both_program *program;
    weft_error error;
    if (count > 2) options.target = given[2];
    puts(both_open(given[1], &options, &program, &error) ? error.text : both_target(program));
    both_close(program);
    return 0;
}
"""


def test_c_programs_choose_too(both: Path, tmp_path: Path) -> None:
    needs("gcc")
    (tmp_path / "named.c").write_text(NAMED)
    program = tmp_path / "named"
    linked = (both / "libboth.a", "-lpthread", "-o", program)
    call("gcc", "-std=c99", *STRICT, f"-I{both}", tmp_path / "named.c", *linked)
    assert call(program, both) == "cpu\n"
    assert call(program, both, models.PORTABLE) == f"{models.PORTABLE}\n"
    assert call(program, both, "vax").startswith("both has no code for vax: it was built for ")


def test_a_lesser_processor_runs_what_it_can(folder: Path, tmp_path: Path) -> None:
    """Valgrind has no AVX-512."""
    needs("gcc", "valgrind")
    if platform.machine() != "x86_64":
        pytest.skip("it is about AVX-512")
    targets = ("x86-64-v3", "x86-64-v4")
    made = weft.build(models.mixture(), out=folder / "levels", name="both", target=targets)
    (tmp_path / "named.c").write_text(NAMED)
    program = tmp_path / "named"
    linked = (made / "libboth.a", "-lpthread", "-o", program)
    call("gcc", f"-I{made}", tmp_path / "named.c", *linked)
    checked = ("valgrind", "-q", "--error-exitcode=9", program, made)
    assert call(*checked) == "x86-64-v3\n"
    told = "both was built for x86-64-v4, and this processor has no avx512f\n"
    assert call(*checked, "x86-64-v4") == told


def test_machines_have_folders(folder: Path) -> None:
    try:
        compiler_for(machine_of(target_named(OTHER)))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    targets = (models.PORTABLE, OTHER)
    made = weft.build(models.mixture(), out=folder / "machines", name="m", target=targets)
    machines = {path.parent.name: Elf(path.read_bytes()) for path in made.glob("*/libm.so")}
    assert {name: elf.machine for name, elf in machines.items()} == {
        "aarch64": "aarch64", "x86_64": "x86_64",
    }  # fmt: skip
    one, other = (set(elf.exported) for elf in machines.values())
    assert one == other >= {"m_open", "m_run", "m_target"}
    assert weft.load_bundle(made).target == models.PORTABLE
    with pytest.raises(BackendUnavailable, match=f"is for {OTHER[:6]}.*, but this machine is"):
        weft.load_bundle(made, target=OTHER)


def test_each_machine_has_a_compiler(folder: Path, tmp_path: Path) -> None:
    """One that is named for a kind of machine makes its library; the others are found."""
    try:
        other = shlex.join(compiler_for(machine_of(target_named(OTHER))))
    except BackendUnavailable as error:
        pytest.skip(str(error))
    named, noted = tmp_path / "named", tmp_path / "noted"
    named.write_text(f'#!/bin/sh\necho called >> {noted}\nexec {other} "$@"\n')
    named.chmod(0o755)
    compilers = {machine_of(target_named(OTHER)): str(named)}
    targets = (models.PORTABLE, OTHER)
    made = weft.build(models.same(), out=folder / "compilers", target=targets, cc=compilers)
    assert noted.read_text() == "called\n" * 2
    assert len(list(made.glob("*/libsame.so"))) == 2


def test_mistakes_are_told(both: Path, folder: Path) -> None:
    with pytest.raises(UserError, match=r"has no code for 'vax': it was built for cpu, "):
        weft.load_bundle(both, target="vax")
    for targets, why in (
        (("cpu", "sm90"), "cannot be for both processors and GPUs: build one for cpu and one"),
        (("cpu", "cpu"), "the target cpu is given twice"),
        ((), "no target is given"),
        (("cpu", "vax"), "there is no target 'vax'"),
    ):
        with pytest.raises(UserError, match=why):
            weft.build(models.same(), out=folder / "no", target=targets)
    other = machine_of(target_named(OTHER))
    for compiler, why in (
        ("cc", f"different kinds of machines: .* as in cc=.'{other}': 'cc'."),
        ({"vax": "cc"}, "cc has a C compiler for 'vax'; the targets run on "),
    ):
        with pytest.raises(UserError, match=why):
            weft.build(models.same(), out=folder / "no", target=("cpu", OTHER), cc=compiler)
    assert not (folder / "no").exists()


def test_what_asks_for_most_comes_first() -> None:
    found = targets_of(["x86-64-v3", "aarch64", "x86-64-v4"])
    assert [target.machine for target in found] == ["x86-64-v4", "x86-64-v3", "aarch64"]


def test_open_sizes_and_states_have_variants(folder: Path) -> None:
    b = Builder("total")
    x, state = b.param("f32", ["?B", 2]), b.param("f32", [2])
    new = state + b.reduce_sum(x, [0])
    made = weft.build(
        b.build(x * 2.0, new), out=folder / "total", sizes={"B": (1, 4)}, state={1: 1},
        target=["cpu", models.PORTABLE],
    )  # fmt: skip
    for target in ("cpu", models.PORTABLE):
        instance = weft.load_bundle(made, target=target).instance()
        for count in (1, 3, 4):
            (got,) = instance(np.ones((count, 2), np.float32))
            assert got.shape == (count, 2)
        assert instance.states["in1"].tolist() == [8, 8]
