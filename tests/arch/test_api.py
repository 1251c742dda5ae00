"""The public surface is written down, and every name of it can be had."""

from __future__ import annotations

from docs import generate_api


def test_the_list_of_public_names_is_up_to_date() -> None:
    assert generate_api.PAGE.read_text() == generate_api.render(), "run `make docs`"


def test_parameters_are_listed_without_types_and_addresses() -> None:
    def made(
        x: int, /, *rest: float, by: object = test_parameters_are_listed_without_types_and_addresses
    ) -> None:
        """Nothing."""

    shown = "(x, /, *rest, by=test_parameters_are_listed_without_types_and_addresses)"
    assert generate_api.parameters(made) == shown
