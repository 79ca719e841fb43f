# SPDX-License-Identifier: Apache-2.0
"""A gateway as an operator runs it, in the calling thread's network namespace, with a backend and
with clients there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from tests.support.netns import wait_for
from xdp_router.adapters.control import ControlError
from xdp_router.adapters.control_client import ControlClient

ADDRESS = "127.0.0.1"
PORT = 8080
BACKEND_PORT = 8000
METRICS_PORT = 9851
DEADLINE_S = 40.0


def config_text(workers: int = 2, port: int = PORT, more: str = "", drain: str = "20s") -> str:
    """One listener with one backend. ``more``: further lines of [gateway]."""
    return (
        f'[gateway]\nworkers = {workers}\ndrain_timeout = "{drain}"\naccess_log = false\n{more}\n'
        f'[[listener]]\nname = "web"\ntype = "http"\naddress = "{ADDRESS}:{port}"\n'
        'mode = "inline"\n'
        f'[[listener.backend]]\nname = "b1"\naddress = "{ADDRESS}:{BACKEND_PORT}"\n'
    )


class GatewayProcess:
    """``xdp-routerd gateway``; its log is read from a file."""

    def __init__(self, folder: Path, name: str = "gateway", control: Path | None = None) -> None:
        self.config = folder / "gateway.toml"
        self.control = control if control is not None else folder / "gw.sock"
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, *options: str, prefix: tuple[str, ...] = ()) -> None:
        """Start it, and do not wait."""
        argv = [*prefix, sys.executable, "-m", "xdp_router.daemon.main", "gateway"]
        argv += ["--config", str(self.config), "--control", str(self.control)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*argv, "--log-format", "json", *options], stdout=log, stderr=log
            )

    def start(self, *options: str) -> None:
        """Start it, and return when it serves."""
        before = len(self.events("gateway_ready"))
        self.begin(*options)
        self.wait(lambda: len(self.events("gateway_ready")) > before, "the gateway is ready")

    def wait(self, condition: Any, message: str) -> Any:
        """Until something holds; fails at once if the process has ended."""

        until_s = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            if self._process is not None and self._process.poll() is not None:
                raise AssertionError(f"{message}: it has ended\n{self.log()}")
            if time.monotonic() > until_s:
                raise AssertionError(f"{message}\n{self.log()}")
            time.sleep(0.005)
        return found

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor."""
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Its exit status, when it has ended."""
        assert self._process is not None
        return self._process.wait(DEADLINE_S)

    def wait_for_another(self) -> int:
        """Process id of the gateway, when it is not the one that was started and serves."""

        def look() -> int:
            with contextlib.suppress(ControlError):
                status = self.ask("status")
                return int(status["pid"]) if status["state"] == "serving" else 0
            return 0

        wait_for(lambda: look() not in (0, self.pid), DEADLINE_S, "another one serves")
        return look()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def upgraded(self) -> None:
        """Have it ended, if it is another process by now: nobody's child."""
        with contextlib.suppress(ControlError):
            pid = self.ask("status")["pid"]
            if pid != self.pid:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """Have it gone, and its workers, however it stands."""
        if self._process is not None and self.control.exists():
            self.upgraded()
        if self._process is not None and self._process.poll() is None:
            workers = [] if not self.control.exists() else self.workers()
            self._process.kill()
            self._process.wait()
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text("utf-8") if self._log.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of that event."""
        lines = []
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return [each for each in lines if each.get("event") == name]

    def ask(self, command: str, **args: object) -> Any:
        """What it answers on its control socket."""
        with ControlClient(self.control) as client:
            return client.call(command, **args)

    def workers(self, state: str = "") -> list[int]:
        """Process ids."""
        with contextlib.suppress(Exception):
            rows = self.ask("status")["workers"]
            return [each["pid"] for each in rows if not state or each["state"] == state]
        return []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def do_HEAD(self) -> None:
        self.server.probes += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path == "/hold":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"6\r\nfirst\n\r\n")
            self.wfile.flush()
            self.server.go_on.wait(DEADLINE_S)
            self.wfile.write(b"5\r\nlast\n\r\n0\r\n\r\n")
            return
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"hi\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Backend(ThreadingHTTPServer):
    """``/hold`` begins an answer and ends it when ``go_on`` is set."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int = BACKEND_PORT) -> None:
        self.go_on = threading.Event()
        self.probes = 0
        super().__init__((ADDRESS, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes is none."""


@contextlib.contextmanager
def backend(port: int = BACKEND_PORT) -> Iterator[Backend]:
    """A backend, and a loopback interface that is up."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    server = Backend(port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def gateways(folder: Path, *names: str) -> Iterator[list[GatewayProcess]]:
    """Gateways that are not started yet, and are gone in the end; all with one control path."""
    made = [GatewayProcess(folder, name) for name in names or ("gateway",)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def get(path: str = "/", port: int = PORT, timeout_s: float = DEADLINE_S) -> bytes:
    """One request on a connection of its own: the body. Raises OSError, as for what is cut off."""
    with Stream(path, port, timeout_s) as stream:
        return stream.rest()


class Stream:
    """A request whose answer is read by and by."""

    def __init__(self, path: str, port: int = PORT, timeout_s: float = DEADLINE_S) -> None:
        self._sock = socket.create_connection((ADDRESS, port), timeout_s)
        self._sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n".encode()
        )
        self.data = b""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._sock.close()

    def until(self, what: bytes) -> bytes:
        """Read until that has come. Raises ConnectionError."""
        while what not in self.data:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"the end came before {what!r}: {self.data!r}")
            self.data += data
        return self.data

    def rest(self) -> bytes:
        """The answer's body, of a length that is told. Raises ConnectionError."""
        self.until(b"\r\n\r\n")
        head, _, body = self.data.partition(b"\r\n\r\n")
        fields = head.lower()
        if b"content-length: 3" in fields:
            return self.until(b"hi\n")[-3:]
        while not body.endswith(b"0\r\n\r\n"):  # a header's value may end so as well
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionResetError(f"the end came before the last chunk: {body!r}")
            body += data
        return body


def page() -> str:
    """The metrics that are served."""
    with urllib.request.urlopen(f"http://{ADDRESS}:{METRICS_PORT}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def counters() -> dict[str, float]:
    """What only grows of them, by name and labels."""
    found = re.findall(
        r"^xdp_router_gateway_(\S+?_(?:total|bucket|count)(?:{.*})?) (\S+)$", page(), re.MULTILINE
    )
    return {name: float(value) for name, value in found}


def total(metric: str) -> float:
    """The sum of one of them."""
    return sum(value for name, value in counters().items() if name.partition("{")[0] == metric)


class Clients:
    """Connects all the time, each time for one request, from some threads; notes what failed."""

    def __init__(self, threads: int = 3, port: int = PORT) -> None:
        self.good = 0
        self.errors: list[str] = []
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Clients:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(DEADLINE_S)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                answer = get(port=self._port)
                assert answer == b"hi\n", answer
                self.good += 1
            except (OSError, AssertionError) as error:
                self.errors.append(f"{time.monotonic():.3f} {error!r}")
            time.sleep(0.002)

    def some_more(self, count: int = 30) -> None:
        """Return when so many more have been answered."""
        wanted = self.good + count
        wait_for(lambda: self.good >= wanted or self.errors, DEADLINE_S, "answers")
        assert not self.errors, self.errors
