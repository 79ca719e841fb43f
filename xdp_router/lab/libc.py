# SPDX-License-Identifier: Apache-2.0
"""The system calls that Python's ``os`` lacks. Each raises OSError with the kernel's errno."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29

_BPF_NUMBER = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def setns(fd: int, kind: int = CLONE_NEWNET) -> None:
    """Move the calling thread into the namespace that ``fd`` refers to."""
    _check(_libc.setns(fd, kind), "setns")


def unshare(kind: int) -> None:
    """Give the calling thread a namespace of its own."""
    _check(_libc.unshare(kind), "unshare")


def mount(source: str, target: str, fstype: str = "", flags: int = 0) -> None:
    """Mount ``source`` on ``target`` in the calling thread's mount namespace."""
    arguments = (source.encode(), target.encode(), fstype.encode() or None)
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None), f"mount {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Unmount ``target``, by default even while it is in use."""
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def prctl(option: int, value: int) -> None:
    """Set one attribute of the calling process."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Issue a bpf system call; the attributes are the packed ``union bpf_attr``."""
    number = _BPF_NUMBER[platform.machine()]
    size = ctypes.sizeof(attributes)
    return _check(
        _libc.syscall(
            ctypes.c_long(number), ctypes.c_int(command), attributes, ctypes.c_uint(size)
        ),
        f"bpf command {command}",
    )
