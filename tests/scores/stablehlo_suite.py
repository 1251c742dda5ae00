"""StableHLO's own test data on Weft: how many of its modules give the expected values.

    python -m tests.scores.stablehlo_suite DIR [--only TEXT] [--backend cpu]

DIR is a copy of openxla/stablehlo. Four sets are counted: `testdata`, whose files hold their
inputs and what is expected; its `quantized` files, likewise; its `dynamic` ones, which hold neither
and count when they are read, with open sizes or with sizes given; and the functions of
`tests/interpret`. A module's checks become results, so that nothing but its program is read. Those
that several processes run together are run by as many simulated ranks.
Floats are right within three steps of their type, of the element or of the largest in its tensor.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import weft
from weft.driver.ranks import SimulatedProgram
from weft.foundation.errors import WeftError
from weft.interop import stablehlo
from weft.interop.stablehlo.bindings import parse_module
from weft.interop.stablehlo.reading.module import to_program
from weft.interop.stablehlo.records import HloTensor, read_module
from weft.ptir import verify

CHECK = re.compile(
    r"^\s*(?:%\w+ = )?(?:stablehlo\.custom_call @)?check\.(?P<kind>\w+?)(?P<const>_const)?"
    r"(?:\(| )(?P<rest>.*)$",
    re.M,
)
PAIR = re.compile(r"(%[\w#]+), (%[\w#]+)\)?.*: \(?(?P<types>.*?)(?:\) -> \(\))?$")
CONST = re.compile(r"(?P<value>%[\w#]+), (?P<dense>dense<.*>) : (?P<type>tensor<.*>)$")
MAIN = re.compile(r"func\.func (?:public )?@(?P<name>\w+)\(\)(?: -> .*)? \{$", re.M)
RETURN = re.compile(r"^\s*(?:func\.)?return.*$", re.M)
RUN = re.compile(
    r'%(?P<name>\w+)(?::\d+)? = "interpreter\.run_parallel"\((?P<inputs>[^)]*)\) \{\s*'
    r"programs ?= ?\[(?P<programs>.*?)\]\s*\}.*?->\s*\((?P<types>.*?)\)",
    re.S,
)
SIZES = (4, 3, 6, 8, 12, 5, 2)
"""What open sizes are tried with: programs want them even, or divisible, or large enough."""
EXPECTED_IS_OFF = {"cosh_float32_20_20_chlo": "XLA's value is 4.3 steps from cosh, Weft's 0.5"}
"""Cases whose expectation is worse than three steps, which nobody can meet and be right."""


class Case(NamedTuple):
    """One program: its name, its text with results for checks, and how each pair is compared."""

    name: str
    text: str
    kinds: tuple[str, ...]
    open: bool = False
    """Whether it leaves sizes open, and holds no inputs."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--backend", default="reference")
    given = parser.parse_args(argv)
    root = given.suite / "stablehlo"
    if not (root / "testdata").is_dir():
        print(
            f"{given.suite} has no folder stablehlo/testdata: a copy of openxla/stablehlo is wanted"
        )
        return 2
    wrong = 0
    sets = {
        "testdata": "testdata",
        "dynamic": "testdata/dynamic",
        "quantized": "testdata/quantized",
    }
    found = {title: list(testdata(root / folder)) for title, folder in sets.items()}
    found["interpret"] = list(interpreted(root / "tests/interpret"))
    for title, all_cases in found.items():
        cases = [case for case in all_cases if given.only in f"{title}/{case.name}"]
        wrong += report(title, cases, given.backend)
    return 1 if wrong else 0


def testdata(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("*.mlir")):
        text = path.read_text()
        if folder.name == "quantized":  # of several modules one is about quantised tensors
            (text,) = (part for part in text.split("// -----") if "!quant." in part)
        case = with_results(path.stem, text)
        yield case._replace(open=folder.name == "dynamic")


