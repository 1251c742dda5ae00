"""A browser to test with: Chromium through its driver, over plain HTTP as WebDriver defines it."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

BROWSER: Final = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER: Final = shutil.which("chromedriver")
KEYS: Final = {
    "down": "\ue015", "up": "\ue013", "right": "\ue014", "enter": "\ue007", "escape": "\ue00c",
}  # fmt: skip
SIZE: Final = (1280, 800)
_ELEMENT: Final = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window."""

    def __init__(self) -> None:
        width, height = SIZE
        assert BROWSER
        assert DRIVER
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._base = f"http://127.0.0.1:{port}"
        flags = [
            "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars",
            f"--window-size={width},{height}",
        ]  # fmt: skip
        options = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": BROWSER, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        asked = {"capabilities": {"alwaysMatch": options}}
        try:
            self._wait_for_driver()
            self._session = "/session/" + self._ask("POST", "/session", asked)["sessionId"]
            self.resize(width, height)
        except BaseException:
            self._process.kill()
            raise

    def _wait_for_driver(self) -> None:
        for _ in range(200):
            try:
                if self._ask("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the driver of the browser does not answer")

    def _ask(self, method: str, path: str, data: Any = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            self._base + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.load(error)["value"]
            raise AssertionError(f"{told['error']}: {told['message']}") from None

    def _do(self, path: str, data: Any = None) -> Any:
        return self._ask("POST", self._session + path, {} if data is None else data)

    def resize(self, width: int, height: int) -> None:
        """A page of exactly this size, whatever the window has around it."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.tell_devtools("Emulation.setDeviceMetricsOverride", sizes)

    def tell_devtools(self, command: str, params: Any) -> Any:
        return self._do("/goog/cdp/execute", {"cmd": command, "params": params})

    def dark(self, on: bool = True) -> None:
        """As a user who prefers the dark."""
        wanted = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.tell_devtools("Emulation.setEmulatedMedia", {"features": wanted})

    def open(self, page: Path | str) -> None:
        """Open a page and wait until it has drawn itself."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.open_nothing()
        self._do("/url", {"url": address})
        self.until("document.documentElement.dataset.ready !== undefined")

    def open_nothing(self) -> None:
        """An empty page: what was open ends."""
        self._do("/url", {"url": "about:blank"})

    def busy_opening(self, page: Path) -> float:
        """Seconds of a processor that the page's own thread takes from the navigation until it has
        drawn itself: those of a clock depend on what else the machine does."""
        self.tell_devtools("Performance.enable", {"timeDomain": "threadTicks"})
        self.open(page)
        self.settle()
        told = self.tell_devtools("Performance.getMetrics", {})["metrics"]
        self.tell_devtools("Performance.disable", {})
        return float(next(each["value"] for each in told if each["name"] == "TaskDuration"))

    def enter_frame(self, number: int) -> None:
        """What follows is about a page inside the page."""
        self._do("/frame", {"id": number})
        self.until("document.documentElement.dataset.ready !== undefined")

    def leave_frame(self) -> None:
        self._do("/frame", {"id": None})

    def run(self, script: str, *args: Any) -> Any:
        """What a script returns."""
        return self._do("/execute/sync", {"script": f"return ({script});", "args": list(args)})

    def run_until_done(self, script: str, *args: Any) -> Any:
        """What a script hands to the function that it is given last."""
        return self._do("/execute/async", {"script": script, "args": list(args)})

    def until(self, condition: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > end:
                raise AssertionError(f"this did not come true: {condition}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until what was asked for is painted."""
        self._do("/execute/async", {"script": _TWO_FRAMES, "args": []})

    def find(self, css: str) -> str:
        found = self._do("/element", {"using": "css selector", "value": css})
        return str(found[_ELEMENT])

    def click(self, css: str) -> None:
        self._do(f"/element/{self.find(css)}/click")

    def write(self, css: str, text: str) -> None:
        self._do(f"/element/{self.find(css)}/value", {"text": text})

    def hover(self, css: str) -> None:
        origin = {_ELEMENT: self.find(css)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": 0, "y": 0}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self._do("/actions", {"actions": [mouse]})

    def click_at(self, css: str, x: int, y: int) -> None:
        """A click beside the middle of an element."""
        origin = {_ELEMENT: self.find(css)}
        steps = [
            {"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self._do("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def drag(self, start: str, end: str) -> None:
        """From the left of one element to the right of another, with the button down. Places are
        those of the window: pointing may replace elements."""
        box = "((r) => [r.left, r.right, (r.top + r.bottom) / 2].map(Math.round))"
        find = f"{box}(document.querySelector(arguments[0]).getBoundingClientRect())"
        (left, _, top), (_, right, bottom) = self.run(find, start), self.run(find, end)
        move = {"type": "pointerMove", "duration": 80}
        steps = [
            {**move, "x": left + 2, "y": top},
            {"type": "pointerDown", "button": 0},
            {**move, "x": (left + right) // 2, "y": (top + bottom) // 2},
            {**move, "x": right - 2, "y": bottom},
            {"type": "pointerUp", "button": 0},
        ]
        self._do("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def press(self, *keys: str) -> None:
        """Keys for whatever has the focus."""
        actions = [
            {"type": kind, "value": KEYS.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        self._do("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def texts(self, css: str) -> list[str]:
        script = "[...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        found: list[str] = self.run(script, css)
        return found

    def log(self, kind: str = "browser") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._do("/se/log", {"type": kind})
        return found

    def errors(self) -> list[str]:
        """What the page complained about since somebody asked last."""
        return [entry["message"] for entry in self.log() if entry["level"] == "SEVERE"]

    def requests(self) -> list[str]:
        """Every address that was asked for since somebody asked last."""
        entries = (json.loads(entry["message"])["message"] for entry in self.log("performance"))
        sent = (e for e in entries if e["method"] == "Network.requestWillBeSent")
        return [entry["params"]["request"]["url"] for entry in sent]

    def picture(self, path: Path) -> None:
        """What is shown, as a PNG."""
        self.settle()
        path.write_bytes(base64.b64decode(self._ask("GET", self._session + "/screenshot")))

    def close(self) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._process.terminate()
            self._process.wait(20)


_TWO_FRAMES: Final = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => done(true)));
"""
