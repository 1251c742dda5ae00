"""tinygrad's test_ops.py on Weft: how many of its tests pass, and why the others do not.

`make test-tinygrad SUITE=DIR` takes a folder with tinygrad's sources. Nothing of tinygrad is
imported or copied: the names that the suite imports are answered by the face in this folder. A
test that the suite skips counts as not passed. The run fails where a test that passed once, by
the record beside this file, passes no more.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.scores import tinygrad_names
from tests.scores.report import report
from tests.scores.tinygrad_face import NAMES, Kind, Kinds, Tensor

RECORD = Path(__file__).with_name("tinygrad_not_passed.txt")
PLACES = ("test/backend/test_ops.py", "test/test_ops.py", "backend/test_ops.py", "test_ops.py")


def main(argv: list[str]) -> int:
    """Run, print the score; 1 where a test of the record fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", type=Path)
    parser.add_argument("--only", default="", help="tests whose name contains this")
    parser.add_argument("--update", action="store_true", help="write the record")
    given = parser.parse_args(argv)
    found = next((given.suite / p for p in PLACES if (given.suite / p).is_file()), None)
    if found is None:
        print(f"SUITE={given.suite} has none of {', '.join(PLACES)}")
        return 2
    outcomes = dict(sorted(run(load(found), given.only).items()))
    return report(
        outcomes, "passed",
        lambda missed: f"{len(outcomes) - len(missed)} of {len(outcomes)} pass", RECORD,
        update=given.update, whole=not given.only,
    )  # fmt: skip


def load(path: Path) -> ModuleType:
    """The suite's module, which finds our face where it imports tinygrad."""
    tinygrad_names.install()
    sys.modules.update(_modules())
    spec = importlib.util.spec_from_file_location("tinygrad_test_ops", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Device:
    """The one device: code for the CPU by way of LLVM."""

    DEFAULT = "CPU"

    def __class_getitem__(cls, name: str) -> Any:
        kinds = [Kind(each) for each in NAMES]
        return SimpleNamespace(renderer=SimpleNamespace(supported_dtypes=lambda: kinds))


@contextlib.contextmanager
def context(**settings: Any) -> Iterator[None]:
    """tinygrad's settings mean nothing here."""
    yield


def getenv(name: str, default: Any = 0) -> Any:
    return type(default)(os.environ.get(name, default))


def _modules() -> dict[str, ModuleType]:
    device = SimpleNamespace(interface="", renderer="LLVM", device="CPU")
    contents: dict[str, dict[str, Any]] = {
        "tinygrad": {"Tensor": Tensor, "Device": Device, "dtypes": Kinds},
        "tinygrad.helpers": {
            "getenv": getenv, "DEBUG": 0, "DEV": device, "IMAGE": 0, "Context": context,
        },
        "tinygrad.tensor": {"_to_np_dtype": lambda kind: np.dtype(str(kind))},
        "tinygrad.renderer": {},
        "tinygrad.renderer.nir": {"NIRRenderer": type("NIRRenderer", (), {})},
    }  # fmt: skip
    made = {}
    for name, names in contents.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(names)
    return made


class Outcomes(unittest.TestResult):
    """What became of each test: "passed", "skipped", or the first reason it failed for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        self.found.setdefault(_name(test), "passed")
        super().stopTest(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.found[_name(test)] = f"skipped by the suite: {reason}"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.found.setdefault(_name(test), reason_of(err))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:
        if err is not None:
            self.found.setdefault(_name(test), reason_of(err))


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def reason_of(error: Any) -> str:
    """The kind of an error and the first line that says something."""
    kind, value, _ = error
    lines = [line.strip() for line in str(value).splitlines() if line.strip()]
    said = next((line for line in lines if "Mismatched" in line or "Max abs" in line), "")
    return f"{kind.__name__}: {(lines or [''])[0][:150]} {said}".strip()


def each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """The tests of a suite, which may hold others."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def run(module: ModuleType, only: str) -> dict[str, str]:
    """Every test of the module, and what became of it."""
    np.random.seed(1337)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = Outcomes()
    for test in each(suite):
        if only in test.id():
            test(result)
    return result.found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
