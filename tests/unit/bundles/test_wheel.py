"""The wheel that runs bundles without the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from weft.bundles.wheel import write_wheel

RUN = """
import sys
import numpy as np
import weft_runtime
bundle = weft_runtime.load_bundle(sys.argv[1])
print(bundle, bundle(np.ones((3, 4), np.float32))[1].shape)
try:
    bundle(np.ones((3, 5), np.float32))
except weft_runtime.WeftError as error:
    print(error)
print([name for name in sys.modules if name.partition(".")[0] in ("weft", "llvmlite", "islpy")])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wheel(tmp_path_factory.mktemp("wheel"))


def test_a_bundle_runs_without_the_compiler(wheel: Path, classify: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(classify)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first == "<Bundle classify: 1 inputs, 2 results> (3,)"
    assert second == "axis 1 of the input x has size 5, not 4"
    assert third == "[]"


def test_it_is_small_and_always_the_same(wheel: Path, tmp_path: Path) -> None:
    assert wheel.stat().st_size < 100_000
    assert write_wheel(tmp_path).read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if name.endswith("/RECORD"))
        listed = [line.partition(",")[0] for line in archive.read(record).decode().splitlines()]
        told = archive.read(record.replace("RECORD", "METADATA")).decode()
    assert sorted(listed) == sorted(names)
    assert told.count("Requires-Dist: ") == 2
    assert "weft_runtime/bundles/build.py" not in names
