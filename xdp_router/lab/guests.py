# SPDX-License-Identifier: Apache-2.0
"""Processes in a lab's namespaces that the lab has not started: somebody's own, as a daemon of the
router that was attached there by hand. They are nobody's to end but their owner's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from .processes import Process

_DAEMON = ("xdp-routerd", "xdp_router.daemon.main", "xdp_router.daemon")
_POLL_S = 0.05
_LOSS_S = 5.0
"""A daemon whose pins are gone notices that within a second, and takes itself away."""


@dataclass(frozen=True, slots=True)
class Guest:
    """``process.name``: its command's. ``attached``: it is a daemon of the router; ``pinned``: its
    pins, or others of its files, are in the lab's directory."""

    process: Process
    namespace: str
    attached: bool
    pinned: bool

    def __str__(self) -> str:
        """Who it is, and what has become of it, as it is now."""
        what = "attached in" if self.attached else "in"
        who = f"{self.process.name} (pid {self.process.pid}), {what} {self.namespace}"
        if self.process.alive:
            return (
                f"{who}, was not started by the lab and goes on, without the lab's wires and in a "
                f"namespace without a name: sudo kill {self.process.pid} ends it"
            )
        why = ": its pins were on the lab's file system" if self.pinned and self.attached else ""
        return f"{who}, was not started by the lab and has ended{why}"


def guests(namespaces: Iterable[Path], directory: Path, ours: Collection[int]) -> list[Guest]:
    """Those in the namespaces that are bound to these paths. ``ours``: pids of the lab."""
    inside = {}
    for path in namespaces:
        try:
            inside[_identity(path)] = path.name
        except OSError:
            continue  # it is just a file: its builder was killed
    found = []
    for entry in os.listdir("/proc") if inside else ():
        if not entry.isdigit() or int(entry) in ours or int(entry) == os.getpid():
            continue
        try:
            name = inside.get(_identity(Path(f"/proc/{entry}/ns/net")))
            if name is not None:
                found.append(_guest(int(entry), name, directory))
        except OSError:
            continue  # it ended meanwhile
    return [each for each in found if each.process.alive]


def _guest(pid: int, namespace: str, directory: Path) -> Guest:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    around = Path(f"/proc/{pid}/environ").read_bytes()
    texts = [word.decode(errors="replace") for word in words if word]
    called = [os.path.basename(text) for text in texts[:4]]
    attached = "attach" in texts and any(text in _DAEMON for text in called)
    shown = "xdp-routerd" if attached else (called[0] if called else "a process")
    where = os.fsencode(directory)
    pinned = any(where in text for text in (*words, around))
    return Guest(Process.of(shown, pid), namespace, attached, pinned)


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def wait_for_loss(found: Iterable[Guest], patience_s: float = _LOSS_S) -> None:
    """Until daemons that have lost their pins are gone, as long as that may take."""
    losing = [each.process for each in found if each.attached and each.pinned]
    end = time.monotonic() + patience_s
    while any(each.alive for each in losing) and time.monotonic() < end:
        time.sleep(_POLL_S)
