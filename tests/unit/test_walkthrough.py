"""The page that follows a program through every stage shows what the stages really make. Its code
is run with that of the other pages."""

from __future__ import annotations

from docs import generate_walkthrough


def test_the_page_is_up_to_date() -> None:
    assert generate_walkthrough.PAGE.read_text() == generate_walkthrough.page(), "run `make docs`"
