# SPDX-License-Identifier: Apache-2.0
"""Attaching the entry program to an interface, by a BPF link.

All functions act in the calling thread's network namespace.
"""

from __future__ import annotations

import enum
import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from xdp_router.core.errors import XdpRouterError

from . import bpf_syscall as bpf
from .bpf_ctypes import BpfError


class AttachMode(enum.Enum):
    """Where the program runs: in the driver, or in the network stack (slower, any driver)."""

    NATIVE = "native"
    GENERIC = "generic"


_FLAGS = {AttachMode.NATIVE: bpf.XDP_FLAGS_DRV_MODE, AttachMode.GENERIC: bpf.XDP_FLAGS_SKB_MODE}


# What the kernel calls the program of any xdp-router.
_OUR_NAME = "xdp_router"


class AlreadyAttached(XdpRouterError):
    """Another XDP program is on the interface; ``prog_id`` and ``prog_name`` say which."""

    def __init__(self, interface: str, prog_id: int, prog_name: str) -> None:
        self.interface, self.prog_id, self.prog_name = interface, prog_id, prog_name
        called = f" ({prog_name})" if prog_name else ""
        mend = "remove it, or attach with --replace"
        if prog_name == _OUR_NAME:
            mend = (
                "it is a router's whose pins are not here (--pins, or their file system was "
                f"unmounted): stop or detach that one; or {mend.removeprefix('remove it, or ')}"
            )
        super().__init__(
            f"{interface}: another XDP program is attached, id {prog_id}{called}: {mend}"
        )


class AttachFailed(XdpRouterError):
    """The kernel or the driver refused the program on this interface."""


@dataclass(slots=True)
class XdpLink:
    """An attachment. Lives as long as its fd or its pin does.

    ``mode`` is what the kernel reports after attaching. ``fallback_reason``: why it is generic
    although native would have been taken; empty otherwise.
    """

    interface: str
    ifindex: int
    fd: int
    mode: AttachMode
    fallback_reason: str = ""

    def pin(self, path: Path) -> None:
        """Pin the link, so that it outlives this process."""
        bpf.pin(self.fd, str(path))

    def update(self, prog_fd: int) -> None:
        """Replace the program without a gap."""
        bpf.link_update(self.fd, prog_fd)

    def detach(self) -> None:
        """Take the program off the interface, whoever else holds the link."""
        bpf.link_detach(self.fd)

    def close(self) -> None:
        """Close the fd; the program stays attached if the link is pinned."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def attach(
    prog_fd: int, interface: str, ifindex: int, mode: AttachMode | None, replace: bool = False
) -> XdpLink:
    """Attach and report the mode that was really got.

    ``mode`` None: native, else generic. ``replace``: first remove any other program, which
    leaves a moment without one. Raises AlreadyAttached or AttachFailed, each naming the
    interface.
    """
    try:
        socket.if_indextoname(ifindex)
    except OSError as cause:
        raise AttachFailed(f"{interface}: the interface is gone") from cause
    other = bpf.xdp_query(ifindex).prog_id
    if other and not replace:
        raise AlreadyAttached(interface, other, program_name(other))
    if other:
        _remove_other(interface, ifindex)
    reason = ""
    try:
        fd = bpf.link_create(prog_fd, ifindex, _FLAGS[mode or AttachMode.NATIVE])
    except BpfError as cause:
        if mode is not None or cause.errno in _NO_FALLBACK:
            raise _refused(interface, ifindex, mode or AttachMode.NATIVE, cause) from cause
        reason = _explain(interface, cause)
        try:
            fd = bpf.link_create(prog_fd, ifindex, _FLAGS[AttachMode.GENERIC])
        except BpfError as second:
            raise _refused(interface, ifindex, AttachMode.GENERIC, second) from second
    return XdpLink(interface, ifindex, fd, attached_mode(ifindex, fd), reason)


def open_link(path: Path, interface: str) -> XdpLink:
    """Open a pinned attachment. Raises BpfError.

    ``ifindex`` is 0 when the interface is gone or the link was detached.
    """
    fd = bpf.open_pinned(str(path))
    try:
        info = bpf.link_info(fd)
        return XdpLink(interface, info.ifindex, fd, attached_mode(info.ifindex, fd))
    except BaseException:
        os.close(fd)
        raise


def attached_mode(ifindex: int, link_fd: int) -> AttachMode:
    """The mode in which a link's program runs, as the kernel reports it."""
    if ifindex:
        state = bpf.xdp_query(ifindex)
        if state.generic_prog_id == bpf.link_info(link_fd).prog_id:
            return AttachMode.GENERIC
    return AttachMode.NATIVE


