"""The registry of backends: Weft's own, registered ones, and those of installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver import backends
from weft.driver.backends import backend_names, get_backend, register_backend
from weft.driver.loading import plugins
from weft.driver.reference import ReferenceBackend
from weft.foundation.dtypes import F32
from weft.foundation.errors import UserError, WeftWarning
from weft.ptir import Builder


class Renamed(ReferenceBackend):
    """The reference backend under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backends.REGISTRY, "registered", {})
    plugins._announcers.cache_clear()
    yield
    plugins._announcers.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of installed packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


def install(site: Path, package: str, source: str, **announced: str) -> None:
    """A package `plugin_PACKAGE` with the given source; `announced` maps a name to its object."""
    (site / f"plugin_{package}.py").write_text(source)
    info = site / f"plugin_{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{package}\nVersion: 1.0\n")
    lines = [f"{name} = plugin_{package}:{value}" for name, value in announced.items()]
    (info / "entry_points.txt").write_text("[weft.backends]\n" + "\n".join(lines) + "\n")


SOURCE = """
from weft.driver.reference import ReferenceBackend
class Plugin(ReferenceBackend):
    def __init__(self, name):
        self.name = name
first, second = Plugin("first"), Plugin("second")
"""


def negated(backend: str) -> Any:
    b = Builder()
    program = b.build(b.neg(b.param("f32", [2])))
    return weft.run(program, [np.array([1, 2], np.float32)], backend=backend)[0].tolist()


# -- own and registered --------------------------------------------------------------------------


def test_reference_is_the_first() -> None:
    assert backend_names()[0] == "reference"
    assert get_backend("reference").name == "reference"


def test_registered_backend_runs() -> None:
    register_backend(Renamed("mine"))
    assert "mine" in backend_names()
    assert negated("mine") == [-1, -2]


def test_later_registration_wins() -> None:
    register_backend(Renamed("mine"))
    second = Renamed("mine")
    register_backend(second)
    assert get_backend("mine") is second
    assert backend_names().count("mine") == 1


def test_own_names_are_taken() -> None:
    with pytest.raises(UserError, match=r"^the backend name 'reference' is taken by Weft's own$"):
        register_backend(Renamed("reference"))


def test_unknown_name_lists_the_known_ones() -> None:
    register_backend(Renamed("mine"))
    with pytest.raises(UserError, match=r"no backend 'gpu'; the backends are reference, .*mine"):
        get_backend("gpu")


@pytest.mark.parametrize("name", ["", "Reference", "reference ", "\0", "a/b", "weft.driver"])
def test_odd_names_are_unknown(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"there is no backend {name!r}")):
        get_backend(name)


def test_incomplete_object_is_refused_with_what_it_lacks() -> None:
    class Half:
        name = "half"
        dtypes = ops = hints = frozenset[Any]()

        def supports(self, op: Any) -> bool:
            return False

    with pytest.raises(UserError, match="has no compile, allocate, store, read_storage"):
        register_backend(Half())  # type: ignore[arg-type]


def test_class_instead_of_object_is_refused() -> None:
    with pytest.raises(UserError, match="it is a class, and backends are objects of one"):
        register_backend(ReferenceBackend)  # type: ignore[arg-type]


def test_an_object_is_named_by_its_class_not_by_its_address() -> None:
    class Nothing: ...

    with pytest.raises(UserError, match=r"^an object of class Nothing is not a backend: it has no"):
        register_backend(Nothing())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("member", "value", "sentence"),
    [
        ("ops", {"add"}, "lists 'add' in its ops, which is not a wire name; the op add is written "
         "'ElementwiseBinary'"),
        ("ops", {"reduce_max"}, "the op reduce_max is written 'Reduce'"),
        ("ops", {"sqrt"}, "sqrt is an extension op, for which supports(op) answers"),
        ("ops", {"DotGenral"}, "which is not a wire name; did you mean 'DotGeneral'?"),
        ("ops", {"?"}, "which is not a wire name; they are Constant, ElementwiseUnary, "),
        ("ops", {1: 2}, "lists 1 in its ops, which is not a wire name; they are Constant, "),
        ("ops", [[]], "lists an object of class list in its ops, which is not a wire name"),
        ("ops", {ReferenceBackend}, "lists the class ReferenceBackend in its ops, which is not"),
        ("ops", "Add", "the backend 'mine' has ops that are 'Add', not a set"),
        ("ops", None, "the backend 'mine' has ops that are None, not a set"),
        ("dtypes", {"f32"}, "lists 'f32' in its dtypes, which is not a DType; they are in "
         "weft.foundation.dtypes, as F32"),
        ("dtypes", F32, "the backend 'mine' has dtypes that are an object of class DType, not a"),
        ("hints", {"ElementwiseDag"}, "lists 'ElementwiseDag' in its hints, which is not a weft."),
        ("name", "", "an object of class Renamed is not a backend: its name is '', not a word"),
        ("name", 3, "an object of class Renamed is not a backend: its name is 3, not a word"),
    ],
)  # fmt: skip
def test_what_a_backend_says_of_itself_is_checked(member: str, value: Any, sentence: str) -> None:
    wrong = Renamed("mine")
    setattr(wrong, member, value)
    with pytest.raises(UserError, match=re.escape(sentence)):
        register_backend(wrong)
    b = Builder()
    with pytest.raises(UserError, match=re.escape(sentence)):
        weft.run(b.build(b.param("f32")), [1.0], backend=wrong)


