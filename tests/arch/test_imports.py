"""Who may import whom: the rules of docs/architecture.md, read off the sources."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.arch.import_graph import SOURCE, Import, calls, calls_in, folder, imports, modules

# What each folder may import besides itself and `foundation`.
ALLOWED: dict[str, set[str]] = {
    "foundation": set(),
    "target": set(),
    "poly": set(),
    "runtime": set(),
    "ptir": set(),
    "coarse": {"ptir"},
    "core_ir": {"ptir"},
    "tiny": {"ptir"},
    "indexbook": {"tiny"},
    "poly_view": {"tiny", "indexbook", "poly"},
    "region": {"poly_view", "tiny", "poly", "target"},
    "memory": {"region", "target"},
    "plan": {"region", "target", "poly"},
    "codegen": {"region", "memory", "plan", "target", "poly", "runtime"},
    "driver": {
        "ptir", "coarse", "core_ir", "tiny", "indexbook", "poly_view", "region", "memory", "plan",
        "codegen", "runtime", "target", "poly",
    },
    "ops": {"ptir", "coarse", "driver"},
    "interop": {"ptir", "coarse", "driver", "ops"},
    "testing": {"ptir", "coarse", "driver"},
    "bundles": {"ptir", "driver", "ops", "runtime", "target"},
    "explorer": {"*"},
    "cli": {"*"},
    "__main__": {"cli"},
    "": {"bundles", "ptir", "driver", "ops", "interop", "coarse", "core_ir"},
    "onnx": {"interop"},
    **{
        name: {"ops"}
        for name in (
            "data", "debug", "fft", "functional", "linalg", "nn", "optim", "random", "special",
            "tree",
        )
    },
    "jax": {"interop"},
    "torch": {"interop"},
}  # fmt: skip
LOADED_BY_A_FACE = {("weft.ptir", "weft.coarse")}
"""What the face of a package loads only to fill a table; no other module of the package may."""
NOBODY_IMPORTS = {
    "cli", "data", "debug", "fft", "functional", "jax", "linalg", "nn", "onnx", "optim", "random",
    "special", "torch", "tree",
}  # fmt: skip
"""What stands on top: the command line, and the modules of `ops` under the names users import."""
STAGES = {"tiny", "indexbook", "poly_view", "region", "memory", "plan"}
CLOSED_FILES = {"ir", "verify", "text", "interp"}
"""Files of a stage that know no other stage."""

# Where each package that is not in the standard library may be imported.
HOMES: dict[str, set[str]] = {
    "numpy": {"*"},
    "ml_dtypes": {"*"},
    "islpy": {"poly"},
    "llvmlite": {"codegen.cpu", "runtime"},
    "cuda": {"codegen.gpu", "runtime.cuda"},
    "highspy": {"region.fusion"},
    "jax": {"interop"},
    "torch": {"interop"},
    "onnx": {"interop"},
    "jaxlib": {"interop"},
    "safetensors": {"interop"},
    "mpi4py": {"runtime"},
    "nccl": {"runtime.cuda"},
    "distributed": {"driver.tuning"},
    "hypothesis": {"testing"},
    "typer": {"cli"},
    "rich": {"cli", "testing"},
}
DYNAMIC = {
    "weft",
    "weft.cli.commands",
    "weft.driver.backends",
    "weft.driver.loading.lazy_modules",
    "weft.driver.stages.generators",
    "weft.ops.caches",
    "weft.ops.jit",
}
"""Modules that load others by name: the package face, the commands, the backends, the code
generators, what asks for a GPU's memory, and `jit`, whose explorer stands above it."""
INSIDE_FUNCTIONS: set[str] = set()
"""Modules with an import statement inside a function."""


