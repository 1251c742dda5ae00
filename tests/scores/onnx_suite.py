"""ONNX's own suite on Weft: how many of the cases of `onnx.backend.test` give what is expected.

    python -m tests.scores.onnx_suite [--backend reference|cpu] [--match WORDS] [--list KIND]

Every case that needs no download counts, in one of six kinds: right, wrong (it ran, and gave
something else), unsupported (refused with a sentence; the suite's own runner would count that as
passed), error, drawn (random numbers, whose dtypes and shapes are right; nobody can have those that
are expected), and disputed (what is expected is off by more than the suite's own bound). Cases run
in processes of their own, with a time limit for each. The run fails where anything is wrong, or
where a case that was right once, by the record beside this file, is right no more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.scores.report import is_lost

RECORD = Path(__file__).with_name("onnx_not_right.txt")
KINDS = ("right", "wrong", "unsupported", "error", "drawn", "disputed")
DRAWN = re.compile(r"test_bernoulli|test_training_dropout(_default)?(_mask)?$")
"""Cases that expect the numbers of somebody else's generator."""
DISPUTED = {
    "test_dft_inverse": 1e-6,
    "test_dft_inverse_opset19": 1e-6,
}
"""Cases that expect the noise of a Fourier transform in single precision, 1.9e-7 where 0 is right,
more exactly than it is. With this bound on the difference they are counted as disputed."""
SECONDS = 60
"""How long one case may take."""


class TooLong(Exception):
    """A case took longer than it may."""


