# SPDX-License-Identifier: Apache-2.0
"""llama.cpp behind the server of llama-cpp-python, with a model of random weights."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import loopback_up
from tests.support.gateway_client import Address, RawClient, request
from tests.support.netns import wait_for
from tests.support.privileges import unavailable
from xdp_router.lab import libc

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "engines" / "llama" / "bin" / "python"
START_S = 90.0
FIRST_PORT = 19_000
MODEL = "random"


@dataclass(frozen=True, slots=True)
class Llama:
    """One running engine. It serves one request at a time."""

    name: str
    address: Address
    process: subprocess.Popen[bytes]
    log: Path

    def said(self, words: str) -> int:
        """How often its log has these words."""
        return self.log.read_text("utf-8", "replace").count(words)

    def is_ready(self) -> bool:
        """Whether it answers. Fails if it has ended."""
        code = self.process.poll()
        if code is not None:
            pytest.fail(f"{code}: {self.log.read_text('utf-8', 'replace')[-3000:]}")
        with contextlib.suppress(OSError), RawClient.connect(self.address) as client:
            return client.ask(request("GET", "/v1/models")).status == 200
        return False


@contextlib.contextmanager
def llamas(folder: Path, names: Sequence[str]) -> Iterator[list[Llama]]:
    """Engines of these names, ready; in the calling thread's network namespace."""
    if not PYTHON.exists():
        unavailable(f"no llama.cpp in {PYTHON.parents[1]}: make engines-deps")
    loopback_up()
    model = folder / "random.gguf"
    writer = ROOT / "tests" / "support" / "random_gguf.py"
    subprocess.run([PYTHON, writer, model], check=True, timeout=START_S)
    with contextlib.ExitStack() as undo:
        started = []
        for number, name in enumerate(names):
            made = Llama(
                name,
                ("127.0.0.1", FIRST_PORT + number),
                undo.enter_context(_process(folder, model, name, FIRST_PORT + number)),
                folder / f"{name}.log",
            )
            started.append(made)
        for each in started:
            wait_for(each.is_ready, START_S, f"{each.name} is ready")
        yield started


@contextlib.contextmanager
def _process(folder: Path, model: Path, name: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    options = {
        "model": model,
        "model_alias": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "n_ctx": 8192,
        "n_threads": 1,
        "n_threads_batch": 1,
        "interrupt_requests": False,  # else each request ends the one before it
        "verbose": True,
    }
    arguments = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [PYTHON, "-u", "-m", "llama_cpp.server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"},
            preexec_fn=lambda: libc.prctl(libc.PR_SET_PDEATHSIG, 9),
        )
    try:
        yield process
    finally:
        process.kill()  # it waits for its streams on SIGTERM
        process.wait()
