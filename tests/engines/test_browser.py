# SPDX-License-Identifier: Apache-2.0
"""A browser as the gateway's client: a page of its events, reconnects, WebSockets, fetch."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificate import write_certificate
from tests.support.chromium import chromium
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_place import FIRST_PORT, Place, gateway
from tests.support.netns import wait_for
from xdp_router.lab.engine_behaviour import Behaviour

SITE_PORT = 19_100
BASE = f"http://127.0.0.1:{FIRST_PORT}"
_PATIENCE_S = 20.0

PAGE = b"""<!doctype html><meta charset="utf-8"><title>tokens</title><link rel="icon" href="data:,">
<ol id="seen"></ol>
<script>
const seen = document.getElementById('seen');
const note = text => seen.append(Object.assign(document.createElement('li'), {textContent: text}));
const texts = () => [...seen.children].map(each => each.textContent);
const read = path => new Promise(done => {
  const source = new EventSource(path);
  source.onopen = () => note('open');
  source.onmessage = event => note('token ' + event.lastEventId);
  source.onerror = event => note(event.data ? 'told ' + JSON.parse(event.data).error.code
                                            : 'lost ' + source.readyState);
  source.addEventListener('end', () => { source.close(); done(texts()); });
});
const talk = (path, things) => new Promise((done, failed) => {
  const socket = new WebSocket(path), got = [];
  socket.binaryType = 'arraybuffer';
  socket.onopen = () => things.forEach(each => socket.send(each));
  socket.onerror = () => failed(new Error('the socket failed'));
  socket.onmessage = event => {
    got.push(typeof event.data === 'string' ? event.data : event.data.byteLength);
    if (got.length === things.length) socket.close(4000, 'enough');
  };
  socket.onclose = event => done([got, event.code, event.reason, event.wasClean]);
});
const ask = async (enough, mock) => {
  const stop = new AbortController();
  const answer = await fetch('/v1/chat/completions', {
    method: 'POST', signal: stop.signal,
    headers: {'Content-Type': 'application/json', 'x-mock': mock},
    body: JSON.stringify({model: 'mock', stream: true, messages: [{role: 'user', content: 'x'}]}),
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return [text.split('data: {').length - 1, text.endsWith('data: [DONE]\\n\\n')];
      text += value;
      if (text.split('data: {').length > enough) stop.abort();
    }
  } catch (error) {
    return [error.name, text.includes('event: error')];
  }
};
</script>
"""


class Site(http.server.SimpleHTTPRequestHandler):
    """Python's own server of files: HTTP/1.0, a connection for each request."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def site(folder: Path) -> Iterator[str]:
    """Serve the page in the calling thread's namespace; the configuration that leads there."""
    (folder / "index.html").write_bytes(PAGE)
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", SITE_PORT), lambda *given: Site(*given, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield (
                f'[[listener.backend]]\nname = "site"\naddress = "127.0.0.1:{SITE_PORT}"\n'
                '[[listener.route]]\nname = "pages"\npath = "/site/"\nbackends = ["site"]\n'
                '[[listener.route]]\nname = "tokens"\npath = "/"\nbackends = ["one"]\n'
            )
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def page(folder: Path, kind: str, how: str) -> Iterator[tuple[Place, str]]:
    """A gateway with the page at the path that is given, and one engine."""
    (folder / "site").mkdir()
    with site(folder) as more, gateway(kind, {"one": how}, more=more) as place:
        (folder / "index.html").rename(folder / "site" / "index.html")
        yield place, "/site/index.html"


