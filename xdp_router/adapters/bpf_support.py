# SPDX-License-Identifier: Apache-2.0
"""May this process load the data plane, and can this kernel run it?"""

from __future__ import annotations

import errno
import os
import platform
import resource
import struct
from pathlib import Path

from .bpf_ctypes import UnsupportedHost, VerifierError
from .bpf_syscall import prog_load

_HELPER_XDP_LOAD_BYTES = 189
# CAP_PERFMON: without it the verifier refuses the comparison of packet pointers.
# CAP_NET_RAW: for the AF_PACKET socket, by which probes and held first packets leave.
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_BPF": 39, "CAP_PERFMON": 38}
_NOT_IN_SYS_ADMIN = ("CAP_NET_ADMIN", "CAP_NET_RAW")
_CAP_SYS_ADMIN = 21


def missing_capabilities(effective: int) -> list[str]:
    """Names of the capabilities that loading and attaching need and ``effective`` lacks."""
    if effective >> _CAP_SYS_ADMIN & 1:
        needed = {name: _CAPABILITIES[name] for name in _NOT_IN_SYS_ADMIN}
    else:
        needed = _CAPABILITIES
    return [name for name, bit in needed.items() if not effective >> bit & 1]


def effective_capabilities() -> int:
    """Bits of the capabilities that this process has now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def require_support() -> None:
    """Raise UnsupportedHost unless this process may and this kernel can run the data plane."""
    missing = missing_capabilities(effective_capabilities())
    if missing:
        raise UnsupportedHost(
            f"missing {', '.join(missing)}: run as root, "
            "or give the service these capabilities (AmbientCapabilities=)"
        )
    if kernel_version() < (5, 11):  # BPF memory was charged to RLIMIT_MEMLOCK until then
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    os.close(load_probe())


def load_probe() -> int:
    """Fd of a small program that needs what the router's need; the caller closes it.

    Raises UnsupportedHost. Asked of the kernel, not of its version: distributions backport.
    The newest helper that the program uses stands for all.
    """
    # r1 = ctx, copy 4 bytes to the stack, return XDP_PASS.
    code = [
        (0xB7, 2, 0, 0, 0),
        (0xBF, 3, 10, 0, 0),
        (0x07, 3, 0, 0, -8),
        (0xB7, 4, 0, 0, 4),
        (0x85, 0, 0, 0, _HELPER_XDP_LOAD_BYTES),
        (0xB7, 0, 0, 0, 2),
        (0x95, 0, 0, 0, 0),
    ]
    packed = b"".join(struct.pack("=BBhi", o, d | s << 4, f, i) for o, d, s, f, i in code)
    try:
        return prog_load("xr_probe", packed, "GPL")
    except VerifierError as cause:
        release = platform.release()
        if cause.errno == errno.EPERM:
            raise UnsupportedHost(
                "the kernel refuses bpf() to this process although it has the capabilities: "
                "run it in the initial user namespace, and check seccomp and LSM policies"
            ) from cause
        raise UnsupportedHost(
            f"kernel {release} is too old or lacks BPF: "
            "Linux 5.18 or newer with CONFIG_BPF_SYSCALL is needed (bpf_xdp_load_bytes)"
        ) from cause


def kernel_version() -> tuple[int, int]:
    """Major and minor number of the running kernel."""
    major, minor = platform.release().split(".")[:2]
    digits = "".join(c for c in minor if c.isdigit())
    return int(major), int(digits or 0)
