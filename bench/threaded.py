# SPDX-License-Identifier: Apache-2.0
"""NAPI in a thread of its own: whoever sends does not pay for the receiver.

On veth the sender's CPU does the receiver's work, so a generator is never faster than what it
generates for. In a thread, as on a network card with another CPU for its interrupts, what comes
too fast is lost in the queue (kernel documentation, networking/napi.rst).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from xdp_router.lab import libc
from xdp_router.lab.namespace import Namespace


def thread_napi(namespace: Namespace, ifname: str) -> None:
    """Switch an interface of a namespace to threaded NAPI. Raises OSError."""

    def switch() -> None:
        # Interfaces are seen in the sysfs of their namespace only; nobody else sees this one.
        libc.unshare(libc.CLONE_NEWNS)
        libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
        with TemporaryDirectory(prefix="xdp-router-sys-") as directory:
            libc.mount("sysfs", directory, "sysfs")
            try:
                (Path(directory) / "class/net" / ifname / "threaded").write_text("1")
            finally:
                libc.umount(directory)

    namespace.run(switch)
