# SPDX-License-Identifier: Apache-2.0
"""Mock engines as processes of a test, and what they say they have seen."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from pyroute2 import IPRoute

from tests.support.gateway_client import Address, RawClient, request
from tests.support.netns import wait_for
from xdp_router.lab import Namespace, libc

_READY_S = 20.0


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running mock; it is asked in the calling thread's namespace, or in ``namespace``."""

    address: Address
    process: subprocess.Popen[bytes]
    namespace: Namespace | None = None

    def _ask(self, data: bytes) -> Any:
        if self.namespace is None:
            client = RawClient.connect(self.address)
        else:
            client = RawClient(self.namespace.connect(self.address))
        with client:
            answer = client.ask(data)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def seen(self) -> Any:
        """What /mock says."""
        return self._ask(request("GET", "/mock"))

    def wait(self, condition: Callable[[Any], object], timeout: float = 10.0) -> Any:
        """What /mock says as soon as the condition holds of it."""

        def there() -> Any:
            seen = self.seen()
            assert condition(seen), {key: seen[key] for key in seen if key != "recent"}
            return seen

        return wait_for(there, timeout)

    def behave(self, text: str) -> None:
        """Change what it does from now on."""
        self._ask(request("POST", "/mock", text.encode()))

    def forget(self) -> None:
        """Count anew."""
        self._ask(request("POST", "/mock/forget"))

    def anew(self, stalls: str) -> None:
        """Forget all, the cache as well, and stall like this from now on."""
        self._ask(request("POST", "/mock/anew", stalls.encode()))

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def loopback_up() -> None:
    """In the calling thread's namespace."""
    with IPRoute() as netlink:
        netlink.link("set", index=netlink.link_lookup(ifname="lo")[0], state="up")


@contextmanager
def engine(
    *options: str,
    host: str = "127.0.0.1",
    port: int = 0,
    namespace: Namespace | None = None,
) -> Iterator[EngineProcess]:
    """One engine, ready; in the calling thread's namespace unless another one is given."""
    ours, theirs = os.pipe()
    argv = [sys.executable, "-m", "xdp_router.lab.engine", host, str(port), *options]
    argv += ["--ready-fd", str(theirs)]
    try:
        if namespace is None:
            process = subprocess.Popen(
                argv, pass_fds=(theirs,), preexec_fn=lambda: libc.prctl(libc.PR_SET_PDEATHSIG, 9)
            )
        else:
            process = namespace.spawn(argv, pass_fds=(theirs,))
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as ready:
            watch = threading.Timer(_READY_S, process.kill)
            watch.start()
            line = ready.readline()
            watch.cancel()
        assert line, f"the engine did not start: exit code {process.wait()}"
        yield EngineProcess((host, int(line)), process, namespace)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()


@contextmanager
def engines(count: int, *options: str) -> Iterator[list[EngineProcess]]:
    """Several alike, named e1, e2, ..., in the calling thread's namespace."""
    with ExitStack() as undo:
        yield [
            undo.enter_context(engine("--name", f"e{number}", *options))
            for number in range(1, count + 1)
        ]
