# SPDX-License-Identifier: Apache-2.0
"""curl as the gateway's client: what people try first, and what scripts rely on."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import CHAT
from tests.support.gateway_place import FIRST_PORT, gateway
from tests.support.netns import wait_for
from tests.support.privileges import require_program

HTTP = 'type = "http"'
LLM = 'type = "llm"\nmode = "inline"'
BASE = f"http://127.0.0.1:{FIRST_PORT}"
ASK = json.dumps({"model": "mock", "stream": True, "messages": [{"role": "user", "content": "x"}]})
_PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Told:
    """How curl ended: its exit code, what it printed, and (``trace``) what it says it did."""

    code: int
    out: bytes
    trace: str


def curl(*arguments: str, given: bytes = b"") -> Told:
    """Run it in the calling thread's network namespace, without anybody's settings."""
    program = require_program("curl", "curl")
    done = subprocess.run(
        [program, "--disable", "--silent", "--show-error", "--verbose", *arguments],
        input=given,
        capture_output=True,
        timeout=_PATIENCE_S,
        env={"PATH": os.environ["PATH"]},
        check=False,
    )
    return Told(done.returncode, done.stdout, done.stderr.decode("latin-1"))


def chat(*arguments: str, mock: str = "") -> Told:
    """A prompt whose answer is streamed."""
    kind = ("-H", "Content-Type: application/json", "-H", f"x-mock: {mock}")
    return curl("--no-buffer", *kind, *arguments, "--data-raw", ASK, BASE + CHAT)


@in_fresh_netns
def test_one_connection_does_for_all() -> None:
    """Kept after whole answers, streams, HEAD and errors of a backend."""
    form = "%{http_code} %{num_connects}\n"
    with gateway(HTTP, {"one": "tokens=3"}) as place:
        paths = ("/health", "/sse", "/nowhere", "/v1/models")
        told = curl("-w", form, *(part for path in paths for part in ("-o", "-", BASE + path)))
        assert re.findall(rb"(?m)^(?:.*\})?(\d{3}) (\d)$", told.out) == [
            (b"200", b"1"),
            (b"200", b"0"),
            (b"404", b"0"),
            (b"200", b"0"),
        ]
        assert curl("--head", BASE + "/health", BASE + "/v1/models").code == 0
        place.settled()


@in_fresh_netns
def test_uploads(tmp_path: Path) -> None:
    """With a length, behind ``Expect``, and in chunks of unknown number; none waits in vain."""
    body = os.urandom(3 << 20)
    (tmp_path / "body").write_bytes(body)
    upload = f"@{tmp_path / 'body'}"
    with gateway(HTTP, {"one": ""}) as place:
        small = curl("--data-binary", "x" * 100, BASE + "/echo")
        assert (small.code, small.out) == (0, b"x" * 100)
        waits = curl("-H", "Expect: 100-continue", "--data-binary", upload, BASE + "/echo")
        assert "< HTTP/1.1 100 Continue" in waits.trace
        assert "Done waiting for 100-continue" not in waits.trace
        assert waits.out == body
        chunks = curl("--request", "POST", "--upload-file", "-", BASE + "/echo", given=body)
        assert "> Transfer-Encoding: chunked" in chunks.trace
        assert chunks.out == body
        seen = place.call(lambda: [each.headers for each in place.engines["one"].recent])
        assert [dict(each).get("Transfer-Encoding") for each in seen] == [None, None, "chunked"]
        place.settled()


@in_fresh_netns
def test_an_upload_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    """Who asks first (``Expect``) is told 413 instead of 100; who does not gets it all the same."""
    (tmp_path / "body").write_bytes(bytes(3 << 20))
    upload = ("--data-binary", f"@{tmp_path / 'body'}", BASE + "/v1/completions")
    with gateway(f"{LLM}\nmax_body = 100_000", {"one": ""}) as place:
        waits = curl("-H", "Expect: 100-continue", "-w", "%{http_code} %{size_upload}", *upload)
        assert waits.out.endswith(b"}413 0")
        assert "100 Continue" not in waits.trace
        at_once = curl("-H", "Expect:", "-w", "%{http_code}", *upload)
        assert at_once.out.endswith(b"}413")
        assert place.call(lambda: place.engines["one"].counts.requests) == 0


@in_fresh_netns
def test_streams() -> None:
    """Whole, in HTTP/1.1 and 1.0; broken off, that is an error of the transfer."""
    with gateway(LLM, {"one": "tokens=5"}) as place:
        for version in ("--http1.1", "--http1.0"):
            told = chat(version)
            assert told.code == 0
            assert told.out.count(b"data: {") == 6
            assert told.out.endswith(b"data: [DONE]\n\n")
        broken = chat(mock="crash-after=2,gap-ms=2")
        assert broken.code != 0
        assert b"event: error\n" in broken.out
        assert b"[DONE]" not in broken.out
        place.settled()


@in_fresh_netns
def test_prompts_that_cannot_be_read() -> None:
    """None at all, no JSON, or compressed: each is told so at once."""
    asked: list[tuple[int, list[str]]] = [
        (400, []),
        (400, ["--data-raw", ""]),
        (400, ["--data-raw", "{"]),
        (400, ["--data-raw", "[]"]),
        (415, ["-H", "Content-Encoding: gzip", "--data-raw", "x"]),
    ]
    with gateway(LLM, {"one": ""}) as place:
        for status, each in asked:
            told = curl("-X", "POST", "--max-time", "10", *each, BASE + CHAT)
            assert f"< HTTP/1.1 {status} " in told.trace, each
            assert json.loads(told.out)["error"]["message"]
        assert place.call(lambda: place.engines["one"].counts.requests) == 0
        place.settled()


@in_fresh_netns
def test_who_has_enough_ends_the_stream() -> None:
    """``--max-time`` closes the connection, and the engine's with it."""
    with gateway(LLM, {"one": "tokens=9000,gap-ms=20"}) as place:
        assert chat("--max-time", "0.3").code == 28
        counts = place.engines["one"].counts
        wait_for(lambda: place.call(lambda: counts.aborted) == 1, 5, "the engine sees it")
        place.settled()