def interpreted(folder: Path) -> Iterator[Case]:
    """Each function of each file is a case."""
    for path in sorted(folder.rglob("*.mlir")):
        for number, part in enumerate(path.read_text().split("// -----")):
            yield with_results(f"{path.stem}[{number}]", part)


def with_results(name: str, text: str) -> Case:
    """The module whose entry returns both sides of every check."""
    start = MAIN.search(text)
    if start is None or "interpreter.run_parallel" in text:
        return Case(name, text, ())
    end = RETURN.search(text, start.end())
    if end is None:
        return Case(name, text, ())
    body, values, types, kinds = [], [], [], []
    for line in text[start.end() : end.start()].splitlines():
        check = CHECK.match(line)
        if check is None:
            body.append(line)
            continue
        kinds.append(check["kind"])
        if check["const"]:
            made = CONST.search(check["rest"])
            if made is None:
                return Case(name, text, ())
            expected = f"%expected{len(kinds)}"
            body.append(f"{expected} = stablehlo.constant {made['dense']} : {made['type']}")
            values += [made["value"], expected]
            types += [made["type"]] * 2
            continue
        pair = PAIR.search(check["rest"])
        if pair is None:
            return Case(name, text, ())
        values += [pair[1], pair[2]]
        both = _types(pair["types"])
        types += both[:2] if len(both) > 1 else both * 2
    head = f"func.func public @main() -> ({', '.join(types)}) {{\n"
    tail = f"\nreturn {', '.join(values)} : {', '.join(types)}"
    whole = text[: start.start()] + head + "\n".join(body) + tail + text[end.end() :]
    return Case(name, whole, tuple(kinds))


def _types(text: str) -> list[str]:
    return re.findall(r"tensor<[^<>]*(?:<[^<>]*>)?[^<>]*>", text)


def outcome(case: Case, backend: str) -> str:
    if "interpreter.run_parallel" in case.text:
        return on_ranks(case.text)
    if not case.kinds:
        return readable(case.text) if case.open else "not counted: it checks no value"
    try:
        program = stablehlo.loads(case.text)
        results = weft.run(program, [], backend=backend)
    except WeftError as error:
        kind = "refused" if type(error).__name__ == "Unimplemented" else "error"
        return f"{kind}: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
    except Exception as error:  # whatever it is, it is this case's own failure
        return f"crash: {type(error).__name__}: {str(error)[:160]}"
    pairs = zip(results[::2], results[1::2], case.kinds, strict=True)
    found = [why for pair in pairs if (why := difference(*pair))]
    if found and case.name in EXPECTED_IS_OFF:
        return f"not counted: {EXPECTED_IS_OFF[case.name]}"
    return f"wrong: {found[0]}" if found else "right"


def on_ranks(text: str) -> str:
    """A module whose entry lets processes run a function: one program, on a rank for each."""
    run, start = RUN.search(text), re.search(r"func\.func @main\(\)", text)
    if run is None or start is None:
        return "not counted: its processes are not read"
    rows = [re.findall(r"@(\w+)", row) for row in re.findall(r"\[([^\[\]]*)\]", run["programs"])]
    if len({name for row in rows for name in row}) != 1:
        return "not counted: its processes run different functions"
    body = text[text.index("{") + 1 : start.start()].replace(f"@{rows[0][0]}", "@main")
    counts = f"mhlo.num_replicas = {len(rows)} : i32, mhlo.num_partitions = {len(rows[0])} : i32"
    count = len(rows) * len(rows[0])
    try:
        program = stablehlo.loads(f"module attributes {{{counts}}} {{{body}}}")
        given = _constants(text[start.end() :], re.findall(r"%\w+", run["inputs"]))
        per = len(given) // count
        ranks = SimulatedProgram(program).run(count, lambda r: given[r * per : (r + 1) * per])
    except WeftError as error:
        return f"refused: {str(error).splitlines()[0][:160]}"
    results = [np.asarray(value) for rank in ranks for value in rank]
    for check in re.findall(r"check\.expect_eq_const %\w+#(\d+), (dense<.*?>) : (\S+)", text, re.S):
        (wanted,) = _constants(f"%c = stablehlo.constant {check[1]} : {check[2]}\n", ["%c"])
        if why := difference(results[int(check[0])], wanted, "expect_eq"):
            return f"wrong: {why}"
    return "right"


