"""Loading bundles: without the compiler, and never what is not what was built."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.bundles import models
from weft.foundation.errors import SpecViolation, UserError

ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"llvmlite", "islpy", "cuda", "highspy", "torch", "jaxlib", "safetensors"}:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import weft

bundle = weft.load_bundle(sys.argv[1])
print(bundle(np.zeros((3, 4), np.float32))[1].tolist())
heavy = ("weft.codegen", "weft.driver", "weft.ops", "weft.ptir", "weft.runtime")
print([name for name in sys.modules if name.startswith(heavy)])
"""


def test_numpy_is_all_it_takes(classify: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(classify)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    want = [t.numpy() for t in models.classifier()(np.zeros((3, 4), np.float32))][1].tolist()
    assert done.stdout == f"{want}\n[]\n"


def test_threads_share_a_bundle(classify: Path) -> None:
    bundle = weft.load_bundle(classify, threads=2)
    given = [np.random.default_rng(n).random((n + 1, 4)).astype(np.float32) for n in range(8)]
    want = [bundle(x)[0] for x in given]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(bundle(given[number])[0], want[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def copy(mixture: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixture, tmp_path / "copy"))


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((path / "manifest.json").read_text())
    change(content)
    (path / "manifest.json").write_text(json.dumps(content))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda p: flip(p / "libmixture.so"), "libmixture.so is not the file that was built"),
        (lambda p: flip(p / "weights.safetensors"), "weights.safetensors is not the file"),
        (lambda p: cut(p / "weights.safetensors"), r"it has \d+ bytes, not \d+"),
        (lambda p: (p / "mixture.h").unlink(), "mixture.h cannot be read: No such file"),
        (lambda p: cut(p / "manifest.json"), None),
        (lambda p: (p / "manifest.json").write_text("{"), "was not written by weft.build"),
        (
            lambda p: (p / "manifest.json").write_text("[" * 100_000),
            "was not written by weft.build",
        ),
        (lambda p: (p / "manifest.json").write_bytes(b"\xff"), "was not written by weft.build"),
        (lambda p: (p / "manifest.json").unlink(), "is not a bundle: manifest.json cannot be read"),
        (lambda p: changed(p, lambda c: c.update(format=99)), "has format 99, made by weft"),
        (lambda p: changed(p, lambda c: c.update(abi="x")), "has abi 'x'"),
        (lambda p: changed(p, lambda c: c.update(name="../x")), "was not written by weft.build"),
        (lambda p: changed(p, lambda c: c.update(name="other")), "was not written by weft.build"),
        (lambda p: changed(p, lambda c: c.pop("inputs")), "was not written by weft.build"),
        (lambda p: changed(p, lambda c: c["inputs"].pop()), "is not the one that its manifest"),
        *(
            (
                lambda p, side=side, said=said: changed(p, lambda c: c[side][0].update(said)),
                "is not the one that its manifest",
            )
            for side, said in (
                ("results", {"dtype": "si8"}),
                ("inputs", {"dtype": "f16"}),
                ("inputs", {"dtype": "nonsense"}),
                ("inputs", {"shape": [5, "B"]}),
                ("results", {"shape": [1, 9]}),
                ("results", {"shape": [45]}),
            )
        ),
        (
            lambda p: changed(p, lambda c: c["files"].update({"../a": c["files"]["mixture.h"]})),
            "was not written by weft.build",
        ),
        (
            lambda p: changed(p, lambda c: c["targets"][0].update(machine="pdp11")),
            "is for pdp11, but this machine is",
        ),
    ],
)
def test_what_was_not_built_is_told(
    copy: Path, damage: Callable[[Path], object], why: str | None
) -> None:
    damage(copy)
    if why is None:  # The last byte of the manifest is the end of its line.
        assert weft.load_bundle(copy).name == "mixture"
        return
    with pytest.raises(UserError, match=why):
        weft.load_bundle(copy)


def test_unchecked_weights_of_another_model_are_told(copy: Path) -> None:
    """The library knows the table of its weights, whoever loads it."""
    weights = copy / "weights.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data.replace(b"constant", b"constanT"))
    with pytest.raises(UserError, match="is not the file that this library was built with"):
        weft.load_bundle(copy, verify=False)
    weights.write_bytes(data[:-1])
    with pytest.raises(UserError, match="belongs to another model, or is cut off"):
        weft.load_bundle(copy, verify=False)
    weights.unlink()
    with pytest.raises(UserError, match=r"cannot read weights.safetensors in .*No such file"):
        weft.load_bundle(copy, verify=False)


def test_an_unchecked_library_that_was_cut_off_is_told(copy: Path) -> None:
    """The system would end the process that loads it."""
    library = copy / "libmixture.so"
    library.write_bytes(library.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"libmixture.so is not the file .* it has 1000 bytes, not"):
        weft.load_bundle(copy, verify=False)


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ((np.zeros((21, 4), np.float32),), "axis 0 of the input x has size 21; B is from 0 to 20"),
        ((np.zeros((2, 5), np.float32),), "axis 1 of the input x has size 5, not 4"),
        ((np.zeros((2, 4)),), "the input x has dtype float64, but the model takes float32"),
        ((np.zeros(4, np.float32),), "the input x has 1 axes, not 2"),
        ((), r"classify takes 1 inputs \(x\), not 0"),
    ],
)
def test_wrong_inputs_are_told(classify: Path, inputs: tuple[Any, ...], why: str) -> None:
    with pytest.raises(UserError, match=why):
        weft.load_bundle(classify)(*inputs)


def test_a_violation_is_that_of_the_program(folder: Path) -> None:
    bundle = weft.load_bundle(weft.build(models.division(), out=folder / "divided"))
    one, zero = np.ones(3, np.int32), np.zeros(3, np.int32)
    with pytest.raises(SpecViolation, match="the divisor is zero at element 0") as found:
        bundle(one, zero)
    assert found.value.code == "IntegerDivideByZero"
    assert "models.py:" in found.value.where


def test_a_bundle_that_was_built_anew_is_loaded_anew(folder: Path) -> None:
    """In one process, from one folder, under one name."""
    x, loaded = np.ones(3, np.float32), []
    for times in (2.0, 3.0, 3.0):
        made = weft.build(weft.jit(lambda x, t=times: x * t), x, out=folder / "anew", name="anew")
        loaded.append(weft.load_bundle(made))
    assert [bundle(x)[0][0] for bundle in loaded] == [2, 3, 3]


def test_options_are_checked(classify: Path) -> None:
    with pytest.raises(UserError, match="threads is 0; it must be a number from 1 to 4096"):
        weft.load_bundle(classify, threads=0)
    with pytest.raises(UserError, match="seed -1 is not a whole number"):
        weft.load_bundle(classify)(np.zeros((1, 4), np.float32), seed=-1)


def test_the_last_user_closes_the_program(classify: Path) -> None:
    """Python may end a bundle before the instances that die with it."""
    ended: list[str] = []
    bundle = weft.load_bundle(classify)
    bundle._idle = [bundle.instance(), bundle.instance()]
    code, users = bundle._code, bundle._users
    free, close = code.context_free, users._close

    def free_context(context: Any) -> None:
        ended.append("context")
        free(context)

    def close_program() -> None:
        ended.append("program")
        close()

    code.context_free, users._close = free_context, close_program
    users.leave()
    assert not ended, "two instances are left"
    users.join()
    del bundle, users
    gc.collect()
    assert ended == ["context", "context", "program"]
