"""A headless Chromium browser, controlled over a pipe (Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = "chromium", "chromium-browser", "google-chrome"
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"
).split()
TIMEOUT = 120.0  # seconds for a response, many times the usual


class Browser:
    """A browser page: its content, input to it, and the addresses that it requests."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._left, self._number = send, receive, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []  # requested addresses
        self.complaints: list[str] = []  # exceptions of scripts, and violations of the page's policy
        page = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command; return its result."""
        self._number += 1
        session = {} if self._session is None else {"sessionId": self._session}
        text = json.dumps({"id": self._number, "method": method, "params": arguments, **session})
        os.write(self._send, text.encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self._record(message)

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._receive, 1 << 20)
            assert piece, "the browser has ended"
            self._left += piece
        text, self._left = self._left.split(b"\0", 1)
        return dict(json.loads(text))

    def _record(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    def open(self, path: Path) -> None:
        """Show a file; return once it is loaded."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + TIMEOUT
        while not self.value(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """Click with the mouse in the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y = self.value(f"(() => {{ const r = {element}.getBoundingClientRect();"
                          " return [r.x + r.width / 2, r.y + r.height / 2]; })()")  # fmt: skip
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of an input element."""
        self.click(selector)
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=text)

    def show_as(self, width: int, height: int, scheme: str = "light", media: str = "") -> None:
        """Set the screen size, the light or dark scheme, and the medium (screen or print)."""
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.send(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def printed(self) -> bytes:
        """Return the printed page as PDF."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium; skip the test if it is not installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()

    # Its pipes are 3 and 4. The lowest free numbers come first, so that 3 is never `its_out`.
    line = ["bash", "-c", f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}', program, *FLAGS, f"--user-data-dir={profile}"]
    with open(profile / "log", "wb") as log:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(its_in, its_out))
    os.close(its_in)
    os.close(its_out)
    try:
        yield Browser(our_out, our_in)
    finally:
        os.close(our_out)
        os.close(our_in)
        try:
            process.wait(10)  # Chromium exits when its pipe is closed
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
