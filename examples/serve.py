"""A bundle that answers requests over HTTP, with requests put together into batches.

    python -m examples.serve --bundle DIR                 serve it until Ctrl-C or SIGTERM
    python -m examples.serve --load 200 --clients 8       a small model, and how fast it answers

POST /run takes `{"inputs": {"x": [[...], ...]}}`, rows of every input, and answers
`{"results": ...}`; GET /metrics has counts and times; GET /health says that it is there. Requests
that wait are run together, up to the largest size of the bundle: their rows are one batch, and the
bundle picks the program for it. The first axis of every input must be one open size, such as `B`.
The server is Python's own, for those who want to see a model answer; one that faces the internet
stands behind something that is made for that.
"""

from __future__ import annotations

import argparse
import json
import queue
import signal
import statistics
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft
from weft import functional as F
from weft import nn
from weft.foundation.dtypes import BY_NAME

Array = NDArray[Any]
MOST_BYTES = 16 << 20
"""The largest request."""


@dataclass
class Metrics:
    """What the server has done so far."""

    requests: int = 0
    failed: int = 0
    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **more: float) -> None:
        with self.lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    def text(self) -> str:
        with self.lock:
            names = ("requests", "failed", "rows", "batches", "seconds")
            return "".join(f"weft_{name}_total {getattr(self, name):g}\n" for name in names)


@dataclass
class Job:
    """The rows of one request, and where its results go."""

    inputs: list[Array]
    answer: Future[list[Array]] = field(default_factory=Future)

    @property
    def rows(self) -> int:
        return len(self.inputs[0])


class Batcher:
    """Runs jobs together: whatever waits when the last batch is done, up to the largest size."""

    def __init__(self, bundle: Any, metrics: Metrics, wait: float = 0.0) -> None:
        if len(bundle.sizes) != 1 or any(e.shape[:1] != tuple(bundle.sizes) for e in bundle.inputs):
            raise weft.UserError(
                f"{bundle.name} cannot be served in batches: the first axis of every input must be "
                "one open size, as in weft.jit(f, dynamic={'x': {0: 'B'}})"
            )
        ((self.least, self.most),) = bundle.sizes.values()
        self.bundle, self.metrics, self.wait = bundle, metrics, wait
        self.jobs: queue.Queue[Job | None] = queue.Queue()
        self.thread = threading.Thread(target=self._work)
        self.thread.start()

    def submit(self, inputs: list[Array]) -> Future[list[Array]]:
        job = Job(inputs)
        rows = {len(array) for array in inputs}
        if len(rows) != 1 or not max(1, self.least) <= job.rows <= self.most:
            raise weft.UserError(
                f"a request has {max(1, self.least)} to {self.most} rows, the same for every "
                f"input, not {', '.join(map(str, sorted(rows)))}"
            )
        self.jobs.put(job)
        return job.answer

    def stop(self) -> None:
        """Run what waits, and end."""
        self.jobs.put(None)
        self.thread.join()

    def _work(self) -> None:
        held: Job | None = None
        while True:
            job = held or self.jobs.get()
            held = None
            if job is None:
                return
            batch, rows, last = [job], job.rows, False
            deadline = time.monotonic() + self.wait
            while rows < self.most and not last:
                try:
                    more = self.jobs.get(timeout=max(0.0, deadline - time.monotonic()) or 1e-4)
                except queue.Empty:
                    break
                if more is None:
                    last = True
                elif rows + more.rows > self.most:
                    held = more
                    break
                else:
                    batch.append(more)
                    rows += more.rows
            self._run(batch, rows)
            if last:
                return

    def _run(self, batch: list[Job], rows: int) -> None:
        started = time.perf_counter()
        try:
            columns = zip(*(job.inputs for job in batch), strict=True)
            results = self.bundle(*(np.concatenate(column) for column in columns))
        except weft.WeftError as error:
            self._fail(batch, error)
            return
        start = 0
        for job in batch:
            job.answer.set_result([result[start : start + job.rows] for result in results])
            start += job.rows
        self.metrics.add(rows=rows, batches=1, seconds=time.perf_counter() - started)

    def _fail(self, batch: list[Job], error: weft.WeftError) -> None:
        """One bad request must not spoil the others: they are run one by one."""
        if len(batch) == 1:
            batch[0].answer.set_exception(error)
            return
        for job in batch:
            self._run([job], job.rows)


