"""A local server for the page, which compiles again what is edited on it.

It listens on the loopback address alone. Its address has a token that nobody can guess; a request
without it, or for another host, is refused, so that no other page can talk to it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from weft.explorer.collect import Shown, records
from weft.explorer.page import page
from weft.explorer.places import line_of
from weft.explorer.record import Options
from weft.foundation.errors import SpecViolation, UserError, WeftError

HOST: Final = "127.0.0.1"
SERVED: Final = Options(served=True)
MOST_BYTES: Final = 64 << 20
"""Of a text that is sent to be compiled."""


class Session:
    """The programs of a page that is open, those compiled on it included."""

    def __init__(self, shown: Sequence[Shown], title: str) -> None:
        self.token = secrets.token_urlsafe(24)
        self.title = title
        self._lock = threading.Lock()
        self._shown = list(shown)
        self._records, self._owners = records(shown, SERVED)

    def page(self) -> str:
        with self._lock:
            return page(self._records, self.title, self.token)

    def compile(self, asked: Any) -> dict[str, Any]:
        """New records for an edited stage, or what is wrong with it and where. One at a time: two
        compilations would only be slower together."""
        try:
            at, stage, text = int(asked["program"]), str(asked["stage"]), str(asked["text"])
        except (KeyError, TypeError, ValueError):
            return {"error": "a program, a stage and its text are needed"}
        with self._lock:
            owner = self._owners.get(at)
            if owner is None:
                return {"error": "the bodies of branches and loops cannot be edited alone"}
            try:
                made = self._shown[owner].again(stage, text)
                found = made.records(SERVED)
            except WeftError as error:
                return _refusal(error, text)
            self._owners[len(self._records)] = len(self._shown)
            self._shown.append(made)
            self._records += found
            return {"programs": found}


def _refusal(error: WeftError, text: str) -> dict[str, Any]:
    told = str(error.findings[0]) if isinstance(error, SpecViolation) else str(error)
    return {"error": told, "line": line_of(told, text)}


class Server(ThreadingHTTPServer):
    """A server of one session."""

    daemon_threads = True

    def __init__(self, session: Session, port: int) -> None:
        self.session = session
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(
                f"cannot listen on port {port} of this machine: {why}; give another with --port, "
                "or 0 for any that is free"
            ) from None
        except OverflowError:
            raise UserError(f"there is no port {port}; ports are 0 to 65535") from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_address[1]}/{self.session.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if not self._is_ours(""):
            return
        self._send(self.server.session.page().encode(), "text/html; charset=utf-8")

    def do_POST(self) -> None:
        if not self._is_ours("compile"):
            return
        size = int(self.headers.get("Content-Length") or 0)
        if (
            not 0 < size <= MOST_BYTES
            or self.headers.get("X-Weft-Token") != self.server.session.token
        ):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        try:
            asked = json.loads(self.rfile.read(size))
        except (ValueError, RecursionError):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        answer = self.server.session.compile(asked)
        self._send(json.dumps(answer, default=str).encode(), "application/json")

    def _is_ours(self, what: str) -> bool:
        """Whether a request has the token and names this server; anything else is refused."""
        port = self.server.server_address[1]
        hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        wanted = f"/{self.server.session.token}/{what}"
        ours = self.headers.get("Host") in hosts and secrets.compare_digest(
            self.path.partition("?")[0].encode(), wanted.encode()
        )
        if not ours:
            self.send_error(HTTPStatus.NOT_FOUND)
        return ours

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed for every request."""
