# SPDX-License-Identifier: Apache-2.0
"""Programs that use the ``openai`` package while the gateway is reloaded and restarted."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai

from tests.support.engines import EngineProcess, engines, loopback_up
from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_client import RawClient, request
from tests.support.netns import wait_for
from xdp_router.lab import libc

PORT = 18_000
_PATIENCE_S = 60.0
_CLIENTS = 4


def configuration(behind: Sequence[EngineProcess]) -> str:
    """Two workers, a race of two."""
    text = '[gateway]\nworkers = 2\n[[listener]]\nname = "front"\ntype = "llm"\n'
    text += f'address = "127.0.0.1:{PORT}"\n[listener.race]\nhedge = "20ms"\n'
    for number, each in enumerate(behind):
        at = f"{each.address[0]}:{each.address[1]}"
        text += f'[[listener.backend]]\nname = "e{number}"\naddress = "{at}"\n'
    return text


@contextlib.contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A gateway as an operator starts it; one that runs hands over to it."""
    command = [sys.executable, "-m", "xdp_router.daemon", "gateway"]
    files = ["--config", str(folder / "gateway.toml"), "--control", str(folder / "gateway.sock")]
    with (folder / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *files],
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM),
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def said(folder: Path, words: str) -> int:
    """How often the log has these words."""
    return (folder / "gateway.log").read_text("utf-8", "replace").count(words)


def answers() -> bool:
    """Whether the gateway does."""
    with contextlib.suppress(OSError), RawClient.connect(("127.0.0.1", PORT)) as client:
        return client.ask(request("GET", "/health")).status == 200
    return False


@in_fresh_netns
def test_nobody_notices(tmp_path: Path) -> None:
    """Each request of programs that never retry is answered whole: through two reloads, and a
    successor that takes over."""
    done, errors, stop = [0] * _CLIENTS, list[str](), threading.Event()

    def work(number: int) -> None:
        with openai.OpenAI(
            base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0, timeout=30
        ) as ours:
            while not stop.is_set():
                try:
                    stream = ours.completions.create(model="mock", prompt="x", stream=True)
                    texts = [each.choices[0].text for each in stream]
                    assert texts == ["tok "] * 5 + [""]
                    done[number] += 1
                except (openai.OpenAIError, AssertionError) as error:
                    errors.append(f"{error!r} {error.__cause__!r}")

    def progress() -> None:
        before = list(done)
        wait_for(
            lambda: errors or all(now > then for now, then in zip(done, before, strict=True)),
            _PATIENCE_S,
            "each program gets on",
        )
        time.sleep(0.2)

    loopback_up()
    with engines(2, "--ttft-ms", "5", "--tokens", "5", "--gap-ms", "5") as two:
        (tmp_path / "gateway.toml").write_text(configuration(two))
        with running(tmp_path) as first:
            wait_for(answers, _PATIENCE_S, "it serves")
            threads = [threading.Thread(target=work, args=(each,)) for each in range(_CLIENTS)]
            for each in threads:
                each.start()
            try:
                progress()
                for number in (1, 2):
                    first.send_signal(signal.SIGHUP)
                    wait_for(lambda: said(tmp_path, "reloaded") == number, _PATIENCE_S)  # noqa: B023 - called here
                    progress()
                with running(tmp_path):
                    assert first.wait(_PATIENCE_S) == 0
                    progress()
                    stop.set()
                    for each in threads:
                        each.join()
            finally:
                stop.set()
        assert not errors, errors[:3]
        assert min(done) >= 4
