"""The example server: batches of requests get the answers that each would get alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import serve

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("cc") is None:
        pytest.skip("bundles are linked by a C compiler, and there is no cc")
    return weft.load_bundle(serve.small_model(tmp_path_factory.mktemp("serve") / "classify"))


@pytest.fixture
def server(bundle: Any) -> Iterator[serve.Server]:
    made = serve.Server(bundle)
    running = threading.Thread(target=made.serve_forever)
    running.start()
    yield made
    made.stop()
    running.join()


def post(server: serve.Server, content: bytes, path: str = "/run") -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        with urllib.request.urlopen(url, content) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_requests_at_once_get_their_own_answers(server: serve.Server, bundle: Any) -> None:
    def one(number: int) -> bool:
        x = np.random.default_rng(number).random((1 + number % 3, 64)).astype(np.float32)
        code, answer = post(server, json.dumps({"inputs": {"x": x.tolist()}}).encode())
        return code == 200 and np.allclose(answer["results"]["out"], bundle(x)[0], rtol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(40)))
    assert server.metrics.requests == 40
    assert server.metrics.rows == sum(1 + number % 3 for number in range(40))
    assert server.metrics.batches <= 40


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "a request is"),
        (b'{"inputs": {}}', "with rows of x"),
        (b'{"inputs": {"x": [[1, 2]]}}', r"the rows of x have the shape (64,)"),
        (b'{"inputs": {"x": 3}}', "the rows of x have the shape"),
        (json.dumps({"inputs": {"x": [[0] * 64] * 33}}).encode(), "a request has 1 to 32 rows"),
        (b'{"inputs": {"x": []}}', "the rows of x have the shape"),
    ],
)
def test_wrong_requests_are_told(server: serve.Server, content: bytes, why: str) -> None:
    code, answer = post(server, content)
    assert code == 400
    assert why in answer["error"]
    assert server.metrics.failed == 1


def test_what_waits_is_answered_before_the_end(bundle: Any) -> None:
    batcher = serve.Batcher(bundle, serve.Metrics(), wait=0.05)
    x = np.ones((2, 64), np.float32)
    answers = [batcher.submit([x]) for _ in range(30)]
    batcher.stop()
    assert all(np.allclose(answer.result(0)[0], bundle(x)[0], rtol=1e-4) for answer in answers)


def test_one_in_the_background_ends_when_it_is_told(bundle: Any) -> None:
    """Shells start what they put into the background with Ctrl-C ignored."""
    served = f"{sys.executable} -m examples.serve --port 0 --bundle {bundle._manifest.folder}"
    with subprocess.Popen(
        ["sh", "-c", f"trap '' INT; exec {served}"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving classify at http://127.0.0.1:")
        try:
            server.terminate()
            rest, _ = server.communicate(timeout=60)
        finally:
            server.kill()
    assert (server.returncode, rest) == (0, "answering the remaining requests, then stopping\n")


def test_a_bundle_without_batches_is_told(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("bundles are linked by a C compiler, and there is no cc")
    made = weft.build(weft.jit(lambda x: x + 1), np.ones(3, np.float32), out=tmp_path / "add")
    with pytest.raises(weft.UserError, match="cannot be served in batches"):
        serve.Batcher(weft.load_bundle(made), serve.Metrics())