def _constants(body: str, names: Sequence[str]) -> list[Any]:
    """The constants of a body by their names."""
    if not names:
        return []
    constant = r"(%\w+) = stablehlo\.constant (dense<.*?> : tensor<.*?>)\n"
    made = dict(re.findall(constant, body, re.S))
    types = [made[name].rpartition(" : ")[2] for name in names]
    lines = [f"%{at} = stablehlo.constant {made[name]}" for at, name in enumerate(names)]
    values = ", ".join(f"%{at}" for at in range(len(names)))
    text = "\n".join(lines) + f"\nreturn {values} : {', '.join(types)}"
    program = stablehlo.loads(f"func.func @main() -> ({', '.join(types)}) {{\n{text} }}")
    return list(weft.run(program, [], backend="reference"))


def readable(text: str) -> str:
    """Whether a module without inputs becomes a program: for all sizes, or for some."""
    try:
        verify(stablehlo.loads(text))
    except WeftError as error:
        said = str(error)
    else:
        return "right"
    functions = read_module(parse_module(text))
    kinds = [kind for kind in functions["main"].block.types if isinstance(kind, HloTensor)]
    for size in SIZES:
        try:
            verify(to_program(functions, [_with_size(kind, size) for kind in kinds]))
        except WeftError as error:
            said = str(error)
        else:
            return "right"
    return f"refused: {said.splitlines()[0][:160]}"


def _with_size(kind: HloTensor, size: int) -> int | list[int]:
    if not kind.dims and kind.dtype.is_integer:
        return size
    return [size if dim is None else dim for dim in kind.dims]


def difference(actual: Any, expected: Any, kind: str) -> str:
    a, b = np.asarray(actual), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{a.shape} for {b.dtype}{b.shape}"
    close = {"eq": 0.0, "expect_eq": 0.0, "expect_close": 3.0}.get(kind)
    if not a.size or a.dtype.kind in "biu" or "int" in a.dtype.name:
        far = int(np.sum(a != b))
        return f"{far} elements differ" if far else ""
    if np.iscomplexobj(a):
        return difference(a.real, b.real, kind) or difference(a.imag, b.imag, kind)
    step = float(ml_dtypes.finfo(a.dtype).eps)  # type: ignore[no-untyped-call]
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(all="ignore"):
        gap = np.where(same, 0, np.abs(a - b))
        gap = np.where(np.isnan(gap), np.inf, gap)
        if close is None:
            far = gap > 1e-4 * np.maximum(1, np.abs(b))
            return f"{far.sum()} elements are not nearly equal" if far.any() else ""
        ulps = gap / (step * np.exp2(np.floor(np.log2(np.maximum(np.abs(b), 1e-300)))))
        least = gap / step / np.finfo(np.float32).tiny if step > 1e-10 else ulps
    # Where terms cancel, their size says what rounding may do; the largest result stands for it.
    largest = gap / (step * np.max(np.where(np.isfinite(b), np.abs(b), 0), initial=1e-300))
    worst = np.max(np.where(same, 0, np.minimum(np.minimum(ulps, least), largest)))
    return f"{worst:.3g} steps apart" if worst > close else ""


def report(title: str, cases: Sequence[Case], backend: str) -> int:
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(partial(outcome, backend=backend), cases, chunksize=8))
    for case, said in zip(cases, found, strict=True):
        if said != "right":
            print(f"{title}/{case.name}: {said}")
    counts = Counter(said.split(":")[0] for said in found)
    counted = len(cases) - counts["not counted"]
    others = "".join(f", {n} {kind}" for kind, n in counts.items() if kind != "right")
    print(f"{title}: {counts['right']} of {counted} right{others}")
    return counts["wrong"] + counts["crash"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
