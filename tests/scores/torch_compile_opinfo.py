"""torch's OpInfo through `torch.compile`: which of torch's own ops Weft compiles, and gives torch's
values for.

`python -m tests.scores.torch_compile_opinfo` compiles each op, on the first of its samples (or
`--samples N`), with `fullgraph=True`: an op is right where everything ran in Weft and agrees with
eager torch. Where an op falls back to torch it is compiled once more, with that allowed, and its
values are compared all the same. The run fails where a value is wrong, or where an op that was
right once, by the record beside this file, is right no more.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException

from tests.scores.opinfo_suite import DTYPES, leaves, ops
from tests.scores.report import is_lost
from weft.foundation.errors import WeftError
from weft.interop.torch.backend import weft_backend

RECORD = Path(__file__).with_name("torch_compile_not_right.txt")
SAMPLES = 1
DRAWN = {
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform", "empty", "empty_like",
    "empty_permuted", "empty_strided", "new_empty", "new_empty_strided",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.rrelu", "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
}  # fmt: skip
"""Ops whose elements are random, or nobody's: shapes and dtypes are compared."""


def main(argv: list[str]) -> int:
    """Compare, print the score; 1 where a value is wrong or an op of the record is lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="ops whose name contains this")
    parser.add_argument("--update", action="store_true", help="write the record")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    outcomes: dict[str, str] = {}
    for name, op in ops():
        leave_seeds_out()
        if given.only in name:
            started = time.perf_counter()
            outcomes[name] = outcome(name, op, given.samples)
            seconds = time.perf_counter() - started
            if outcomes[name] != "right" or seconds > 10:
                print(f"{name}: {outcomes[name]} ({seconds:.0f} s)", flush=True)
    return report(outcomes, given.update, whole=not given.only)


def leave_seeds_out() -> None:
    """The list sets the seed inside of its random ops, which no compiler gets through; what is
    asked here is whether the op itself is compiled."""
    listed = sys.modules["torch.testing._internal.common_methods_invocations"]
    listed.wrapper_set_seed = unseeded  # type: ignore[attr-defined]


def unseeded(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def outcome(name: str, op: Any, samples: int) -> str:
    dtype = next((each for each in DTYPES if each in op.dtypes), None)
    if dtype is None:
        return "not reached: no sample in a dtype of ours"
    torch.manual_seed(0)
    said = []
    try:
        for sample in islice(op.sample_inputs("cpu", dtype), samples):
            said.append(of_sample(name, op, sample))
    except Exception as error:
        said.append(f"not reached: {shortened(error)}")
    for kind in ("wrong", "failed", "in torch", "not reached"):
        found = [each for each in said if each.startswith(kind)]
        if found:
            return found[0]
    return "right" if said else "not reached: no samples"


def of_sample(name: str, op: Any, sample: Any) -> str:
    try:
        wanted = leaves(op.op(copied(sample.input), *copied(sample.args), **sample.kwargs))
    except Exception as error:
        return f"not reached: {shortened(error)}"
    try:
        agree(name, called(op, sample, True), wanted)
        return "right"
    except AssertionError as error:
        return f"wrong: {shortened(error)}"
    except BackendCompilerFailed as error:
        why = shortened(error.inner_exception)
    except TorchDynamoException as error:
        return f"not reached: {shortened(error)}"
    except WeftError as error:
        return f"failed: {shortened(error)}"
    except Exception as error:
        return f"failed: {shortened(error)}"
    try:
        agree(name, called(op, sample, False), wanted)
    except Exception as error:
        return f"wrong: {shortened(error)}"
    return f"in torch: {why}"


def called(op: Any, sample: Any, whole: bool) -> list[Any]:
    torch._dynamo.reset()
    function = torch.compile(op.op, backend=weft_backend, fullgraph=whole, dynamic=False)
    return leaves(function(copied(sample.input), *copied(sample.args), **sample.kwargs))


def copied(value: Any) -> Any:
    """Tensors of their own, since some ops write into their input."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(copied(each) for each in value)
    return value


def agree(name: str, ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs), f"{len(ours)} results, torch has {len(theirs)}"
    for found, wanted in zip(ours, theirs, strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert found == wanted, f"{found}, torch has {wanted}"
            continue
        assert found.shape == wanted.shape, f"shape {found.shape}, torch has {wanted.shape}"
        assert found.dtype == wanted.dtype, f"dtype {found.dtype}, torch has {wanted.dtype}"
        if name.split(":", maxsplit=1)[0] not in DRAWN:
            torch.testing.assert_close(
                found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True, check_stride=False
            )


def shortened(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:230]}"


def report(outcomes: dict[str, str], update: bool, whole: bool) -> int:
    """The score, and what was right before."""
    counts = Counter(each.split(":")[0] for each in outcomes.values())
    print("\n" + "".join(f"{count:5} {reason}\n" for reason, count in counts.most_common()))
    reached = len(outcomes) - counts["not reached"]
    print(f"{counts['right']} of {len(outcomes)} ops are right ({reached} reach Weft)")
    missed = [name for name, why in outcomes.items() if why != "right"]
    lost = is_lost(missed, "right", RECORD, update=update, whole=whole)
    return int(lost or counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
