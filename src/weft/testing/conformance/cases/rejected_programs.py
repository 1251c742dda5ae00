"""Whole programs that break a rule, as text, by the code of the rule."""

from __future__ import annotations

HEAD = "ptir.v0.4\nentry @main\n\n"
NEG = "func @main(%0: f32[2]) -> (f32[2]) {\n  %1 = neg(%0) : f32[2]\n  return %1\n"
COND = (
    "func @main(%0: i1[], %1: f32[2]) -> (f32[2]) {\n"
    "  %2 = cond(%0, %1) {true_region=0, false_region=1} : f32[2]\n  return %2\n}\n"
)
WHILE = (
    "func @main(%0: si32[]) -> (si32[]) {\n"
    "  %1 = while(%0) {cond_region=0, body_region=1} : si32[]\n  return %1\n}\n"
)
SCAN = (
    "func @main(%0: f32[2], %1: f32[5, 2]) -> (f32[2], f32[5, 2]) {\n"
    "  %2 = scan(%0, %1) {body_region=0, carry_count=1, scan_output_count=1} "
    ": (f32[2], f32[5, 2])\n"
    "  %3 = neg(%2[0]) : f32[2]\n  %4 = neg(%2[1]) : f32[5, 2]\n  return %3, %4\n}\n"
)


def _region(number: int, types: str, body: str, results: str, ids: str) -> str:
    return f"region ^{number}({types}) -> ({results}) {{\n  {body}\n  return {ids}\n}}\n"


SAME = "%1 = neg(%0) : f32[2]"
TRUE = "%1 = compare(%0, %0) {op=equal} : i1[]"


def _tower(depth: int) -> str:
    """Regions that nest one deeper than is allowed."""
    text = HEAD + COND.replace("false_region=1", "false_region=0")
    for number in range(depth):
        inner = (
            f"%1 = constant() {{value=i1[]<true>}} : i1[]\n  %2 = cond(%1, %0) "
            f"{{true_region={number + 1}, false_region={number + 1}}} : f32[2]"
        )
        text += _region(number, "f32[2]", inner, "f32[2]", "%2")
    return text + _region(depth, "f32[2]", SAME, "f32[2]", "%1")


def _hint(line: str, exports: str = "%1", inputs: str = "%0") -> str:
    head = f"  hint 3 elementwise_dag optional inputs({inputs}) exports({exports}) ["
    return f"{HEAD}{NEG}{head}\n{line}  ]\n}}\n"


