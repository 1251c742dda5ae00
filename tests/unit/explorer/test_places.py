"""Lines that errors are about."""

from __future__ import annotations

import pytest

from weft.explorer.places import line_at, line_of

PLANS = """{
  "plans": [
    {
      "kernel": "a, [b]",
      "vectorize": {"axis": "n", "width": 16}
    },
    {
      "kernel": "c",
      "vectorize": {
        "axis": "n",
        "width": 8
      }
    }
  ],
  "kernels": {}
}
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("MalformedJson at plan file.plans[0].vectorize: field 'width' must be a number", 5),
        ("MalformedJson at plan file.plans[1].vectorize: field 'width' must be a number", 11),
        ("MalformedJson at plan file.plans[1]: field 'tile' is missing", 7),
        ("MalformedJson at plan file.plans[0].roles: there is no 'x'", 3),
        ("MalformedJson at plan file: field 'kernels' must be an object", 15),
        ("a vector of 3 elements is not a power of two", 0),
        ("E1 at line 4: this", 4),
    ],
)
def test_the_path_in_an_error_is_a_line_of_the_text(error: str, line: int) -> None:
    assert line_of(error, PLANS) == line


def test_a_text_that_is_no_json_has_no_paths() -> None:
    assert line_of("MalformedJson at plan file.plans[0]: field 'x'", "func @f() {") == 0
    assert line_at("}}]],,::", ["plans"]) == 0
