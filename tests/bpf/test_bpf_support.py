# SPDX-License-Identifier: Apache-2.0
"""What the host must allow and have, and how its lack is told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.privileges import require_root
from xdp_router.adapters.bpf_support import missing_capabilities, require_support

_BPF, _NET_ADMIN, _SYS_ADMIN = 1 << 39, 1 << 12, 1 << 21

_AS_NOBODY = """
import os
os.setgid(65534)
os.setuid(65534)
from xdp_router.adapters.bpf_support import require_support
try:
    require_support()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_this_host_will_do() -> None:
    """On the machine that the tests run on, as root, nothing is missing."""
    require_root()
    require_support()


@pytest.mark.parametrize(
    ("effective", "missing"),
    [
        (_BPF | _NET_ADMIN, []),
        (_SYS_ADMIN | _NET_ADMIN, []),
        (_SYS_ADMIN, ["CAP_NET_ADMIN"]),
        (_NET_ADMIN, ["CAP_BPF"]),
        (0, ["CAP_NET_ADMIN", "CAP_BPF"]),
    ],
)
def test_missing_capabilities_are_named(effective: int, missing: list[str]) -> None:
    """Just those that are needed and not there; CAP_SYS_ADMIN stands for CAP_BPF."""
    assert missing_capabilities(effective) == missing


def test_without_privileges_the_refusal_is_clear() -> None:
    """An ordinary user is told which capabilities to get."""
    require_root()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    result = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    assert result.stdout.startswith("UnsupportedHost missing CAP_NET_ADMIN and CAP_BPF: run as")
