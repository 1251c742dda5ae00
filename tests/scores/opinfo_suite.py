"""torch's OpInfo on Weft: how many of its ops have an equivalent that gives torch's values.

`make test-opinfo` goes through the ops that torch itself is tested by. An op counts where a table
beside this file names an equivalent, a function of Weft or a line of them, and it agrees with torch
on the first few of the op's own samples: shapes, kinds of dtypes, values. The run fails where an
op that counted once, by the record beside this file, counts no more.
"""

from __future__ import annotations

import argparse
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import weft
from tests.scores import (
    opinfo_indices,
    opinfo_layers,
    opinfo_matrices,
    opinfo_numbers,
    opinfo_reductions,
    opinfo_shapes,
    opinfo_windows,
)
from tests.scores.opinfo_forms import OPS
from tests.scores.report import report

RECORD = Path(__file__).with_name("opinfo_not_counted.txt")
SAMPLES = 3
PARTS = (
    opinfo_indices, opinfo_layers, opinfo_matrices, opinfo_numbers, opinfo_reductions,
    opinfo_shapes, opinfo_windows,
)  # fmt: skip
"""The tables, which are filled when they are imported."""
UNHEARD = {"device", "layout", "memory_format", "requires_grad", "pin_memory", "generator"}
"""Arguments that say nothing about values."""
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def main(argv: list[str]) -> int:
    """Compare, print the score; 1 where an op of the record is lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--update", action="store_true", help="write the record")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    outcomes = {name: outcome(name, op) for name, op in ops() if given.only in name}
    return report(
        outcomes, "agrees", partial(score, outcomes), RECORD,
        update=given.update, whole=not given.only,
    )  # fmt: skip


def ops() -> Iterator[tuple[str, Any]]:
    """Every op of torch's list, with the variant that is meant in its name."""
    if "expecttest" not in sys.modules:
        stand_in = ModuleType("expecttest")  # the list needs it for nothing that is used here
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    for op in sorted(op_db, key=lambda op: (op.name, op.variant_test_name)):
        yield op.name + (f":{op.variant_test_name}" if op.variant_test_name else ""), op


def outcome(name: str, op: Any) -> str:
    """ "agrees", or why the op does not count."""
    function = OPS.get(name)
    if function is None:
        return "no equivalent"
    dtype = next((each for each in DTYPES if each in op.dtypes), None)
    if dtype is None:
        return "no sample in a dtype of ours"
    torch.manual_seed(0)
    count = 0
    for sample in islice(op.sample_inputs("cpu", dtype), SAMPLES):
        try:
            compare(function, op, sample)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        count += 1
    return "agrees" if count else "no samples"


def compare(function: Callable[..., Any], op: Any, sample: Any) -> None:
    """Both on one sample; torch works on a copy, since some of its ops write into their input."""
    given = [taken(value) for value in (sample.input, *sample.args)]
    options = {key: taken(v) for key, v in sample.kwargs.items() if key not in UNHEARD}
    theirs = leaves(op(_copied(sample.input), *sample.args, **sample.kwargs))
    ours = leaves(function(*given, **options))
    assert len(ours) == len(theirs), f"{len(ours)} results, torch has {len(theirs)}"
    for found, wanted in zip(ours, theirs, strict=True):
        agree(np.asarray(found), wanted)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def agree(found: Any, theirs: Any) -> None:
    wanted = np.asarray(taken(theirs))
    assert found.shape == wanted.shape, f"shape {found.shape}, torch has {wanted.shape}"
    kinds = {"u": "i", "V": "f"}
    mine, other = (kinds.get(each.dtype.kind, each.dtype.kind) for each in (found, wanted))
    assert mine == other, f"dtype {found.dtype}, torch has {wanted.dtype}"
    if mine in "bi":
        np.testing.assert_array_equal(found, wanted)
        return
    wide = np.complex128 if mine == "c" else np.float64
    rough = found.dtype.itemsize < 4
    least = 1e-2 if rough else 1e-5
    np.testing.assert_allclose(
        found.astype(wide), wanted.astype(wide), rtol=1e-2 if rough else 1e-4, atol=least
    )


def leaves(value: Any) -> list[Any]:
    """Tensors, arrays and numbers in tuples and lists."""
    if isinstance(value, tuple | list):
        return [leaf for each in value for leaf in leaves(each)]
    return [value]


def taken(value: Any) -> Any:
    """What torch's function gets, as Weft's would."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg()
        if plain.dtype is torch.bfloat16:
            return weft.asarray(plain.float().numpy()).astype(weft.bfloat16)
        return weft.asarray(plain.contiguous().numpy().copy())
    if isinstance(value, torch.dtype):
        return getattr(weft, str(value).removeprefix("torch."))
    if isinstance(value, tuple | list):
        return (
            type(value)([taken(each) for each in value])
            if type(value) in (tuple, list)
            else tuple(value)
        )
    return value


def score(outcomes: dict[str, str], missed: list[str]) -> str:
    """How many ops agree, and how many names of which all forms do."""
    names = {name.split(":")[0] for name in outcomes}
    held = names - {name.split(":")[0] for name in missed}
    agree = len(outcomes) - len(missed)
    return f"{agree} of {len(outcomes)} ops agree ({len(held)} of {len(names)} names)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