@in_fresh_netns
def test_a_page_of_events(tmp_path: Path) -> None:
    """Token by token as they come; broken off, the browser is told, and takes up again where it
    was: ``Last-Event-ID`` passes."""
    with page(tmp_path, 'type = "http"', "tokens=6,gap-ms=20") as (place, path):
        engine = place.engines["one"]
        with chromium() as browser:
            browser.open(BASE + path)
            assert browser.run("read('/sse')") == ["open", *(f"token {each}" for each in range(6))]
            broken = Behaviour().changed("tokens=6,gap-ms=20,crash-after=3")
            place.call(lambda: setattr(engine, "behaviour", broken))
            browser.run("seen.replaceChildren(), globalThis.later = read('/sse'), 0")
            wait_for(
                lambda: browser.run("texts().includes('lost 0')"), _PATIENCE_S, "it is broken off"
            )
            place.call(lambda: setattr(engine, "behaviour", Behaviour()))
            told = browser.run("later")
            first = ["open", "token 0", "token 1", "token 2", "told backend_lost", "lost 0"]
            assert told[:6] == first
            assert told[-9:] == ["open", *(f"token {each}" for each in range(8))]
            last = place.call(lambda: dict(engine.recent[-1].headers))
            assert last["Last-Event-ID"] == "2"
            assert last["Cache-Control"] == "no-cache"
            place.settled()


@in_fresh_netns
@pytest.mark.parametrize("how", ["closed", "left", "left and kept"])
def test_a_page_that_is_gone_ends_its_stream(how: str, tmp_path: Path) -> None:
    """The engine sees it. A page that can be come back to is kept by the browser with its stream,
    unless it closes that itself."""
    options = ("--disable-features=BackForwardCache",) if how == "left" else ()
    with page(tmp_path, 'type = "http"', "tokens=90000,gap-ms=20") as (place, path):
        counts = place.engines["one"].counts
        with chromium(*options) as browser:
            browser.open(BASE + path)
            browser.run("globalThis.source = new EventSource('/sse'), source.onmessage = note, 0")
            wait_for(lambda: browser.run("texts().length > 3"), _PATIENCE_S, "tokens come")
            if how == "left and kept":
                browser.run("addEventListener('pagehide', () => source.close())")
            if how == "closed":
                browser.close()
            else:
                browser.open(BASE + "/health")
            wait_for(lambda: place.call(lambda: counts.aborted) == 1, _PATIENCE_S, "it is seen")
            place.settled()


@in_fresh_netns
def test_fetch(tmp_path: Path) -> None:
    """A chat that is streamed into a page, aborted by it, and broken off under it."""
    with page(tmp_path, 'type = "llm"\nmode = "inline"', "tokens=5") as (place, path):
        counts = place.engines["one"].counts
        with chromium() as browser:
            browser.open(BASE + path)
            assert browser.run("ask(99, '')") == [6, True]
            assert browser.run("ask(3, 'tokens=9000,gap-ms=10')") == ["AbortError", False]
            wait_for(lambda: place.call(lambda: counts.aborted) == 1, _PATIENCE_S, "it is seen")
            # Whether it was also told by an event is lost with the queue of a stream that fails.
            assert browser.run("ask(99, 'gap-ms=5,crash-after=3')")[0] == "TypeError"
            place.settled()


@in_fresh_netns
def test_a_websocket(tmp_path: Path) -> None:
    """Text and binary, small and large, and a close with its code; beside streams of events."""
    with page(tmp_path, 'type = "http"', "tokens=3") as (place, path), chromium() as browser:
        browser.open(BASE + path)
        things = "['hello', new Uint8Array(300000), '', 'x'.repeat(70000)]"
        answers = ["hello", 300000, "", "x" * 70000]
        for _ in range(2):
            assert browser.run(f"talk('/ws', {things})") == [answers, 4000, "enough", True]
        assert (
            browser.run("Promise.all([talk('/ws', ['a']), read('/sse')]).then(x => x[0][1])")
            == 4000
        )
        place.settled()


@in_fresh_netns
def test_over_tls(tmp_path: Path) -> None:
    """HTTP/1.1 is agreed on, for pages, events and WebSockets."""
    chain, key = write_certificate(tmp_path, "gateway.test")
    kind = f'type = "http"\n[listener.tls]\ncertificate = "{chain}"\nkey = "{key}"\n'
    with page(tmp_path, kind, "tokens=3") as (place, path):
        with chromium("--ignore-certificate-errors") as browser:
            browser.open(BASE.replace("http", "https") + path)
            assert browser.run("read('/sse')") == ["open", "token 0", "token 1", "token 2"]
            assert browser.run("talk('/ws', ['a'])") == [["a"], 4000, "enough", True]
            entry = "performance.getEntriesByType('navigation')[0].nextHopProtocol"
            assert browser.run(entry) == "http/1.1"
        place.settled()