@in_fresh_netns
def test_http_1_0() -> None:
    """Requests without and with a body; a connection is kept if it is asked for."""
    kept = ("-H", "Connection: keep-alive")
    with gateway(HTTP, {"one": "tokens=3"}) as place:
        assert curl("--http1.0", BASE + "/sse").out.endswith(b"event: end\ndata: end\n\n")
        assert curl("--http1.0", "--data-raw", "abc", BASE + "/echo").out == b"abc"
        told = curl("--http1.0", *kept, "-w", "%{num_connects} ", *[BASE + "/health"] * 2)
        assert told.out == b"1 0 "
        place.settled()


@in_fresh_netns
def test_http_2_is_refused_in_clear_words() -> None:
    """By prior knowledge there is an error at once; offered as an upgrade it is left alone."""
    with gateway(HTTP, {"one": ""}) as place:
        told = curl("--http2-prior-knowledge", "--max-time", "10", BASE + "/health")
        assert (told.code, told.out) == (16, b"")
        assert "GOAWAY, error=13" in told.trace  # HTTP_1_1_REQUIRED
        offered = curl("--http2", "-w", "%{http_version} %{http_code}", BASE + "/health")
        assert "> Upgrade: h2c" in offered.trace
        assert offered.out == b"1.1 200"
        seen = place.call(lambda: place.engines["one"].recent)
        assert not seen  # /health is not counted
        assert place.call(lambda: place.engines["one"].counts.connections) == 1


@in_fresh_netns
def test_it_is_no_open_proxy() -> None:
    """What is asked for elsewhere goes to the configured backends, or nowhere."""
    with gateway(HTTP, {"one": ""}) as place:
        told = curl("--proxy", BASE, "http://198.18.7.7/echo", "--data-raw", "abc")
        assert told.out == b"abc"
        (seen,) = place.call(lambda: list(place.engines["one"].recent))
        assert (seen.path, dict(seen.headers)["Host"]) == ("/echo", "198.18.7.7")
        tunnel = curl("--proxytunnel", "--proxy", BASE, "http://198.18.7.7/echo")
        assert tunnel.code == 56
        assert "501" in tunnel.trace
        place.settled()


@in_fresh_netns
@pytest.mark.parametrize("offer", ["--http2", "--http1.1", "--no-alpn"])
def test_tls_ends_here(offer: str, tmp_path: Path) -> None:
    """HTTP/1.1 is what is agreed on, whatever else is offered."""
    chain, key = write_certificate(tmp_path, "gateway.test")
    keys = f'{HTTP}\n[listener.tls]\ncertificate = "{chain}"\nkey = "{key}"\n'
    there = ("--cacert", str(chain), "--resolve", f"gateway.test:{FIRST_PORT}:127.0.0.1")
    url = f"https://gateway.test:{FIRST_PORT}"
    with gateway(keys, {"one": "tokens=3"}) as place:
        told = curl(offer, *there, "-w", "%{http_version}", url + "/sse", url + "/health")
        assert told.code == 0, told.trace
        assert told.out.endswith(b"data: end\n\n1.11.1")
        place.settled()
