# SPDX-License-Identifier: Apache-2.0
"""HAProxy in the router's namespace of a lab, on an address of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from xdp_router.lab import Lab, links

Address = tuple[str, int]
ADDRESS = "198.18.100.3"
MISSING = "haproxy was not found; get it by: sudo make bench-deps"
_READY_S = 5.0


def installed() -> bool:
    """Whether the program is there."""
    return shutil.which("haproxy") is not None


def config_text(balances: Mapping[str, Address], backends: Sequence[Address]) -> str:
    """TCP to the backends, each checked every 2 s: one listener for each way to balance."""
    servers = "\n".join(
        f"  server b{number} {host}:{port} check inter 2s"
        for number, (host, port) in enumerate(backends, 1)
    )
    text = (
        "global\n  maxconn 4000\n"
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n"
    )
    for balance, (host, port) in balances.items():
        text += f"listen {balance}\n  bind {host}:{port}\n  balance {balance}\n{servers}\n"
    return text


def start(lab: Lab, directory: Path, balances: Mapping[str, Address], undo: ExitStack) -> None:
    """Start it; ``undo`` ends it.

    Raises RuntimeError, with what it said, if it does not come up.
    """
    links.with_netlink(
        lab.router,
        lambda netlink: netlink.addr(
            "add", index=netlink.link_lookup(ifname="lo")[0], address=ADDRESS, prefixlen=32
        ),
    )
    config, log = directory / "haproxy.cfg", directory / "haproxy.log"
    config.write_text(config_text(balances, lab.addresses.backends), encoding="utf-8")
    with log.open("wb") as output:
        process = lab.router.spawn(
            ["haproxy", "-db", "-f", str(config)],
            name="haproxy",
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    undo.callback(process.wait)
    undo.callback(process.terminate)
    deadline_s = time.monotonic() + _READY_S
    while not all(_answers(lab, address) for address in balances.values()):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"haproxy did not start: {log.read_text(encoding='utf-8')}")
        time.sleep(0.05)


def _answers(lab: Lab, address: Address) -> bool:
    try:
        lab.client.connect(address, timeout=1.0).close()
    except OSError:
        return False
    return True