# -- installed -----------------------------------------------------------------------------------


def test_installed_backends_are_found_and_loaded_when_asked_for(site: Path) -> None:
    install(site, "good", SOURCE, first="first", second="second")
    assert {"first", "second"} <= set(backend_names())
    assert "plugin_good" not in sys.modules
    assert negated("second") == [-1, -2]
    assert get_backend("second").name == "second"


def test_registered_goes_before_installed(site: Path) -> None:
    install(site, "good", SOURCE, first="first")
    mine = Renamed("first")
    register_backend(mine)
    assert get_backend("first") is mine
    assert backend_names().count("first") == 1


def test_installed_cannot_take_an_own_name(site: Path) -> None:
    install(site, "bold", SOURCE, reference="first")
    sentence = "the package plugin-bold announces a backend 'reference', which is the name of Weft"
    with pytest.warns(WeftWarning, match=sentence):
        assert type(get_backend("reference")) is ReferenceBackend
    assert backend_names().count("reference") == 1


# -- not installed -------------------------------------------------------------------------------


def test_a_backend_that_is_not_installed_is_named_by_its_module(site: Path) -> None:
    (site / "plugin_loose.py").write_text(SOURCE)
    assert negated("plugin_loose:second") == [-1, -2]
    assert "plugin_loose:second" not in backend_names()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("plugin_loose:third", "cannot be loaded: AttributeError: module 'plugin_loose' has no"),
        (
            "plugin_nowhere:first",
            "cannot be loaded: ModuleNotFoundError: No module named 'plugin_n",
        ),
        ("plugin_loose:Plugin", "cannot be used: the class Plugin is not a backend: it is a class"),
        ("plugin_loose:", "there is no backend 'plugin_loose:'; the backends are reference, "),
        (":first", "there is no backend ':first'; the backends are reference, "),
        ("plugin loose:first", "there is no backend 'plugin loose:first'; the backends are refer"),
        ("plugin_loose.py/first:x", "there is no backend 'plugin_loose.py/first:x'; the backends "),
        ("..:x", "there is no backend '..:x'; the backends are reference, "),
    ],
)
def test_a_wrong_place_is_a_sentence(site: Path, name: str, sentence: str) -> None:
    (site / "plugin_loose.py").write_text(SOURCE)
    with pytest.raises(UserError, match=re.escape(sentence)):
        get_backend(name)


def test_a_backend_is_asked_for_by_name() -> None:
    with pytest.raises(UserError, match="a backend is named by a string, not by 3"):
        get_backend(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "value", "sentence"),
    [
        ("raise RuntimeError('no driver')", "x", "cannot be loaded: RuntimeError: no driver"),
        ("import not_there_at_all", "x", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("x = 1", "y", "AttributeError: module 'plugin_broken' has no attribute 'y'"),
        ("x = (", "x", "announces, cannot be loaded: SyntaxError: '(' was never closed"),
        ("raise SystemExit('bye')", "x", "announces, cannot be loaded: SystemExit: bye"),
        ("import sys; sys.exit()", "x", "announces, cannot be loaded: SystemExit"),
        ("class Odd(BaseException): ...\nraise Odd('no')", "x", "cannot be loaded: Odd: no"),
        ("x = 1", "x", "cannot be used: 1 is not a backend: it has no name, dtypes, ops, hints"),
        ("x = None", "x", "None is not a backend"),
        (SOURCE, "Plugin", "cannot be used: the class Plugin is not a backend: it is a class"),
        (SOURCE, "first", "announces, calls itself 'first'"),
        (
            SOURCE + "first.ops = {'neg'}",
            "first",
            "cannot be used: the backend 'first' lists 'neg'",
        ),
    ],
)
def test_broken_entry_point_is_a_sentence(
    site: Path, source: str, value: str, sentence: str
) -> None:
    install(site, "broken", source, broken=value)
    assert "broken" in backend_names()
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        get_backend("broken")
    assert str(caught.value).startswith("the backend 'broken', which the package plugin-broken ann")
    assert "\n" not in str(caught.value)


def test_broken_package_does_not_disturb_the_others(site: Path) -> None:
    install(site, "broken", "raise SystemError", broken="x")
    install(site, "good", SOURCE, first="first")
    assert negated("reference") == negated("first") == [-1, -2]


def test_two_packages_with_one_name(site: Path) -> None:
    install(site, "one", SOURCE, first="first")
    install(site, "two", SOURCE, first="first")
    assert backend_names().count("first") == 1
    with pytest.raises(UserError, match="by the package plugin-one and the package plugin-two; un"):
        get_backend("first")
