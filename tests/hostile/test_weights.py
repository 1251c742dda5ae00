"""Files of weights from strangers: each lie is told in a sentence, and damage does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from tests.hostile.weight_files import GGUF, SAFETENSORS, mutant
from weft.foundation.errors import InternalError, UserError, WeftError

MUTANTS = 2_000


@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_lying_safetensors_file_is_told(name: str, tmp_path: Path) -> None:
    content, message = SAFETENSORS[name]
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=rf"x.safetensors is not a safetensors file: .*({message})"):
        weft.load(tmp_path)


@pytest.mark.parametrize("name", GGUF)
def test_a_lying_gguf_file_is_told(name: str, tmp_path: Path) -> None:
    content, message = GGUF[name]
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(
        UserError, match=rf"x.gguf is not a GGUF file that Weft reads: .*({message})"
    ):
        weft.load(tmp_path)


def test_damaged_files_of_weights_are_refused_or_read(tmp_path: Path) -> None:
    path, counts = tmp_path / "x", {"read": 0, "refused": 0}
    for seed in range(MUTANTS):
        path.write_bytes(mutant(seed))
        try:
            for tensor in weft.load(path).values():
                tensor.numpy()
            weft.load_metadata(path)
            counts["read"] += 1
        except InternalError:
            raise
        except WeftError as error:
            counts["refused" if len(str(error)) < 1_000 else f"wordy: {seed}"] += 1
        except Exception as error:
            pytest.fail(f"mutant({seed}) made {type(error).__name__}: {error}")
    assert min(counts.values()) > MUTANTS // 20
