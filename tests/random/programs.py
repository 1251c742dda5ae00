"""One random program, compiled and run in one of many ways, against the reference."""

from __future__ import annotations

from tests.support.cpu_configurations import Configuration, ConfiguredBackend
from weft.testing.compare import compare
from weft.testing.random_programs import random_program


def check_program(seed: int, size: int) -> None:
    """A program over every op and dtype, with branches, loops and random numbers, agrees with the
    reference on the cpu backend in the configuration that the seed draws."""
    configuration = Configuration.drawn(seed)
    case = random_program(seed, size)
    report = compare(case.program, case.inputs, ConfiguredBackend(configuration), seed=1)
    assert report.agrees, f"random_program({seed}, {size}) with {configuration}: {report}"


def size_of(seed: int) -> int:
    """How many instructions the program of a seed has in a long run."""
    return 2 + seed % 12
