"""The page: what is in it, how large it is, and that nothing in a program becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import weft
from tests.support.cases import one_in
from tests.support.explorer_pages import EVIL, data_of
from weft.cli.main import app
from weft.explorer.collect import Shown, Watcher, of_program, records
from weft.explorer.page import STYLE, asset, page, script_text
from weft.explorer.serve import HOST, Server, Session
from weft.foundation.errors import UserError
from weft.foundation.lines import Place
from weft.ptir.ir import Program

EXAMPLES = Path(__file__).parents[3] / "examples"


def softmax() -> Program:
    def head(x: Any, w: Any) -> Any:
        return weft.functional.softmax(x @ w)

    found: Program = weft.jit(head).program(weft.ones((8, 16)), weft.ones((16, 12)))
    return found


@pytest.fixture(scope="module")
def shown() -> Shown:
    return of_program("head", softmax())


def run(*args: object) -> Any:
    return CliRunner().invoke(app, ["explore", *map(str, args)])


def test_a_record_has_every_stage_and_every_kernel(shown: Shown) -> None:
    (record,) = records([shown])[0]
    names = [stage["name"] for stage in record["stages"]]
    assert names == [
        "frontend", "tiny", "indexbook", "poly_view", "region", "memory", "plan", "cpu", "llvm",
        "asm",
    ]  # fmt: skip
    for stage in record["stages"]:
        assert stage["text"]
        assert stage["marks"]
    for kernel in record["kernels"]:
        assert kernel["place"].startswith("test_page.py:")
        assert kernel["nest"]
        assert kernel["fields"]
        assert kernel["bytes"] > 0
        assert kernel["seconds"] > 0
        assert kernel["estimate"] > 0
    assert len(record["spans"]) >= len(record["kernels"])
    assert {value[1] for value in record["values"]} >= {"input", "dot_general"}


def test_the_page_needs_nothing_else_and_runs_nothing_else(shown: Shown) -> None:
    text = page(records([shown])[0], EVIL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "connect-src" not in policy[1]
    for content in (script_text(), asset(STYLE)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    assert "<img" not in text
    assert text.count("<script") == 2
    assert not re.search(r"https?://", script_text() + asset(STYLE))
    assert data_of(text)["title"] == EVIL


def test_the_script_never_parses_text_as_markup() -> None:
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    assert not [word for word in words if word in script_text()]
    assert len(script_text()) + len(asset(STYLE)) <= 150_000


def test_names_from_strangers_stay_data() -> None:
    program = softmax()
    lines = dict.fromkeys(program.locations, Place(f"/x/{EVIL}.py", 3, EVIL))
    strange = Program(program.entry, program.functions, program.regions, lines)
    text = page(records([of_program(EVIL, strange, run=False)])[0], "a page")
    assert "alert(" not in text
    assert data_of(text)["programs"][0]["kernels"][0]["layer"] == EVIL


def test_files_become_pages(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    found = run(EXAMPLES / "mlp.ptir.txt", "-o", out, "-O", "0,2")
    assert found.exit_code == 0
    assert f"wrote {out}" in found.output.replace("\n", "")
    programs = data_of(out.read_text())["programs"]
    assert [p["level"] for p in programs] == [0, 2]
    assert len(programs[0]["kernels"]) > len(programs[1]["kernels"])


@pytest.mark.parametrize("target", ["cpu", pytest.param("sm90", marks=pytest.mark.slow)])
def test_twelve_blocks_are_a_small_page(target: str, tmp_path: Path) -> None:
    """With the code of every kernel."""
    file, out = EXAMPLES / "attention_12_blocks.ptir.txt", tmp_path / "page.html"
    assert run(file, "--no-run", "--target", target, "-o", out).exit_code == 0
    text = out.read_text()
    (program,) = data_of(text)["programs"]
    assert not any("left out" in stage["text"][-1] for stage in program["stages"])
    assert len(text) - len(script_text()) - len(asset(STYLE)) <= 300_000


def test_a_script_becomes_a_page_with_its_source(tmp_path: Path) -> None:
    script, out = tmp_path / "net.py", tmp_path / "net.html"
    script.write_text(
        "import sys, weft\nfrom weft import nn\n\n"
        "step = weft.jit(lambda m, x: weft.exp(m(x)))\n"
        "with weft.graph(backend='cpu'):\n"
        "    if 'idle' not in sys.argv:\n        step(nn.Linear(4, 4), weft.ones((2, 4)))\n"
    )
    assert run(script, "-o", out).exit_code == 0
    data = data_of(out.read_text())
    assert data["sources"][str(script)][3].startswith("step = weft.jit")
    assert data["programs"][0]["kernels"][0]["seconds"] > 0
    idle = run(script, "-o", out, "idle")
    assert idle.exit_code == 1
    assert "compiled nothing" in str(idle.exception)


def test_the_program_that_took_the_most_time_comes_first(tmp_path: Path) -> None:
    script, out = tmp_path / "two.py", tmp_path / "two.html"
    script.write_text(
        "import weft\n\n"
        "def long(x):\n    for _ in range(20):\n        x = weft.tanh(x) + 1.0\n    return x\n\n"
        "def slow(x):\n    return x @ x\n\n"
        "with weft.graph(backend='cpu'):\n"
        "    weft.jit(long)(weft.ones((4,)))\n"
        "    heavy = weft.jit(slow)\n"
        "    for _ in range(4):\n        heavy(weft.ones((400, 400)))\n"
    )
    assert run(script, "-o", out).exit_code == 0
    assert [p["name"] for p in data_of(out.read_text())["programs"]] == ["slow", "long"]


def test_a_kernel_has_the_least_of_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else a machine does in one run makes no kernel dear."""
    seconds = iter([[5.0, 1.0], [2.0, 3.0], [4.0, 4.0]])

    def slow_sometimes(compiled: Any, inputs: Any, seed: int, profile: Any) -> list[Any]:
        for at, taken in enumerate(next(seconds)):
            profile.add(f"k{at}", 0.0, taken)
        return []

    monkeypatch.setattr("weft.explorer.collect.profiled", slow_sometimes)
    watcher, prepared = Watcher(), SimpleNamespace(executable=None)
    for _ in range(3):
        watcher.execute(prepared, [], 0)  # type: ignore[arg-type]
    assert watcher.steps[id(prepared)] == [("k0", 2.0), ("k1", 1.0)]
    assert watcher.seconds[id(prepared)] == 19.0