def program_name(prog_id: int) -> str:
    """Name of a loaded program; empty when it may not be asked for."""
    try:
        fd = bpf.prog_by_id(prog_id)
    except BpfError:
        return ""
    try:
        return bpf.prog_info(fd).name
    finally:
        os.close(fd)


# A generic attachment would fail for the same cause, or hide it.
_NO_FALLBACK = {errno.EBUSY, errno.EEXIST, errno.EPERM, errno.ENODEV, errno.EBADF}


def _explain(interface: str, error: BpfError) -> str:
    code = error.errno or 0
    text = os.strerror(code)
    if code in (errno.EOPNOTSUPP, errno.ENOTSUP):
        return "its driver has no native XDP"
    if code in (errno.EINVAL, errno.ERANGE, errno.EMSGSIZE):
        try:
            mtu = Path(f"/sys/class/net/{interface}/mtu").read_text().strip()
        except OSError:
            mtu = ""
        at = f" (it is {mtu})" if mtu else ""
        return (
            f"its driver refused: {text}; usual causes: an MTU over 3498{at}, LRO or GRO_HW on, "
            "too few queues; dmesg may say more"
        )
    return text


def _refused(
    interface: str, ifindex: int, mode: AttachMode, error: BpfError
) -> AlreadyAttached | AttachFailed:
    if error.errno in (errno.EBUSY, errno.EEXIST):
        other = bpf.xdp_query(ifindex).prog_id
        return AlreadyAttached(interface, other, program_name(other) if other else "")
    mend = ": try --xdp-mode auto or generic" if mode is AttachMode.NATIVE else ""
    reason = _explain(interface, error)
    return AttachFailed(f"{interface}: cannot attach in {mode.value} mode, {reason}{mend}")


def _remove_other(interface: str, ifindex: int) -> None:
    """Remove every program from an interface, attached by a link or without one."""
    state = bpf.xdp_query(ifindex)
    for prog_id, flag in (
        (state.native_prog_id, bpf.XDP_FLAGS_DRV_MODE),
        (state.generic_prog_id, bpf.XDP_FLAGS_SKB_MODE),
    ):
        if not prog_id:
            continue
        try:
            bpf.xdp_clear(ifindex, flag)
        except BpfError as cause:
            # A link is not removed by netlink; its id is found by looking at all of them.
            if not _detach_links(ifindex, prog_id):
                raise AttachFailed(
                    f"{interface}: program {prog_id} ({program_name(prog_id)}) cannot be removed: "
                    f"{cause}"
                ) from cause


def _detach_links(ifindex: int, prog_id: int) -> bool:
    """Detach the links of a program on an interface; False when there was none.

    A link's information has no network namespace: interface index and program id together
    identify it, and the search ends as soon as the interface is free.
    """
    for link_id in list(bpf.ids("link")):
        try:
            fd = bpf.link_by_id(link_id)
        except BpfError:
            continue  # gone meanwhile
        try:
            info = bpf.link_info(fd)
            if info.ifindex == ifindex and info.prog_id == prog_id:
                bpf.link_detach(fd)
                if prog_id not in (
                    bpf.xdp_query(ifindex).native_prog_id,
                    bpf.xdp_query(ifindex).generic_prog_id,
                ):
                    return True
        finally:
            os.close(fd)
    return False
