# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium in the test's network namespace, told by DevTools what to do.

DevTools over two pipes (``--remote-debugging-pipe``): JSON messages, each with a NUL behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from tests.support.privileges import require_program
from xdp_router.lab import libc

PATIENCE_S = 60.0
_PIPES = (3, 4)
"""Its end of what it is told, and of what it says."""
_QUIET = (
    "--headless",
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


_LOADED = """new Promise(done =>
  document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"""


class PageError(Exception):
    """What a page's script failed with, or what DevTools refused."""


class Browser:
    """One tab."""

    def __init__(self, told: int, says: int) -> None:
        self._told, self._says = told, says
        self._buffer = bytearray()
        self._number = 0
        self._session = self._target = ""

    def start(self) -> None:
        """Open the tab."""
        self._target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        given = {"targetId": self._target, "flatten": True}
        attached = self._ask("Target.attachToTarget", given)
        self._session = attached["sessionId"]

    def open(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        self._ask("Page.enable", {})
        found = self._ask("Page.navigate", {"url": url})
        if "errorText" in found:
            raise PageError(f"{url}: {found['errorText']}")
        self.run(_LOADED)

    def close(self) -> None:
        """Close the tab; nothing more can be asked."""
        self._session = ""
        self._ask("Target.closeTarget", {"targetId": self._target})

    def run(self, script: str) -> Any:
        """What an expression comes to in the page; promises are waited for."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self._ask("Runtime.evaluate", asked)
        if "exceptionDetails" in found:
            raise PageError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def _ask(self, method: str, given: dict[str, Any]) -> Any:
        self._number += 1
        asked: dict[str, Any] = {"id": self._number, "method": method, "params": given}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._told, json.dumps(asked).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said = self._next(deadline)
            if said.get("id") == self._number:
                if "error" in said:
                    raise PageError(f"{method}: {said['error']}")
                return said["result"]

    def _next(self, deadline: float) -> Any:
        while (end := self._buffer.find(b"\0")) < 0:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._says], [], [], left)[0]:
                raise TimeoutError(f"Chromium said nothing for {PATIENCE_S:g} s")
            data = os.read(self._says, 1 << 16)
            if not data:
                raise PageError("Chromium has ended")
            self._buffer += data
        said = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return said


@contextlib.contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """Run it in the calling thread's network namespace, with a profile of its own."""
    program = require_program("chromium", "chromium")
    with contextlib.ExitStack() as undo:
        profile = undo.enter_context(
            tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        )
        told, our_told = os.pipe()
        our_says, says = os.pipe()
        ours = [our_told, our_says]
        for each in ours:
            undo.callback(os.close, each)

        def hand_over() -> None:
            # Both may be what the other is to become.
            spare = os.dup(says)
            high = os.dup(told)
            os.dup2(high, _PIPES[0])
            os.dup2(spare, _PIPES[1])
            libc.prctl(libc.PR_SET_PDEATHSIG, 9)

        try:
            process = subprocess.Popen(
                [program, *_QUIET, f"--user-data-dir={profile}", *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=_PIPES,
                preexec_fn=hand_over,
                env={"PATH": os.environ["PATH"], "HOME": profile},
                start_new_session=True,
            )
        finally:
            os.close(told)
            os.close(says)
        undo.callback(_end, process)
        browser = Browser(our_told, our_says)
        browser.start()
        yield browser


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()