@pytest.mark.parametrize("content", [None, b"", b"\0\1\2", b"ptir.v0.4\nfunc @"])
def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "broken.ptir.txt"
    if content is not None:
        file.write_bytes(content)
    found = run(file, "-o", tmp_path / "page.html")
    assert found.exit_code == 1
    assert isinstance(found.exception, weft.WeftError)
    assert not (tmp_path / "page.html").exists()
    assert run(tmp_path, "-o", tmp_path / "page.html").exit_code == 1


@pytest.mark.parametrize("status", one_in(2, [0, 3]))
def test_a_script_that_leaves_at_once_ends_and_not_the_command(tmp_path: Path, status: int) -> None:
    script, out = tmp_path / "leaves.py", tmp_path / "page.html"
    script.write_text(
        "import os\nimport weft\n"
        "if os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
        f"weft.jit(lambda x: weft.exp(x))(weft.ones((3,)))\nos._exit({status})\n"
    )
    command = [sys.executable, "-m", "weft", "explore", str(script), "-o", str(out)]
    environment = {**os.environ, "WEFT_BACKEND": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert out.exists() == (not status)
    assert ("it ended with exit code 3" in done.stderr) == bool(status)


def test_long_work_is_told_where_there_is_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the compilation, and of the page of a program that was compiled before."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("WEFT_PROGRESS", raising=False)
    monkeypatch.setattr("weft.explorer.collect.ALOUD", 0.0)
    done = run(EXAMPLES / "mlp.ptir.txt", "-o", tmp_path / "mlp.html")
    assert done.exit_code == 0
    assert "compiling mlp for cpu ..." in done.stderr
    assert "compiling mlp ..." in done.stderr
    assert "compiling" not in done.stdout


@pytest.mark.parametrize("name", ["mine.ptir.txt", "mine.py", "trace.json"])
def test_a_page_never_replaces_what_it_shows(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("as it was")
    found = run(file, "-o", tmp_path / "." / name)
    assert isinstance(found.exception, UserError)
    assert "it is the input, and would be lost" in str(found.exception)
    assert file.read_text() == "as it was"


def test_a_function_under_jit_shows_itself() -> None:
    with weft.graph(backend="cpu"):
        step = weft.jit(lambda x: weft.exp(x) + 1.0)
        with pytest.raises(UserError, match="call it first"):
            step.explore()
        step(weft.ones((3,)))
        found = step.explore()
    inline = found._repr_html_()
    assert inline.startswith("<iframe sandbox=")
    assert "<script" not in inline
    assert data_of(found.text)["programs"][0]["kernels"]
    with pytest.raises(UserError, match=r"cannot write .*: there is no folder /nowhere/at$"):
        found.save("/nowhere/at/all.html")


def test_every_size_of_a_function_with_open_dims_is_shown() -> None:
    with weft.graph(backend="cpu"):
        step = weft.jit(lambda x: weft.exp(x) + 1.0, dynamic={"x": {0: "B"}})
        for size in (3, 100):
            step(weft.ones((size,)))
        found = step.explore()
    assert len(data_of(found.text)["programs"]) == 2


def test_explain_names_the_files_of_profiles_and_pages(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.json", tmp_path / "step.html"
    with weft.graph(backend="cpu"):
        step = weft.jit(lambda x: weft.exp(x) + 1.0)
        step(weft.ones((3,)))
        assert str(tmp_path) not in weft.explain(step)
        for _ in range(2):
            with weft.profile(trace, show=False):
                step(weft.ones((3,)))
        step.explore().save(file)
    told = weft.explain(step).splitlines()
    assert told[1:] == [
        f"  its profile is {trace}, which weft explore shows",
        f"  its page is {file}",
    ]


# -- the server ------------------------------------------------------------------------------------


@pytest.fixture
def server(shown: Shown) -> Iterator[Server]:
    made = Server(Session([shown], "head"), 0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def asked(server: Server, path: str, data: Any = None, **headers: str) -> tuple[int, bytes]:
    base = f"http://{HOST}:{server.server_address[1]}"
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(base + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, b""


def test_the_server_answers_only_who_knows_the_token(server: Server) -> None:
    token = server.session.token
    assert server.server_address[0] == "127.0.0.1"
    status, body = asked(server, f"/{token}/")
    assert status == 200
    assert b"connect-src 'self'" in body
    assert asked(server, "/")[0] == 404
    assert asked(server, f"/{token}x/")[0] == 404
    assert asked(server, f"/{token}/", Host="elsewhere.example")[0] == 404
    wanted = {"program": 0, "stage": "plan", "text": ""}
    assert asked(server, f"/{token}/compile", wanted)[0] == 400
    assert asked(server, "/compile", wanted, **{"X-Weft-Token": token})[0] == 404


def test_an_edited_plan_is_compiled_again(server: Server) -> None:
    token = server.session.token
    (record,) = records([Shown("head", server.session._shown[0].executable)])[0]
    plan = next(stage for stage in record["stages"] if stage["name"] == "plan")["text"]
    text = "\n".join(plan)
    edited = re.sub(r'"accumulators": \d+', '"accumulators": 2', text)
    assert edited != text

    def compiled(text: str) -> Any:
        wanted = {"program": 0, "stage": "plan", "text": text}
        return json.loads(asked(server, f"/{token}/compile", wanted, **{"X-Weft-Token": token})[1])

    (made,) = compiled(edited)["programs"]
    fields = [field for kernel in made["kernels"] for field in kernel["fields"]]
    assert ["accumulators", "2", fields[0][2]][:2] in [field[:2] for field in fields]
    assert made["name"] == "head (edited plan)"
    refused = compiled(re.sub(r'"accumulators": \d+', '"accumulators": "many"', text))
    assert "accumulators" in refused["error"]
    assert "error" in compiled("{")
    nothing = asked(server, f"/{token}/compile", {"program": 9}, **{"X-Weft-Token": token})[1]
    assert "error" in json.loads(nothing)


def test_a_busy_port_is_a_sentence(shown: Shown) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on port {port}"):
            Server(Session([shown], "head"), port)
    with pytest.raises(UserError, match="there is no port"):
        Server(Session([shown], "head"), 70000)