def main(argv: Sequence[str]) -> int:
    """Run, print the score; 1 where something is wrong or lost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="reference")
    parser.add_argument("--match", default="", help="cases whose name matches this expression")
    parser.add_argument("--list", default="", help="name the cases of this kind, and why")
    parser.add_argument("--shards", type=int, default=1, help="how many processes")
    parser.add_argument("--update", action="store_true", help="write the record")
    given = parser.parse_args(argv)
    jobs = [(given.backend, given.match, i, given.shards) for i in range(given.shards)]
    with multiprocessing.get_context("spawn").Pool(given.shards) as pool:
        found = [row for rows in pool.map(run_shard, jobs) for row in rows]
    return report(found, given.list, given.update, whole=not given.match)


def cases() -> list[Any]:
    """The cases of the suite, in the order of their names."""
    from onnx.backend.test.loader import load_model_tests

    warnings.simplefilter("ignore")
    kinds = ("node", "real", "simple", "pytorch-converted", "pytorch-operator")
    found = [(case, kind) for kind in kinds for case in load_model_tests(kind=kind)]
    return sorted(found, key=lambda pair: (pair[0].name, pair[1]))


def run_shard(job: tuple[str, str, int, int]) -> list[tuple[str, str, str, str]]:
    """Name, operator, kind and reason of every n-th case."""
    backend, match, index, count = job
    warnings.simplefilter("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    found = []
    chosen = [pair for pair in cases() if re.search(match, pair[0].name)]
    for case, kind in chosen[index::count]:
        operator = kind
        try:
            signal.signal(signal.SIGALRM, _stop)
            signal.alarm(SECONDS)
            model, sets = loaded(case)
            if kind == "node":
                operator = operator_of(case.name, model)
            outcome, why = run_case(case, model, sets, backend)
        except TooLong:
            outcome, why = "error", f"it takes longer than {SECONDS} s"
        finally:
            signal.alarm(0)
        found.append((case.name, operator, outcome, why))
    return found


def _stop(*_: Any) -> None:
    raise TooLong


def operator_of(name: str, model: Any) -> str:
    """The operator that a case of the suite is about."""
    ops = Counter(node.op_type for node in model.graph.node)
    return "expanded functions" if "_expanded" in name else ops.most_common(1)[0][0]


def loaded(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """The model of a case, and its data sets."""
    import onnx
    from onnx.backend.test.runner import Runner, _normalize_tensor

    if case.model is not None:
        sets = [
            ([_normalize_tensor(x) for x in inputs], [_normalize_tensor(y) for y in outputs])
            for inputs, outputs in case.data_sets
        ]
        return case.model, sets
    if case.model_dir is None:
        return light_model(case)
    folder = Path(case.model_dir)
    model = onnx.load(str(folder / "model.onnx"))
    runner = Runner.__new__(Runner)
    sets = []
    for data in sorted(folder.glob("test_data_set*")):
        both: list[list[Any]] = []
        for what, infos in (("input", model.graph.input), ("output", model.graph.output)):
            values: list[Any] = []
            for index in range(len(list(data.glob(f"{what}_*.pb")))):
                path = str(data / f"{what}_{index}.pb")
                Runner._load_proto(runner, path, values, infos[index].type)
            both.append(values)
        sets.append((both[0], both[1]))
    return model, sets


def light_model(case: Any) -> tuple[Any, list[tuple[list[Any], list[Any]]]]:
    """A model of the suite's folder `light`, which are whole networks with made-up weights; the
    outputs are stored, or made by ONNX's own evaluator, as the suite's runner does."""
    import onnx
    from onnx.backend.test.runner import Runner
    from onnx.reference import ReferenceEvaluator

    home = Path(onnx.__file__).parents[1]
    path = home / case.url
    model = onnx.load(str(path))
    inits = {each.name for each in model.graph.initializer}
    wanted = [each for each in model.graph.input if each.name not in inits]
    inputs = [Runner.generate_dummy_data(x, seed=0, name=case.model_name) for x in wanted]
    stored = [path.with_name(f"{path.stem}_output_{i}.pb") for i in range(len(model.graph.output))]
    if all(each.exists() for each in stored):
        tensors = [onnx.load_tensor(str(each)) for each in stored]
        outputs: list[Any] = [onnx.numpy_helper.to_array(each) for each in tensors]
    else:
        named = {x.name: value for x, value in zip(wanted, inputs, strict=True)}
        outputs = list(ReferenceEvaluator(model).run(None, named))
    return model, [(inputs, list(outputs))]


def run_case(case: Any, model: Any, sets: Any, backend: str) -> tuple[str, str]:
    """What became of a case, and why."""
    from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

    import weft
    from weft.interop.onnx import backend as runner

    try:
        prepared = runner.prepare(model, "CPU", backend=backend)
        for inputs, expected in sets:
            if DRAWN.match(case.name):
                with weft.graph(backend=backend), weft.nn.training(weft.random.key(0)):
                    outputs = prepared.run(inputs)
                alike = [(x.dtype, x.shape) for x in outputs] == [
                    (x.dtype, x.shape) for x in expected
                ]
                return ("drawn", "") if alike else ("wrong", "another dtype or shape")
            outputs = prepared.run(inputs)
            try:
                compare(expected, list(outputs), {"rtol": case.rtol, "atol": case.atol})
            except AssertionError as error:
                if case.name not in DISPUTED:
                    return "wrong", " ".join(str(error).split())[:300]
                compare(expected, list(outputs), {"rtol": case.rtol, "atol": DISPUTED[case.name]})
                return "disputed", "the expected values are not exact"
    except BackendIsNotSupposedToImplementIt as error:
        return "unsupported", str(error)[:300]
    except TooLong:
        raise
    except weft.WeftError as error:
        return "error", f"{type(error).__name__}: {error}"[:300]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return "error", f"{type(error).__name__} at {where}: {error}"[:300]
    return "right", ""


def compare(expected: Any, given: Any, bounds: dict[str, Any]) -> None:
    """Raise unless arrays, and lists of them, are alike, by the suite's own measure."""
    from onnx.backend.test.runner import Runner

    if isinstance(expected, list | tuple):
        assert isinstance(given, list | tuple), f"{type(given)} in the place of a sequence"
        assert len(given) == len(expected), f"{len(given)} values, not {len(expected)}"
        for one, other in zip(expected, given, strict=True):
            compare(one, other, bounds)
    elif expected is None or given is None:
        assert expected is given, f"{given!r} in the place of {expected!r}"
    else:
        Runner.assert_similar_outputs([expected], [given], **bounds)


def report(
    found: Sequence[tuple[str, str, str, str]], listed: str, update: bool, whole: bool
) -> int:
    """Print the table; say what is lost."""
    by_operator: dict[str, Counter[str]] = {}
    for _, operator, outcome, _ in found:
        by_operator.setdefault(operator, Counter())[outcome] += 1
    print(f"{'operator':32}" + "".join(f"{kind:>13}" for kind in KINDS))
    for operator, counts in sorted(by_operator.items()):
        print(f"{operator:32}" + "".join(f"{counts[kind] or '':>13}" for kind in KINDS))
    total = Counter(outcome for _, _, outcome, _ in found)
    print(f"{'all ' + str(len(found)):32}" + "".join(f"{total[kind]:>13}" for kind in KINDS))
    print(f"{100 * total['right'] / max(len(found), 1):.1f} % right")
    for name, operator, outcome, why in found:
        if outcome == "wrong" or outcome in listed.split(","):
            print(f"{outcome}: {name} ({operator}): {why}")
    missed = sorted(name for name, _, outcome, _ in found if outcome != "right")
    lost = is_lost(missed, "right", RECORD, update=update and whole, whole=whole)
    return int(lost or total["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
