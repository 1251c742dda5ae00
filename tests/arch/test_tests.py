"""From the path of a module one can guess where its tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE, TESTS = ROOT / "src" / "weft", ROOT / "tests" / "unit"
ELSEWHERE = {
    "codegen/cpu/math": "unit/codegen/cpu/test_functions.py",
    "codegen/gpu/spelling/print": "unit/codegen/gpu/spelling/test_text.py",
    "core_ir/rules": "unit/core_ir/test_to_ptir.py",
    "interop/onnx/rules": "unit/interop/onnx/test_load.py",
    "interop/onnx/writing": "unit/interop/onnx/test_export.py",
    "interop/torch": "torch",
    "interop/torch/rules": "torch",
    "testing/conformance/cases": "unit/testing/conformance/test_table.py",
    "testing/generators": "unit/testing/test_strategies.py",
}
"""Packages whose tests need other libraries, or are those of the package around them."""


def packages() -> list[Path]:
    found = sorted(path.parent.relative_to(CODE) for path in CODE.rglob("__init__.py"))
    return [path for path in found if path.parts]


def folders() -> list[Path]:
    return sorted({path.parent for path in TESTS.rglob("*.py")} - {TESTS})


def test_each_package_has_a_folder_of_tests_or_a_file_of_its_name() -> None:
    """`weft.ptir.text` in tests/unit/ptir/text/, or in tests/unit/ptir/test_text.py."""
    assert len(packages()) > 60
    missing = [
        str(path)
        for path in packages()
        if not (TESTS / path).is_dir()
        and not list((TESTS / path.parent).glob(f"test_{path.name}*.py"))
    ]
    assert missing == sorted(ELSEWHERE)
    assert [place for place in ELSEWHERE.values() if not (ROOT / "tests" / place).exists()] == []


def test_each_folder_of_tests_is_that_of_a_package() -> None:
    assert [path for path in folders() if not (CODE / path.relative_to(TESTS)).is_dir()] == []


def test_a_package_with_a_folder_has_all_of_its_tests_there() -> None:
    """tests/unit/ops/array/test_sets.py, and not tests/unit/ops/test_array_sets.py."""
    beside = [
        str(found.relative_to(ROOT))
        for path in folders()
        for found in path.parent.glob(f"test_{path.name}_*.py")
    ]
    assert beside == []
