"""The tour: its cells run one after another, and print what the file shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.run_notebook import TOUR, code_cells, load, printed, shown, with_outputs

pytestmark = pytest.mark.usefixtures("default_backend", "small_machine")


def test_the_tour_prints_what_it_shows() -> None:
    notebook = load(TOUR)
    for cell, text in zip(code_cells(notebook), printed(notebook), strict=True):
        assert text == shown(cell), "run python -m examples.run_notebook"


def test_outputs_are_written_in_the_form_of_notebooks(tmp_path: Path) -> None:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
    }
    cells = [cell | {"source": ["a = 1\n", "print(a)\n", "print(2)"]}, cell | {"source": ["a"]}]
    file = tmp_path / "two.ipynb"
    file.write_text(json.dumps({"cells": cells, "nbformat": 4}))
    first, second = code_cells(with_outputs(load(file)))
    stream = {"name": "stdout", "output_type": "stream", "text": ["1\n", "2\n"]}
    assert (first["outputs"], first["execution_count"]) == ([stream], 1)
    assert (second["outputs"], second["execution_count"]) == ([], 2)
    assert shown(first) == "1\n2\n"
