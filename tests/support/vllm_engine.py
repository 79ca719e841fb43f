# SPDX-License-Identifier: Apache-2.0
"""vLLM's server on the CPU, with a small model that it makes up; where vLLM is installed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.engines import loopback_up
from tests.support.gateway_client import Address, RawClient, request
from tests.support.netns import wait_for
from xdp_router.lab import libc

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "build" / "engines" / "vllm" / "bin" / "python"
START_S = 400.0
PORT = 19_050
MODEL = "random"
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_TARGET_DEVICE": "cpu",
}


@dataclass(frozen=True, slots=True)
class Vllm:
    """The running engine."""

    address: Address
    process: subprocess.Popen[bytes]
    log: Path

    def is_ready(self) -> bool:
        """Whether it answers. Fails if it has ended."""
        code = self.process.poll()
        if code is not None:
            pytest.fail(f"{code}: {self.log.read_text('utf-8', 'replace')[-3000:]}")
        with contextlib.suppress(OSError), RawClient.connect(self.address) as client:
            return client.ask(request("GET", "/health")).status == 200
        return False

    def figure(self, name: str, label: str = "") -> float:
        """The sum of a metric over its series that have ``label`` among their labels."""
        with RawClient.connect(self.address) as client:
            text = client.ask(request("GET", "/metrics")).body.decode()
        rows = re.findall(rf"(?m)^{re.escape(name)}(\{{[^}}]*\}})? (\S+)$", text)
        return sum(float(value) for labels, value in rows if label in labels)


@contextlib.contextmanager
def vllm(folder: Path) -> Iterator[Vllm]:
    """One engine, ready; in the calling thread's network namespace."""
    if not (PYTHON.parent / "vllm").exists():
        # Not a failure with CI=true, either: 4 GB are not for each machine.
        pytest.skip(f"no vLLM in {PYTHON.parents[1]}: see docs/gateway-clients.md")
    loopback_up()
    model = folder / "model"
    model.mkdir()
    writer = ROOT / "tests" / "support" / "dummy_model.py"
    subprocess.run([PYTHON, writer, model], check=True, timeout=START_S)
    options = {
        "model": model,
        "served-model-name": MODEL,
        "load-format": "dummy",
        "host": "127.0.0.1",
        "port": PORT,
        "max-model-len": 8192,
        "max-num-seqs": 4,
        "max-num-batched-tokens": 8192,
    }
    arguments = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
    log = folder / "vllm.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *arguments, "--enforce-eager"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={"PATH": f"{PYTHON.parent}:{os.environ['PATH']}", "HOME": str(folder)}
            | _ENVIRONMENT,
            start_new_session=True,  # its workers end with it, see below
            preexec_fn=lambda: libc.prctl(libc.PR_SET_PDEATHSIG, 15),
        )
    try:
        made = Vllm(("127.0.0.1", PORT), process, log)
        wait_for(made.is_ready, START_S, "vLLM is ready")
        yield made
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
