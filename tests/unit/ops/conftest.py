"""What tests of several files here share: both backends, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import weft


@pytest.fixture(params=["cpu", "reference"])
def each_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The default backend of a test, which runs on each of the two."""
    before = weft.default_backend()
    weft.set_default_backend(request.param)
    yield request.param
    weft.set_default_backend(before)