PROGRAMS: dict[str, dict[str, str]] = {
    "SpecVersionMismatch": {
        "older": "ptir.v0.3\nentry @main\n",
        "json": '{"spec_version": "ptir.v9", "entry": "main", "functions": [], "regions": []}',
    },
    "EntryUndefined": {"other": HEAD.replace("@main", "@other") + NEG + "}\n"},
    "DuplicateName": {"functions": HEAD + (NEG + "}\n") * 2},
    "DuplicateRegion": {"ids": HEAD + NEG + "}\n" + _region(4, "f32[2]", SAME, "f32[2]", "%1") * 2},
    "UseBeforeDefinition": {
        "result": HEAD + NEG.replace("return %1", "return %7") + "}\n",
        "in-a-region": HEAD
        + COND
        + _region(0, "f32[2]", "%1 = neg(%3) : f32[2]", "f32[2]", "%1")
        + _region(1, "f32[2]", SAME, "f32[2]", "%1"),
    },
    "DoubleDefinition": {
        "value": HEAD + NEG.replace("  return", "  %1 = neg(%0) : f32[2]\n  return") + "}\n"
    },
    "OutputTypeMismatch": {"result": HEAD + NEG.replace("-> (f32[2])", "-> (f32[3])") + "}\n"},
    "SignatureMismatch": {
        "results": HEAD + NEG.replace("-> (f32[2])", "-> (f32[2], f32[2])") + "}\n"
    },
    "RegionUndefined": {
        "cond": HEAD + COND,
        "scan": HEAD + SCAN,
        "while": HEAD + WHILE + _region(0, "si32[]", TRUE, "i1[], si32[]", "%1, %0"),
    },
    "RegionCycle": {
        "itself": HEAD
        + COND.replace("false_region=1", "false_region=0")
        + _region(
            0,
            "f32[2]",
            "%1 = constant() {value=i1[]<true>} : i1[]\n"
            "  %2 = cond(%1, %0) {true_region=0, false_region=0} : f32[2]",
            "f32[2]",
            "%2",
        )
    },
    "NestingTooDeep": {"regions": _tower(101)},
    "RegionSignatureMismatch": {
        "predicate": HEAD
        + COND.replace("%0: i1[]", "%0: i1[1]")
        + "".join(_region(i, "f32[2]", SAME, "f32[2]", "%1") for i in (0, 1)),
        "cond-parameters": HEAD
        + COND
        + _region(0, "f32[3]", "%1 = neg(%0) : f32[3]", "f32[3]", "%1")
        + _region(1, "f32[2]", SAME, "f32[2]", "%1"),
        "cond-results": HEAD
        + COND
        + _region(0, "f32[2]", SAME, "f32[2]", "%1")
        + _region(1, "f32[2]", "%1 = cast(%0) {dtype=f64} : f64[2]", "f64[2]", "%1"),
        "while-predicate": HEAD
        + WHILE
        + _region(0, "si32[]", "%1 = neg(%0) : si32[]", "si32[], si32[]", "%1, %0")
        + _region(1, "si32[]", "%1 = neg(%0) : si32[]", "si32[]", "%1"),
        "while-body": HEAD
        + WHILE
        + _region(0, "si32[]", TRUE, "i1[], si32[]", "%1, %0")
        + _region(1, "si32[]", "%1 = cast(%0) {dtype=f32} : f32[]", "f32[]", "%1"),
        "scan-slices": HEAD
        + SCAN
        + _region(0, "f32[2], f32[5, 2]", "%2 = neg(%0) : f32[2]", "f32[2], f32[2]", "%2, %2"),
        "scan-count": HEAD
        + SCAN
        + _region(0, "f32[2], f32[2]", "%2 = neg(%0) : f32[2]", "f32[2]", "%2"),
        "scan-carry": HEAD
        + SCAN
        + _region(
            0, "f32[2], f32[2]", "%2 = cast(%0) {dtype=f64} : f64[2]", "f64[2], f32[2]", "%2, %1"
        ),
    },
    "RankMismatch": {
        "scan-over-a-scalar": HEAD
        + "func @main(%0: f32[]) -> (f32[2]) {\n"
        + "  %1 = scan(%0) {body_region=0, carry_count=0, scan_output_count=1} : f32[2]\n"
        + "  return %1\n}\n"
        + _region(0, "f32[]", "%1 = neg(%0) : f32[]", "f32[]", "%1")
    },
    "ShapeMismatch": {
        "scan-lengths": HEAD
        + "func @main(%0: f32[3], %1: f32[4]) -> (f32[3]) {\n"
        + "  %2 = scan(%0, %1) {body_region=0, carry_count=0, scan_output_count=1} : f32[3]\n"
        + "  return %2\n}\n"
        + _region(0, "f32[], f32[]", "%2 = neg(%0) : f32[]", "f32[]", "%2")
    },
    "ArityMismatch": {
        "scan-without-inputs": HEAD
        + "func @main(%0: f32[3]) -> (f32[3]) {\n"
        + "  %1 = scan(%0) {body_region=0, carry_count=1, scan_output_count=0} : f32[3]\n"
        + "  return %1\n}\n"
        + _region(0, "f32[3]", "%1 = neg(%0) : f32[3]", "f32[3]", "%1")
    },
    "RanksDiffer": {
        "claimed": HEAD
        + "func @main(%0: f32[2]) -> (f32[2]) {\n"
        + "  %1 = mark_varying(%0) {classes=[0, 1]} : f32[2]\n"
        + "  %2 = assert_same(%1) {classes=[0, 0]} : f32[2]\n  return %2\n}\n"
    },
    "MeshMismatch": {
        "two": HEAD
        + "func @main(%0: f32[2]) -> (f32[2]) {\n"
        + "  %1 = mark_varying(%0) {classes=[0, 1]} : f32[2]\n"
        + "  %2 = mark_varying(%1) {classes=[0, 1, 2]} : f32[2]\n  return %2\n}\n"
    },
    "HintInvalid": {
        "nothing": _hint(""),
        "foreign": _hint("    %9 = neg(%0) : f32[2]\n"),
        "inputs": _hint("    %1 = neg(%0) : f32[2]\n", inputs=""),
        "exports": _hint("    %1 = neg(%0) : f32[2]\n", exports="%0"),
    },
    "MalformedText": {
        "empty": "",
        "unclosed": HEAD + NEG,
        "no-functions": HEAD + "module {}\n",
    },
    "MalformedJson": {
        "truncated": '{"spec_version": "ptir.v0.4", "entry": "ma',
        "fields": '{"spec_version": "ptir.v0.4"}',
    },
}
