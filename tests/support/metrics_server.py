# SPDX-License-Identifier: Apache-2.0
"""A server of metrics as inference servers have it: real HTTP, real exposition, names of vLLM."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from xdp_router.lab import Namespace

LABELS = {"model_name": "m", "engine": "0"}


class Engine:
    """The figures of one server. ``asked`` has the instants at which they were asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._waiting = self._made(Gauge, "vllm:num_requests_waiting")
        self._running = self._made(Gauge, "vllm:num_requests_running")
        self._usage = self._made(Gauge, "vllm:kv_cache_usage_perc")
        self._queries = self._made(Counter, "vllm:prefix_cache_queries")
        self._hits = self._made(Counter, "vllm:prefix_cache_hits")
        self._ttft = self._made(Histogram, "vllm:time_to_first_token_seconds")
        self.asked: list[float] = []

    def _made(self, kind: Any, name: str) -> Any:
        return kind(name, name, LABELS.keys(), registry=self.registry).labels(*LABELS.values())

    def queue(self, waiting: int, running: int) -> None:
        """So many requests wait, and so many run."""
        self._waiting.set(waiting)
        self._running.set(running)

    def use(self, share: float) -> None:
        """Its cache is so full."""
        self._usage.set(share)

    def serve(self, requests: int, hits: int, ttft_s: float) -> None:
        """So many requests were served, of whose prefixes some were in the cache."""
        self._queries.inc(requests)
        self._hits.inc(hits)
        for _ in range(requests):
            self._ttft.observe(ttft_s)


@contextlib.contextmanager
def serving(namespace: Namespace, port: int, engine: Engine) -> Iterator[None]:
    """``/metrics`` of an engine, at all addresses of a namespace."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            engine.asked.append(time.monotonic())
            body = generate_latest(engine.registry)
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """Nobody reads it."""

    listener = namespace.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    server = ThreadingHTTPServer(("0.0.0.0", port), Answer, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
