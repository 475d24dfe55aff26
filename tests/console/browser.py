"""A headless Chromium under test: the W3C WebDriver protocol, spoken to chromedriver with plain requests."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
READY = "was started successfully on port "
ALERTS = "no such alert"


class Browser:
    """One window of one browser.

    Everything a page does on the network and says on its console is kept, so that a test can ask for it afterwards.
    """

    def __init__(self, driver: str, session: str) -> None:
        self._web = httpx.Client(base_url=f"{driver}/session/{session}", trust_env=False, timeout=60)
        self.messages: list[str] = []
        self.requested: list[str] = []

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        """What a person reads there; empty where nothing is."""
        found: str = self.run(
            "const e = document.querySelector(arguments[0]);return e ? e.innerText.replace(/\\s+/g, ' ').trim() : ''",
            selector,
        )
        return found

    def wait(self, script: str, *arguments: Any, seconds: float = 20) -> Any:
        """The first truthy answer of a function body, asked again and again."""
        ends = time.monotonic() + seconds
        while not (answer := self.run(script, *arguments)):
            shown = self.run("return document.body.innerText.slice(0, 3000)")
            assert time.monotonic() < ends, f"never true: {script}\n{self.look().messages}\n{shown}"
            time.sleep(0.05)
        return answer

    def wait_text(self, selector: str, part: str, seconds: float = 20) -> str:
        """The text there, once it contains the part."""
        script = (
            "const e = document.querySelector(arguments[0]); if (!e) return '';"
            "const t = e.innerText.replace(/\\s+/g, ' ').trim(); return t.includes(arguments[1]) ? t : ''"
        )
        found: str = self.wait(script, selector, part, seconds=seconds)
        return found

    def click(self, selector: str) -> None:
        element = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{next(iter(element.values()))}/click", {})

    def press(self, keys: str) -> None:
        """Type into what has the focus; keys without a sign are private code points of WebDriver."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def size(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, **features: str) -> None:
        """Media features such as prefers_color_scheme="dark"."""
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.command("Emulation.setEmulatedMedia", features=wanted)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def dialog(self) -> str | None:
        """The text of an open dialog, such as `alert` makes."""
        answer = self._web.get("/alert/text").json()["value"]
        return None if isinstance(answer, dict) and answer.get("error") == ALERTS else str(answer)

    def look(self) -> Browser:
        """Take up what happened since the last look."""
        for entry in self._call("POST", "/se/log", {"type": "browser"}):
            self.messages.append(f"{entry['level']} {entry['message']}")
        for entry in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
        return self

    @property
    def hosts(self) -> set[str]:
        """Every `host:port` that was asked for anything."""
        parts = [urlsplit(url) for url in self.requested]
        return {part.netloc for part in parts if part.scheme not in ("data", "about", "chrome", "blob")}

    def close(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self._web.delete("")
        self._web.close()

    def _call(self, method: str, path: str, document: dict[str, Any] | None = None) -> Any:
        answer = self._web.request(method, path, json=document).json()["value"]
        if isinstance(answer, dict) and "error" in answer and "stacktrace" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message']}")
        return answer


def _driver(chromedriver: str, tries: int = 5) -> tuple[subprocess.Popen[str], str]:
    """The driver and where it answers.

    It takes any free port of one kind of address, and then the same one of the other kind, which may be in use: then it
    ends, and is started again.
    """
    driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert driver.stdout is not None
    line = next((line for line in driver.stdout if READY in line), None)
    if line is not None:
        return driver, f"http://127.0.0.1:{line.rpartition(READY)[2].strip().rstrip('.')}"
    driver.wait()
    driver.stdout.close()
    assert tries, "chromedriver does not start"
    return _driver(chromedriver, tries - 1)


@contextlib.contextmanager
def started(chromedriver: str, chromium: str) -> Iterator[Browser]:
    """A browser with an empty profile; it and its driver are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="headwater-browser-", ignore_cleanup_errors=True) as profile:
        driver, address = _driver(chromedriver)
        try:
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                "unhandledPromptBehavior": "ignore",
            }
            made = httpx.post(
                f"{address}/session", json={"capabilities": {"alwaysMatch": wanted}}, trust_env=False, timeout=120
            ).json()["value"]
            assert "sessionId" in made, made
            browser = Browser(address, made["sessionId"])
            try:
                yield browser
            finally:
                browser.close()
        finally:
            # The browser is in the driver's group: nothing of it stays, whatever the driver has done.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            if driver.stdout is not None:
                driver.stdout.close()
