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
from weft.driver import backends, conversion
from weft.driver.backends import backend_names, get_backend, register_backend
from weft.driver.reference import ReferenceBackend
from weft.foundation.errors import UserError
from weft.ptir import Builder


class Renamed(ReferenceBackend):
    """The reference backend under another name."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_REGISTERED", {})
    monkeypatch.setattr(conversion, "_REGISTERED", {})


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
    with pytest.raises(UserError, match="it is a class, not an object"):
        register_backend(ReferenceBackend)  # type: ignore[arg-type]


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
    assert get_backend("reference").name == "reference"
    assert type(get_backend("reference")) is ReferenceBackend


@pytest.mark.parametrize(
    ("source", "value", "sentence"),
    [
        ("raise RuntimeError('no driver')", "x", "is installed but cannot be loaded: no driver"),
        ("import not_there_at_all", "x", "cannot be loaded: No module named 'not_there_at_all'"),
        ("x = 1", "y", "cannot be loaded: module 'plugin_broken' has no attribute 'y'"),
        ("x = (", "x", "is installed but cannot be loaded"),
        ("x = 1", "x", "1 is not a backend (announced as 'broken'): it has no name, dtypes, ops"),
        ("x = None", "x", "None is not a backend"),
        (SOURCE, "Plugin", "Plugin'> is not a backend (announced as 'broken'): it is a class"),
        (SOURCE, "first", "the backend announced as 'broken' calls itself 'first'"),
    ],
)
def test_broken_entry_point_is_a_sentence(
    site: Path, source: str, value: str, sentence: str
) -> None:
    install(site, "broken", source, broken=value)
    assert "broken" in backend_names()
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        get_backend("broken")
    assert "\n" not in str(caught.value)


def test_broken_package_does_not_disturb_the_others(site: Path) -> None:
    install(site, "broken", "raise SystemError", broken="x")
    install(site, "good", SOURCE, first="first")
    assert negated("reference") == negated("first") == [-1, -2]


def test_two_packages_with_one_name(site: Path) -> None:
    install(site, "one", SOURCE, first="first")
    install(site, "two", SOURCE, first="first")
    assert backend_names().count("first") == 1
    with pytest.raises(UserError, match="announced by plugin-one and plugin-two; uninstall all"):
        get_backend("first")
