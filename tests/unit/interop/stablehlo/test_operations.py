"""Every operation of the dialects is read or refused with a reason, and the page says which."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from docs import generate_interchange
from tests.support.stablehlo_oracle import function
from weft.foundation.errors import Unimplemented
from weft.interop import stablehlo
from weft.interop.stablehlo.reading.module import LOWERINGS
from weft.interop.stablehlo.reading.refused import REFUSED

OTHER_DIALECTS = {
    "func.call",
    "sdy.manual_computation",
    "sdy.sharding_constraint",
    "shape.shape_of",
}
PROJECT = tomllib.loads(Path(__file__).parents[4].joinpath("pyproject.toml").read_text())["project"]
(REQUIRED,) = map(Requirement, PROJECT["optional-dependencies"]["stablehlo"])
INSTALLED = version("jaxlib")
tables_are_for_this_version = pytest.mark.skipif(
    not REQUIRED.specifier.contains(INSTALLED, prereleases=True),
    reason=f"the tables list the operations of {REQUIRED}, and this is {INSTALLED}",
)


def listed() -> set[str]:
    dialects = generate_interchange.DIALECTS
    return {name for dialect in dialects for name in generate_interchange.names_of(dialect)}


@tables_are_for_this_version
def test_every_operation_is_read_or_refused() -> None:
    assert not listed() - set(LOWERINGS) - set(REFUSED)
    assert set(LOWERINGS) - listed() == OTHER_DIALECTS
    assert not set(REFUSED) - listed()


def test_no_operation_is_both_read_and_refused() -> None:
    assert not set(LOWERINGS) & set(REFUSED)
    assert len(listed() & set(LOWERINGS)) > 100


@tables_are_for_this_version
def test_the_page_is_up_to_date() -> None:
    page = generate_interchange.PAGE.read_text()
    assert page.endswith("\n\n" + generate_interchange.render()), "run `make docs`"


def test_an_operation_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer dialects have operations that no table knows."""
    monkeypatch.delitem(LOWERINGS, "add")
    kind = "tensor<4xf32>"
    text = function(f"%x: {kind}", f"%0 = stablehlo.add %x, %x : {kind}", f"%0 : {kind}")
    with pytest.raises(Unimplemented, match=r"stablehlo\.add: it is none of the operations"):
        stablehlo.loads(text)


def test_a_refusal_gives_the_reason_and_the_line() -> None:
    kind = "tensor<4xf32>"
    name, groups = "cross-replica-sum", "{replica_groups = dense<0> : tensor<1x1xi64>}"
    made = f'%0 = "stablehlo.{name}"(%x) {groups} : ({kind}) -> {kind}'
    text = function(f"%x: {kind}", made, f"%0 : {kind}")
    with pytest.raises(Unimplemented) as caught:
        stablehlo.loads(text)
    assert str(caught.value) == f"Unimplemented stablehlo.{name}: {REFUSED[name]}; line 2"
