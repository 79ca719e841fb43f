# SPDX-License-Identifier: Apache-2.0
"""What the host must allow and have, and how its lack is told."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.privileges import require_program, require_root
from xdp_router.adapters.bpf_support import _CAPABILITIES, missing_capabilities, require_support

_BPF, _PERFMON, _NET_ADMIN, _SYS_ADMIN = 1 << 39, 1 << 38, 1 << 12, 1 << 21
_NET = _NET_ADMIN | 1 << 13  # CAP_NET_RAW

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

_LOAD = """
from xdp_router.adapters.bpf_support import require_support
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.loader import make_loader
from xdp_router.adapters.map_specs import Sizes
require_support()
DataPlane.create(make_loader("object"), Sizes(max_flows=1), None).close()
print("loaded")
"""
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def test_this_host_will_do() -> None:
    """On the machine that the tests run on, as root, nothing is missing."""
    require_root()
    require_support()


@pytest.mark.parametrize(
    ("effective", "missing"),
    [
        (_BPF | _PERFMON | _NET, []),
        (_BPF | _PERFMON | _NET_ADMIN, ["CAP_NET_RAW"]),
        (_BPF | _NET, ["CAP_PERFMON"]),
        (_SYS_ADMIN | _NET, []),
        (_SYS_ADMIN, ["CAP_NET_ADMIN", "CAP_NET_RAW"]),
        (_NET, ["CAP_BPF", "CAP_PERFMON"]),
        (0, ["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON"]),
    ],
)
def test_missing_capabilities_are_named(effective: int, missing: list[str]) -> None:
    """Just those that are needed and not there; CAP_SYS_ADMIN stands for all but two."""
    assert missing_capabilities(effective) == missing


def test_these_capabilities_are_enough() -> None:
    """With just the named capabilities the real program loads: nothing is missing in the list."""
    require_root()
    setpriv = require_program("setpriv", "util-linux")
    names = ",".join("+" + name.removeprefix("CAP_").lower() for name in _CAPABILITIES)
    result = subprocess.run(
        [setpriv, f"--bounding-set=-all,{names}", sys.executable, "-c", _LOAD],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=_ENVIRONMENT,
    )
    assert result.stdout == "loaded\n"


def test_without_privileges_the_refusal_is_clear() -> None:
    """An ordinary user is told which capabilities to get."""
    require_root()
    result = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=_ENVIRONMENT,
    )
    assert result.stdout.startswith(
        "UnsupportedHost missing CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF, CAP_PERFMON: run as"
    )
