# SPDX-License-Identifier: Apache-2.0
"""Kernel, privileges, libraries and the compiled program: what loading needs."""

from __future__ import annotations

import ctypes as ct
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from xdp_router import ebpf
from xdp_router.core import abi

from . import bpf_syscall as bpf
from .bpf_ctypes import BpfError, UnsupportedHost, libbpf
from .bpf_support import effective_capabilities, kernel_version, load_probe, missing_capabilities
from .doctor_finding import Finding, fail, ok, warn
from .loader_bcc import bcc_available
from .loader_object import ObjectProgram
from .map_specs import ProgramMismatch, check_declared
from .pins import NoBpfFs, require_bpffs

_CAP_SYS_ADMIN = 21
_MEMLOCK_FREE = (5, 11)


def check_privileges(daemon_runs: bool) -> Iterator[Finding]:
    """Capabilities of this process, which attaching would have to have."""
    effective = effective_capabilities()
    missing = missing_capabilities(effective)
    if missing:
        say = warn if daemon_runs else fail
        yield say(
            "capabilities",
            "host",
            f"this process lacks {', '.join(missing)}: it could not attach, and parts of this "
            "report are missing",
            "run it as root: sudo xdp-router doctor",
        )
        return
    yield ok(
        "capabilities", "host", "CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON and CAP_NET_RAW are there"
    )
    if not effective >> _CAP_SYS_ADMIN & 1:
        yield ok(
            "foreign_programs",
            "host",
            "without CAP_SYS_ADMIN the names of other XDP programs cannot be read, nor attachments "
            "of others be removed by --replace",
        )


def check_kernel() -> Iterator[Finding]:
    """Whether the kernel takes and translates such programs, and what memory costs."""
    release = platform.release()
    if missing_capabilities(effective_capabilities()):
        yield warn("kernel", "host", f"Linux {release}: not asked, see capabilities", "run as root")
        return
    try:
        fd = load_probe()
    except UnsupportedHost as error:
        yield fail("kernel", "host", str(error), "run a kernel of 5.18 or newer")
        return
    try:
        jited = bpf.prog_info(fd).jited
    finally:
        os.close(fd)
    yield ok("kernel", "host", f"Linux {release} has what the XDP program needs")
    if jited:
        yield ok("jit", "host", "BPF programs are translated into machine code")
    else:
        yield warn(
            "jit",
            "host",
            "the BPF JIT is off: every packet is interpreted, several times slower",
            "sysctl -w net.core.bpf_jit_enable=1 (in the host's own network namespace), then "
            "attach again",
        )
    yield from judge_memlock(kernel_version(), resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])


def judge_memlock(kernel: tuple[int, int], hard_limit: int) -> Iterator[Finding]:
    """Only old kernels charge BPF memory to RLIMIT_MEMLOCK (in bytes, -1: none)."""
    if kernel < _MEMLOCK_FREE and hard_limit != resource.RLIM_INFINITY:
        yield warn(
            "memlock",
            "host",
            f"this kernel charges maps to RLIMIT_MEMLOCK, which is {hard_limit} bytes: they may "
            "be refused with EPERM",
            "attach as root, or with LimitMEMLOCK=infinity in the unit",
        )


def check_bpffs(root: Path) -> Iterator[Finding]:
    """Whether pins can be made under ``root``."""
    try:
        require_bpffs(root)
    except NoBpfFs as error:
        what, _, mend = str(error).rpartition(": ")
        yield fail("bpffs", str(root), what, mend)
        return
    yield ok("bpffs", str(root), "is on a BPF file system")


def check_loaders(object_path: Path = ebpf.OBJECT_PATHS[4]) -> Iterator[Finding]:
    """libbpf, the compiled program, and bcc: at least one way to load must be there."""
    bcc = bcc_available()
    try:
        library = libbpf()
    except UnsupportedHost as error:
        what, _, mend = str(error).rpartition(": ")
        yield fail("libbpf", "host", what, mend)
    else:
        version = library.libbpf_version_string
        version.restype = ct.c_char_p
        yield ok("libbpf", "host", f"libbpf {version().decode().removeprefix('v')}")
        yield _object(object_path, bcc)
    if bcc:
        yield ok("bcc", "host", f"bcc{_bcc_version()} is there: --loader bcc works too")
    else:
        yield ok("bcc", "host", "bcc is not installed: only --loader object, which is the default")


def _object(path: Path, bcc: bool) -> Finding:
    say = warn if bcc else fail
    build = "make build, or install the package again"
    instead = "; until then bcc compiles the source at each start" if bcc else ""
    try:
        data = path.read_bytes()
    except OSError as error:
        text = f"the compiled program cannot be read: {error.strerror}{instead}"
        return say("object", str(path), text, build)
    try:
        program = ObjectProgram(data)
    except BpfError as error:
        return fail("object", str(path), str(error), build)
    try:
        check_declared(program.maps)
    except ProgramMismatch as error:
        return fail("object", str(path), str(error), build)
    finally:
        program.close()
    return ok("object", str(path), f"compiled for this version (ABI {abi.ABI_VERSION})")


def _bcc_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f" {version('bcc')}"
    except PackageNotFoundError:
        return ""