def show(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def test_the_sources_are_found() -> None:
    assert len(modules()) > 50
    assert any(i.importer == "weft.ptir.verify" and i.imported == "weft.ptir.ir" for i in imports())


def test_every_folder_has_a_rule() -> None:
    assert {folder(name) for name in modules()} <= set(ALLOWED)


def test_folders_import_only_what_they_may() -> None:
    wrong = []
    for found in imports():
        source, target = folder(found.importer), folder(found.imported)
        allowed = ALLOWED.get(source, set()) | {source, "foundation"}
        if (found.importer, found.imported) in LOADED_BY_A_FACE:
            continue
        if found.is_ours and target not in allowed and "*" not in allowed:
            wrong.append(found)
    assert not wrong, show(wrong)


def test_nobody_imports_what_stands_on_top() -> None:
    wrong = [
        found
        for found in imports()
        if found.is_ours
        and folder(found.imported) in NOBODY_IMPORTS
        and folder(found.importer) not in {folder(found.imported), "__main__"}
    ]
    assert not wrong, show(wrong)


def test_a_stages_grammar_knows_no_other_stage() -> None:
    wrong = [
        found
        for found in imports()
        if found.is_ours
        and folder(found.importer) in STAGES
        and CLOSED_FILES & set(found.importer.split("."))
        and folder(found.imported) in (STAGES | {"ptir", "codegen"}) - {folder(found.importer)}
    ]
    assert not wrong, show(wrong)


def test_lowerings_stand_in_files_named_after_what_they_lower() -> None:
    """`from_<previous>.py` is the only file of an early stage that sees the stage before it."""
    wrong = [
        found
        for found in imports()
        if found.is_ours
        and folder(found.importer) in {"tiny", "indexbook", "poly_view"}
        and folder(found.imported) in {"ptir", "tiny", "indexbook"} - {folder(found.importer)}
        and not found.importer.rpartition(".")[2].startswith("from_")
    ]
    assert not wrong, show(wrong)


def test_there_are_no_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in imports():
        if found.imported in graph and found.imported != found.importer:
            graph[found.importer].add(found.imported)
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert len(order) == len(graph)


def test_no_module_imports_itself() -> None:
    wrong = [found for found in imports() if found.imported == found.importer]
    assert not wrong, show(wrong)


def test_other_packages_stay_in_their_homes() -> None:
    wrong = []
    for found in imports():
        if found.is_ours or found.is_standard:
            continue
        homes = HOMES.get(found.imported.partition(".")[0], set())
        at_home = any(found.importer.startswith(f"weft.{home}") for home in homes)
        if "*" not in homes and not at_home:
            wrong.append(found)
    assert not wrong, show(wrong)


def test_no_import_stands_inside_a_function() -> None:
    wrong = [i for i in imports() if i.in_function and i.importer not in INSIDE_FUNCTIONS]
    assert not wrong, show(wrong)


@pytest.mark.parametrize("package", ["pickle", "marshal", "shelve", "dill"])
def test_nothing_reads_code_from_bytes(package: str) -> None:
    assert not [str(i) for i in imports() if i.imported.partition(".")[0] == package]


def loaded_by_name(every: Iterable[ast.Call]) -> list[str | None]:
    """What `import_module` is called with: the text, or None for anything that is computed."""
    found: list[str | None] = []
    for node in every:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        name = function.id if isinstance(function, ast.Name) else name
        if name in ("import_module", "load_part"):
            given = node.args[0] if node.args else None
            found.append(str(given.value) if isinstance(given, ast.Constant) else None)
    return found


def test_modules_are_loaded_by_name_in_few_places_only() -> None:
    """The package face, the commands, the backends, and optional packages in their homes."""
    wrong = []
    for module, every in calls().items():
        for name in loaded_by_name(every):
            homes = HOMES.get(str(name).partition(".")[0], set())
            at_home = any(module.startswith(f"weft.{home}") for home in homes)
            if module not in DYNAMIC and not at_home:
                wrong.append(f"{module} loads {name}")
    assert wrong == []
    assert {m for m, every in calls().items() if None in loaded_by_name(every)} == DYNAMIC


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {("os", "system"), ("os", "popen"), ("numpy", "load"), ("np", "load")}


def forbidden(every: Iterable[ast.Call]) -> list[str]:
    """Calls that run text as code, start a shell, or read pickles."""
    found = []
    for node in every:
        function = node.func
        if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
            found.append(f"{function.id} at line {node.lineno}")
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            name = (function.value.id, function.attr)
            safe = any(
                k.arg == "allow_pickle" and getattr(k.value, "value", True) is False
                for k in node.keywords
            )
            if name in FORBIDDEN_METHODS and not safe:
                found.append(f"{'.'.join(name)} at line {node.lineno}")
        for keyword in node.keywords:
            if keyword.arg == "shell":
                found.append(f"shell= at line {node.lineno}")
    return found


def test_no_text_is_run_as_code() -> None:
    wrong = {name: found for name, every in calls().items() if (found := forbidden(every))}
    assert wrong == {}


@pytest.mark.parametrize(
    "code",
    ["eval('1')", "exec(x)", "os.system('ls')", "subprocess.run('ls', shell=True)", "np.load(f)"],
)
def test_the_search_for_forbidden_calls_finds_them(code: str) -> None:
    assert forbidden(calls_in(ast.parse(code)))


def test_every_folder_has_a_docstring() -> None:
    missing = [
        name
        for name, tree in modules().items()
        if (SOURCE / name.replace(".", "/")).is_dir() and not ast.get_docstring(tree)
    ]
    assert missing == []


def test_no_test_is_imported() -> None:
    """What tests share is in tests/support: whoever imports tests loads what only they need."""
    tests = Path(__file__).parents[1]
    found = [
        f"{path.relative_to(tests)}: {line}"
        for path in sorted(tests.rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.match(r"\s*(from|import) tests\.[\w.]*\btest_", line)
    ]
    assert found == []