class Server(ThreadingHTTPServer):
    """A bundle behind HTTP."""

    daemon_threads = False
    """Requests that are being answered are answered before the server ends."""
    request_queue_size = 128

    def __init__(self, bundle: Any, port: int = 0, host: str = "127.0.0.1") -> None:
        self.bundle, self.metrics = bundle, Metrics()
        self.batcher = Batcher(bundle, self.metrics)
        super().__init__((host, port), Handler)

    def stop(self) -> None:
        """Take no more requests, answer those that are there, and end."""
        self.shutdown()
        self.server_close()
        self.batcher.stop()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, self.server.metrics.text().encode(), "text/plain")
        elif self.path == "/health":
            self._answer(200, b"{}\n")
        else:
            self._answer(404, b'{"error": "there are /run, /metrics and /health"}\n')

    def do_POST(self) -> None:
        self.server.metrics.add(requests=1)
        try:
            results = self.server.batcher.submit(self._inputs()).result()
        except weft.WeftError as error:
            self.server.metrics.add(failed=1)
            self._answer(400, json.dumps({"error": str(error)}).encode())
            return
        named = zip(self.server.bundle.results, results, strict=True)
        content = {entry.name: array.tolist() for entry, array in named}
        self._answer(200, json.dumps({"results": content}).encode())

    def _inputs(self) -> list[Array]:
        """What a request has, as arrays of the bundle's dtypes."""
        count = int(self.headers.get("Content-Length") or 0)
        if self.path != "/run" or not 0 < count <= MOST_BYTES:
            self.close_connection = True
            raise weft.UserError(f"POST to /run, with at most {MOST_BYTES} bytes of JSON")
        try:
            given = json.loads(self.rfile.read(count))["inputs"]
            arrays = [
                np.asarray(given[entry.name], BY_NAME[entry.dtype].numpy)
                for entry in self.server.bundle.inputs
            ]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            names = ", ".join(entry.name for entry in self.server.bundle.inputs)
            raise weft.UserError(
                f'a request is {{"inputs": {{...}}}} with rows of {names}, as JSON'
            ) from None
        for entry, array in zip(self.server.bundle.inputs, arrays, strict=True):
            if array.shape[1:] != entry.shape[1:] or array.ndim == 0:
                raise weft.UserError(f"the rows of {entry.name} have the shape {entry.shape[1:]}")
        return arrays

    def _answer(self, code: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: /metrics says what happens."""


def small_model(folder: Path) -> Path:
    """A classifier of rows of 64 numbers."""
    nn.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    shapes = weft.ShapeSet({"B": (1, 8, 32)})
    function = weft.jit(
        lambda x: F.softmax(model(x), axis=-1), dynamic={"x": {0: "B"}}, shapes=shapes
    )
    example = np.zeros((1, 64), np.float32)
    return weft.build(function, example, out=folder, name="classify", sizes={"B": (1, 32)})


def load(url: str, requests: int, clients: int) -> str:
    """So many requests by so many clients at once, and how long they took."""
    rows = np.random.default_rng(0).random((1, 64)).tolist()
    data = json.dumps({"inputs": {"x": rows}}).encode()

    def one(_: int) -> float:
        started = time.perf_counter()
        with urllib.request.urlopen(f"{url}/run", data) as answer:  # noqa: S310
            answer.read()
        return time.perf_counter() - started

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = sorted(pool.map(one, range(requests)))
    seconds = time.perf_counter() - started
    middle, late = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    return (
        f"{requests} requests by {clients} clients: {requests / seconds:,.0f} a second, "
        f"median {1e3 * middle:.1f} ms, 99th of 100 {1e3 * late:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="a bundle behind HTTP")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--load", type=int, default=0, metavar="REQUESTS")
    parser.add_argument("--clients", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.bundle or small_model(Path(folder) / "classify")
        server = Server(weft.load_bundle(path, threads=options.threads), options.port)
        running = threading.Thread(target=server.serve_forever)
        running.start()
        url = f"http://127.0.0.1:{server.server_port}"
        if options.load:
            print(load(url, options.load, options.clients))
            print(server.metrics.text(), end="")
        else:
            try:
                # A shell that starts it in the background has Ctrl-C ignored, not SIGTERM.
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                print(f"serving {server.bundle.name} at {url}; Ctrl-C stops it", flush=True)
                running.join()
            except KeyboardInterrupt:
                print("answering the remaining requests, then stopping")
        server.stop()


if __name__ == "__main__":
    main()
