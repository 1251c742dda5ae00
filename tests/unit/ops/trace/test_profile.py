"""Profiles by line and layer: what `weft.profile` and `weft profile` tell."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import weft
from tests.support.trace_events import check_trace
from weft import nn
from weft.cli.main import app
from weft.driver.stages.origins import Origin
from weft.foundation.errors import UserError
from weft.foundation.lines import LAYER, Place
from weft.ops.trace.profile import Profile, Span

SCRIPT = """
import sys
import weft
from weft import nn

class Block(nn.Module):
    def __init__(self):
        self.qkv = nn.Linear(4, 4)
    def __call__(self, x):
        return weft.exp(self.qkv(x))

class Net(nn.Module):
    def __init__(self):
        self.blocks = [Block(), Block()]
    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return weft.sum(x)

@weft.jit
def step(model, x):
    return weft.grad(lambda m: m(x))(model)

if "idle" not in sys.argv:
    step(Net(), weft.ones((3, 4)))
if "bad" in sys.argv:
    raise ValueError("no good")
"""


class Block(nn.Module):
    def __init__(self) -> None:
        self.qkv = nn.Linear(4, 4)

    def __call__(self, x: Any) -> Any:
        return weft.exp(self.qkv(x))


class Net(nn.Module):
    def __init__(self) -> None:
        self.blocks = [Block(), Block()]
        self.named = {"last": nn.Linear(4, 4)}

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return weft.sum(self.named["last"](x))


def places(program: weft.ptir.Program) -> set[Place]:
    return {place for place in program.locations.values() if isinstance(place, Place)}


def test_instructions_know_their_layer_and_their_file() -> None:
    found = places(weft.jit(lambda m, x: m(x)).program(Net(), weft.ones((3, 4))))
    layers = {"", "blocks[0]", "blocks[0].qkv", "blocks[1]", "blocks[1].qkv", "named['last']"}
    assert {place.layer for place in found} == layers
    assert {place.file for place in found} == {__file__}
    assert LAYER.module is None


def test_gradients_have_the_lines_of_what_they_are_gradients_of() -> None:
    def loss(model: Net, x: Any) -> Any:
        return model(x)

    found = places(weft.jit(weft.grad(loss)).program(Net(), weft.ones((3, 4))))
    program = weft.jit(lambda m, x: m(x)).program(Net(), weft.ones((3, 4)))
    assert {place.layer for place in found} >= {p.layer for p in places(program)} - {""}


def test_a_layer_that_fails_is_left() -> None:
    model = Net()
    with pytest.raises(weft.SpecViolation, match=r"in the layer blocks\[0\].qkv"):
        model(weft.ones((3, 5)))
    assert LAYER.module is None
    assert LAYER.path == ""


def test_places_are_text_and_more() -> None:
    one, other = Place("/a/m.py", 3, "x"), Place("/a/m.py", 3, "y")
    assert one == "m.py:3"
    assert one != other
    assert len({one, other, Place("/a/m.py", 3, "x")}) == 2
    for same in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert same == one
        assert (same.file, same.number, same.layer) == ("/a/m.py", 3, "x")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_kernel_has_its_op_line_and_layer(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = weft.jit(weft.grad(lambda m, x: m(x)))
    with weft.graph(backend=backend):
        model, x = Net(), weft.ones((3, 4))
        with weft.profile(tmp_path / "trace.json") as found:
            step(model, x)
    spans = [span for span in found.spans if span.program == "@<lambda>" or span.layer]
    assert all("test_profile.py:" in span.line and span.origin.op for span in spans)
    assert {"blocks[0].qkv", "blocks[1].qkv", "named['last']"} <= {s.layer for s in spans}
    assert [run.program for run in found.runs].count(spans[-1].program) >= 1
    printed = capsys.readouterr().out
    titles = ["share", "ms", "least", "calls", "kernel", "op", "line", "layer"]
    assert printed.split()[:8] == titles
    assert "blocks[1].qkv" in printed
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = [event["args"] for event in events if event["args"].get("layer") == "blocks[0].qkv"]
    assert told
    assert all(args["file"] == __file__ for args in told)


def test_a_profile_has_one_run_of_each_program_by_threads() -> None:
    def head(x: Any, w: Any) -> Any:
        return weft.exp(x @ w)

    step = weft.jit(head)
    with weft.graph(backend="cpu"), weft.profile(show=False) as found:
        for _ in range(3):
            step(weft.ones((64, 48)), weft.ones((48, 32))).eval()
    spans = [span for span in found.spans if span.program == "@head"]
    laps = [lap for lap in found.laps if lap.program == "@head"]
    assert {lap.name for lap in laps} == {span.name for span in spans}
    assert all("test_profile.py:" in lap.line for lap in laps)
    lanes = [lap.lane for lap in laps]
    assert 1 <= lanes.count("thread 1") <= len(spans) / 3
    check_trace(found.chrome())
    trace = found.chrome()["traceEvents"]
    named = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
    assert named == {lap.lane for lap in found.laps}


def test_a_trace_keeps_programs_of_several_threads_apart() -> None:
    step = weft.jit(lambda x: weft.exp(x @ x))

    def work() -> None:
        with weft.graph(backend="cpu"):
            step(weft.ones((32, 32))).eval()
        with weft.graph(backend="reference"):
            weft.eval(weft.tanh(weft.ones((8, 8))) + 1.0)

    with weft.profile(show=False) as found:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    check_trace(found.chrome())
    # Spans that meet, as kernels one after the other do, must not overlap when they are cut.
    meeting = Profile(spans=[Span(f"k{at}", 0.1 * at, 0.1, 1 << 40) for at in range(1000)])
    check_trace(meeting.chrome())
    ends = [event for event in meeting.chrome()["traceEvents"] if event["ph"] == "X"]
    assert ends[-1]["ts"] + ends[-1]["dur"] == pytest.approx(1e8)


def test_kernels_of_loops_have_lines_too() -> None:
    def body(carry: Any, x: Any) -> Any:
        return weft.tanh(carry @ x), None

    with weft.graph(backend="cpu"), weft.profile(show=False) as found:
        weft.jit(lambda c, xs: weft.scan(body, c, xs)[0])(weft.ones((4, 4)), weft.ones((3, 4, 4)))
    loops = [span for span in found.spans if "tanh" in span.origin.ops]
    assert loops
    assert found.table("op").count("tanh") >= 1


def test_tables_have_a_row_for_what_is_asked_for() -> None:
    with weft.graph(backend="reference"), weft.profile(show=False) as found:
        assert str(found) == "nothing ran"
        Net()(weft.ones((3, 4))).eval()
    layers = found.table("layer").splitlines()[1:]
    assert sum(row.endswith("blocks[0].qkv") for row in layers) == 1
    assert "more" in found.table("op", most=1).splitlines()[-1]
    with pytest.raises(UserError, match=r"^InvalidCall at test_profile\.py:\d+: .*'colour'"):
        found.table("colour")
    strange: list[Any] = [0, -3, 1.5, True]
    for most in strange:
        with pytest.raises(UserError, match="most is the number of rows, 1 or more"):
            found.table(most=most)
    with pytest.raises(UserError, match=r"at test_profile\.py:\d+: .*cannot write"):
        found.save("/nowhere/at/all.json")


def test_the_command_runs_a_script(tmp_path: Path) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    run = CliRunner().invoke
    found = run(app, ["profile", "--trace", str(trace), "--by", "layer", str(script)])
    assert found.exit_code == 0
    assert "blocks[1].qkv" in found.output
    assert "train.py:10" in found.output
    assert json.loads(trace.read_text())["traceEvents"]
    assert run(app, ["profile", str(script), "idle"]).exit_code == 1
    assert run(app, ["profile", str(script), "bad"]).exit_code == 1
    assert run(app, ["profile", str(tmp_path / "none.py")]).exit_code == 1
    script.write_text("import weft\nx = = 1\n")
    found = run(app, ["profile", str(script)])
    assert found.exit_code == 1
    assert found.output.startswith(f'  File "{script}", line 2')
    assert "runpy" not in found.output
    assert "it raised SyntaxError" in found.output
    assert run(app, ["profile", "--by", "colour", str(script)]).exit_code == 1
    for most in ("0", "-3"):
        found = run(app, ["profile", "--most", most, str(script)])
        assert (found.exit_code, "1 or more" in str(found.exception)) == (1, True)


@pytest.mark.parametrize(
    ("end", "code"), [("3", 3), ("True", 1), ("'no data'", 1), ("None", 0), ("0", 0)]
)
def test_the_command_ends_as_the_script_does(tmp_path: Path, end: str, code: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import weft\nweft.ones(3).eval()\nraise SystemExit({end})\n")
    found = CliRunner().invoke(app, ["profile", str(script)])
    assert found.exit_code == code
    assert ("no data" in found.output) == ("no data" in end)


def test_what_runs_in_a_profile_inside_another_counts_in_both() -> None:
    x, f = weft.ones((3,)).eval(), weft.jit(lambda x: weft.exp(x) * 2.0)
    with weft.profile(show=False) as outer:
        f(x)
        with weft.profile(show=False) as inner:
            f(x)
        f(x)
    assert len(outer.spans) == 3 * len(inner.spans) > 0
    assert len(outer.runs) == 3
    starts = [span.start for span in outer.runs]
    assert starts == sorted(starts)


def test_a_profile_can_be_used_again(tmp_path: Path) -> None:
    again = weft.profile(tmp_path / "trace.json", show=False)
    x, f = weft.ones((3,)).eval(), weft.jit(lambda x: weft.exp(x) * 2.0)
    with again as first:
        f(x)
    with again as second, again as inner:
        f(x)
    assert len(first.spans) == len(inner.spans) > 0
    assert [span.name for span in second.spans] == [span.name for span in inner.spans]
    watched = weft.trace(weft.TraceConfig(profile_backend=True))
    for _ in range(2):
        with watched as tracer:
            f(x)
        assert tracer.profile is not None
        assert tracer.profile.spans


def test_where_a_trace_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\[profile\] cannot write .*there is no folder"):
        weft.profile(tmp_path / "nowhere" / "trace.json")
    with pytest.raises(UserError, match="it is a folder"):
        weft.profile(tmp_path)


def _origin(*layers: str) -> Origin:
    return Origin(("mul",), tuple(Place("/a/m.py", n, layer) for n, layer in enumerate(layers)))


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ((), ""),
        (("",), ""),
        (("a",), "a"),
        (("a", "b", "a"), "a and 1 more"),
        (("", "a"), "a"),
        (("blocks[0]", "blocks[0].qkv"), "blocks[0].qkv"),
        (("blocks[1].mlp", "blocks[0].mlp", "blocks[1]", "blocks"), "blocks[1].mlp and 1 more"),
        (("blocks[1]", "blocks[10]"), "blocks[1] and 1 more"),
    ],
)
def test_a_kernel_says_of_how_many_layers_it_is(layers: tuple[str, ...], told: str) -> None:
    assert _origin(*layers).shared_layers == told


def test_what_layers_share_is_credited_to_all_of_them() -> None:
    found = Profile()
    for seconds, layers in ((3.0, ("a", "b")), (2.0, ("a",)), (1.0, ("b", "c"))):
        found.add("k", 0.0, seconds, origin=_origin(*layers))
    rows = [row.split("  ") for row in found.table("layer").splitlines()[1:]]
    assert [row[-1] for row in rows] == ["a and 1 more", "a", "b and 1 more"]
    assert found.table("op").endswith("3 layers")
    assert found.spans[0].layers == ("a", "b")
    assert found.chrome()["traceEvents"][1]["args"]["layers"] == ["a", "b"]


def test_a_block_that_an_exception_leaves_tells_what_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"

    def fail() -> None:
        with weft.profile(trace):
            weft.exp(weft.ones((3,)).eval()).eval()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert "exp" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]


def test_options_behind_a_script_are_the_scripts(tmp_path: Path) -> None:
    script, trace = tmp_path / "train.py", tmp_path / "t.json"
    script.write_text(
        "import sys, weft\nweft.exp(weft.ones(3).eval()).eval()\nprint(sys.argv[1:])\n1 / 0\n"
    )
    given = ["--epochs", "3", "-o", "mine", "--by", "none"]
    found = CliRunner().invoke(app, ["profile", "-o", str(trace), str(script), *given])
    assert found.exit_code == 1
    assert str(given) in found.output
    assert "exp" in found.output
    assert "ZeroDivisionError" in found.output
    assert trace.is_file()


def test_a_call_that_waited_does_not_come_first() -> None:
    found = Profile()
    for name, seconds in (("quick", 0.001), ("quick", 0.9), ("slow", 0.002), ("slow", 0.004)):
        found.add(name, 1.0, seconds)
    first, second = found.table().splitlines()[1:]
    assert first.split()[:5] == ["66.7%", "6.000", "4.000", "2", "slow"]
    assert second.split()[:5] == ["33.3%", "901.000", "2.000", "2", "quick"]
