"""The page on PyTorch: its code does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from tests.unit import test_docs  # noqa: E402
from weft.interop.torch.backend import weft_backend  # noqa: E402


@pytest.mark.filterwarnings("ignore")
def test_the_code_on_the_page_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "weft" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(weft_backend, name="weft")
    test_docs.test_the_code_on_the_page_does_what_it_says(
        "docs/torch.md", tmp_path, monkeypatch, capfd
    )
