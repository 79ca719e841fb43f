# SPDX-License-Identifier: Apache-2.0
"""The gateway's unit: a user without privileges and one capability are enough for it."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.gateway_process import backend, config_text, gateways, get
from tests.support.netns import wait_for
from tests.support.privileges import require_program
from xdp_router.adapters.control import UNIT_GATEWAY_CONTROL_PATH, CommandError
from xdp_router.core.listeners import GatewayConfig

UNIT = (Path(__file__).parents[2] / "contrib/systemd/xdp-router-gateway.service").read_text()
NOBODY = 65534
NET_BIND_SERVICE = 1 << 10
PORT = 80


def _setting(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def test_its_settings_fit_together() -> None:
    """Commands find its socket; its time to end is more than the longest default."""
    assert f"--control {UNIT_GATEWAY_CONTROL_PATH} " in _setting("ExecStart")
    assert f"--control {UNIT_GATEWAY_CONTROL_PATH} reload" in _setting("ExecReload")
    folder = Path(UNIT_GATEWAY_CONTROL_PATH).parent
    assert folder == Path("/run") / _setting("RuntimeDirectory")
    default_s = GatewayConfig().drain_timeout_ns / 1e9
    assert float(_setting("TimeoutStopSec").removesuffix("s")) > default_s


def _confined(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    patterns = (rf"^Uid:\s+{NOBODY}\s", rf"^CapEff:\s+{NET_BIND_SERVICE:016x}$")
    return all(re.search(each, status, re.M) for each in patterns)


def _next(systemd: socket.socket) -> bytes:
    """What was said next, but for the line of ``systemctl status``."""
    while (message := systemd.recv(1000)).startswith(b"STATUS="):
        pass
    return message


@in_fresh_netns
def test_the_gateway_works_with_just_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's gateway serves a port below 1024, tells systemd, reloads for its own user, ends."""
    for each in (tmp_path, *tmp_path.parents):
        if os.stat(each).st_uid == os.geteuid() and "pytest" in str(each):
            each.chmod(0o755)
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, NOBODY, NOBODY)
    capability = _setting("AmbientCapabilities").lower().removeprefix("cap_")
    assert _setting("CapabilityBoundingSet") == _setting("AmbientCapabilities")
    confined = (
        require_program("setpriv", "util-linux"),
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        f"--bounding-set=-all,+{capability}",
        f"--inh-caps=-all,+{capability}",
        f"--ambient-caps=-all,+{capability}",
        "--no-new-privs",
    )  # fmt: skip - one line each would say less
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        backend(),
        gateways(tmp_path) as (gateway,),
    ):
        systemd.bind(str(run / "notify"))
        os.chmod(run / "notify", 0o666)
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(run / "notify"))
        gateway.control = run / "gw.sock"
        gateway.config.write_text(config_text(workers=1, port=PORT))
        gateway.begin(prefix=confined)
        gateway.wait(lambda: gateway.events("gateway_ready"), "the gateway is ready")
        assert systemd.recv(1000) == f"READY=1\nMAINPID={gateway.pid}".encode()
        (worker,) = gateway.workers()
        for pid in (gateway.pid, worker):
            assert _confined(pid)
        assert get(port=PORT) == b"hi\n"
        gateway.ask("reload")
        wait_for(lambda: gateway.workers("serving") not in ([], [worker]), 20, "another worker")
        assert get(port=PORT) == b"hi\n"

        gateway.config.write_text("garbage")
        with pytest.raises(CommandError, match="failed: .*not valid TOML"):
            gateway.ask("upgrade")
        gateway.config.write_text(config_text(workers=1, port=PORT))
        gateway.signal(signal.SIGUSR2)
        assert gateway.ended() == 0
        successor = gateway.wait_for_another()
        assert _next(systemd) == f"MAINPID={successor}\nWATCHDOG=1".encode()
        assert _next(systemd) == f"READY=1\nMAINPID={successor}".encode()
        for pid in (successor, *gateway.workers()):
            assert _confined(pid)
        assert get(port=PORT) == b"hi\n"
        os.kill(successor, signal.SIGTERM)
        assert _next(systemd) == b"STOPPING=1"
