# SPDX-License-Identifier: Apache-2.0
"""An iperf3 client of the lab's servers of kind ``iperf3``."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.privileges import require_program
from xdp_router.lab import Namespace

Address = tuple[str, int]

_GRACE_S = 20.0


def iperf(
    namespace: Namespace, target: Address, *options: str, udp: bool = False, seconds: int = 1
) -> dict[str, Any]:
    """Run one measurement to its end; what iperf3 tells of it at the ``end``.

    ``options`` are those of iperf3, such as ``--reverse`` or ``--bitrate=50M``.
    """
    program = require_program("iperf3", "iperf3")
    argv = [program, "--client", target[0], "--port", str(target[1]), "--json"]
    argv += ["--connect-timeout", "3000", *(["--udp"] if udp else [])]
    if not any(option.startswith(("--bytes", "--blockcount")) for option in options):
        argv += ["--time", str(seconds)]
    argv += options
    process = namespace.spawn(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text, _ = process.communicate(timeout=seconds + _GRACE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, text.decode()
    told = json.loads(text)
    assert "error" not in told, told["error"]
    end: dict[str, Any] = told["end"]
    return end
