# SPDX-License-Identifier: Apache-2.0
"""Runs a test in a network namespace of its own that no name or file holds.

The namespace belongs to a thread: it goes with the thread and the sockets made in it, even
if the test run is killed.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute

from tests.support.privileges import require_root

_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWNET = 0x200, 0x20000, 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_IFA_F_TENTATIVE = 0x40
_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def in_fresh_netns(test: Callable[..., _Result]) -> Callable[..., _Result]:
    """Decorator: run the function in a new thread, in a new network namespace."""

    @functools.wraps(test)
    def wrapper(*args: object, **kwargs: object) -> _Result:
        require_root()
        results: list[_Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                _call("unshare", _CLONE_NEWNET)
                results.append(test(*args, **kwargs))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name=test.__name__)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return wrapper


def open_netns() -> int:
    """File descriptor of the calling thread's network namespace; the caller closes it."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_netns(fd: int) -> None:
    """Move the calling thread into a network namespace."""
    _call("setns", fd, _CLONE_NEWNET)


def make_sysctls_read_only() -> None:
    """As in a container, for the calling thread alone; its mounts are its own from here on."""
    _call("unshare", _CLONE_FS | _CLONE_NEWNS)

    def mount(path: bytes, flags: int) -> None:
        if _libc.mount(path, path, None, flags, None):
            raise OSError(ctypes.get_errno(), f"mount: {path!r}")

    mount(b"/", _MS_REC | _MS_PRIVATE)
    mount(b"/proc/sys", _MS_BIND)
    mount(b"/proc/sys", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


@dataclass(frozen=True)
class Wire:
    """A veth pair: ``near`` in this namespace, ``far`` in another one, ``far_ns`` its fd."""

    near: int
    far: int
    near_name: str
    far_ns: int

    def far_link(self, **change: object) -> None:
        """Change the far end, such as ``state="down"`` or ``address="02:..."``."""
        self.at_far(lambda ipr: ipr.link("set", index=self.far, **change))

    def at_far(self, action: Callable[[IPRoute], object]) -> None:
        """Run an action with a netlink socket of the far namespace."""
        here = open_netns()
        try:
            enter_netns(self.far_ns)
            with IPRoute() as ipr:
                action(ipr)
        finally:
            enter_netns(here)
            os.close(here)


def _wait_operational(ipr: IPRoute, index: int) -> None:
    deadline = time.monotonic() + 5
    while ipr.link("get", index=index)[0].get_attr("IFLA_OPERSTATE") != "UP":
        if time.monotonic() > deadline:
            raise TimeoutError(f"interface {index} has no carrier after 5 s")
        time.sleep(0.005)


def wait_for_ipv6(ipr: IPRoute, index: int) -> None:
    """Until an interface's IPv6 addresses can be used: without detection of duplicates, too, the
    kernel takes a moment for that."""
    deadline = time.monotonic() + 5
    while any(
        (each.get_attr("IFA_FLAGS") or 0) & _IFA_F_TENTATIVE
        for each in ipr.get_addr(family=socket.AF_INET6, index=index)
    ):
        if time.monotonic() > deadline:
            raise TimeoutError(f"an IPv6 address of interface {index} is tentative after 5 s")
        time.sleep(0.002)


def _length(addr: str) -> int:
    return 64 if ":" in addr else 24


def _no_duplicate_detection() -> None:
    """Or nobody answers for an IPv6 address in its first second or two."""
    Path("/proc/sys/net/ipv6/conf/default/accept_dad").write_text("0")


def make_wire(
    ipr: IPRoute, name: str, near_addr: str | None, far_addr: str | None, far_ns: int | None = None
) -> Wire:
    """Lay a veth pair to a new namespace (or ``far_ns``), with addresses on its ends, of a /24
    or /64. IPv6 addresses may be used at once in both namespaces, from here on."""
    if far_ns is None:
        here = open_netns()
        _call("unshare", _CLONE_NEWNET)
        far_ns = open_netns()
        enter_netns(here)
        os.close(here)
    _no_duplicate_detection()
    here = open_netns()
    enter_netns(far_ns)
    _no_duplicate_detection()
    enter_netns(here)
    os.close(here)
    far_name = f"{name}p"
    ipr.link("add", ifname=name, kind="veth", peer={"ifname": far_name, "net_ns_fd": far_ns})
    near = ipr.link_lookup(ifname=name)[0]
    far: list[int] = []

    def set_up(other: IPRoute) -> None:
        far.append(other.link_lookup(ifname=far_name)[0])
        if far_addr:
            other.addr("add", index=far[0], address=far_addr, prefixlen=_length(far_addr))
        other.link("set", index=far[0], state="up")

    wire = Wire(near, 0, name, far_ns)
    wire.at_far(set_up)
    if near_addr:
        ipr.addr("add", index=near, address=near_addr, prefixlen=_length(near_addr))
    ipr.link("set", index=near, state="up")
    # Until the kernel has noticed the carrier an end drops silently what it should send.
    wire.at_far(lambda other: _wait_operational(other, far[0]))
    _wait_operational(ipr, near)
    wire.at_far(lambda other: wait_for_ipv6(other, far[0]))
    wait_for_ipv6(ipr, near)
    return Wire(near, far[0], name, far_ns)
