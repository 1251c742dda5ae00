"""What tests of several modules share: a GPU made of the dialect's interpreter.

It is loaded when a test asks for it: most do not, and the GPU code generator takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.gpu_machine import Machine, MachineBackend


@pytest.fixture
def gpu() -> Iterator[Machine]:
    with import_module("tests.support.gpu_machine").machine() as found:
        yield found


@pytest.fixture
def backend(gpu: Machine) -> MachineBackend:
    """The cuda backend on that GPU."""
    found: MachineBackend = import_module("tests.support.gpu_machine").MachineBackend(gpu)
    return found
