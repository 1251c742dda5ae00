"""The table of derivative checks, family by family."""

from tests.derivatives import (
    coarse_cases,
    collective_cases,
    control_cases,
    elementwise_cases,
    matrix_cases,
    structure_cases,
)
from tests.derivatives.case import CASES

__all__ = [
    "CASES",
    "coarse_cases",
    "collective_cases",
    "control_cases",
    "elementwise_cases",
    "matrix_cases",
    "structure_cases",
]
