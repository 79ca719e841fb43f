# SPDX-License-Identifier: Apache-2.0
"""libbpf by ctypes: its option structs, its functions' signatures, its errors as ours."""

from __future__ import annotations

import ctypes as ct
import errno
import functools
import os
from collections.abc import Callable

from xdp_router.core.errors import XdpRouterError


class BpfError(XdpRouterError, OSError):
    """A bpf call failed; ``errno`` says why, ``action`` what was tried."""

    def __init__(self, code: int, action: str, hint: str = "") -> None:
        self.action = action
        text = f"cannot {action}: {os.strerror(code)}" + (f" ({hint})" if hint else "")
        OSError.__init__(self, code, text)

    def __str__(self) -> str:
        return str(self.strerror)


class VerifierError(BpfError):
    """The kernel refused a program. ``log`` is the verifier's full log."""

    def __init__(self, code: int, action: str, log: str) -> None:
        self.log = log
        lines = [line for line in log.splitlines() if line.strip()]
        # The last line is statistics when there is one; the reason stands just before it.
        summary = " | ".join(line.strip() for line in lines[-4:])
        super().__init__(code, action, summary or "the verifier left no log")


class UnsupportedHost(XdpRouterError):
    """This host cannot run the data plane; the message names what is missing."""


class MapCreateOpts(ct.Structure):
    _fields_ = [
        ("sz", ct.c_size_t),
        ("btf_fd", ct.c_uint32),
        ("btf_key_type_id", ct.c_uint32),
        ("btf_value_type_id", ct.c_uint32),
        ("btf_vmlinux_value_type_id", ct.c_uint32),
        ("inner_map_fd", ct.c_uint32),
        ("map_flags", ct.c_uint32),
        ("map_extra", ct.c_uint64),
        ("numa_node", ct.c_uint32),
        ("map_ifindex", ct.c_uint32),
    ]


class ProgLoadOpts(ct.Structure):
    _fields_ = [
        ("sz", ct.c_size_t),
        ("attempts", ct.c_int),
        ("expected_attach_type", ct.c_uint32),
        ("prog_btf_fd", ct.c_uint32),
        ("prog_flags", ct.c_uint32),
        ("prog_ifindex", ct.c_uint32),
        ("kern_version", ct.c_uint32),
        ("attach_btf_id", ct.c_uint32),
        ("attach_prog_fd", ct.c_uint32),
        ("attach_btf_obj_fd", ct.c_uint32),
        ("fd_array", ct.c_void_p),
        ("func_info", ct.c_void_p),
        ("func_info_cnt", ct.c_uint32),
        ("func_info_rec_size", ct.c_uint32),
        ("line_info", ct.c_void_p),
        ("line_info_cnt", ct.c_uint32),
        ("line_info_rec_size", ct.c_uint32),
        ("log_level", ct.c_uint32),
        ("log_size", ct.c_uint32),
        ("log_buf", ct.c_void_p),
    ]


class LinkCreateOpts(ct.Structure):
    _fields_ = [
        ("sz", ct.c_size_t),
        ("flags", ct.c_uint32),
        ("iter_info", ct.c_void_p),
        ("iter_info_len", ct.c_uint32),
        ("target_btf_id", ct.c_uint32),
        ("unused", ct.c_uint64 * 5),
    ]


class TestRunOpts(ct.Structure):
    _fields_ = [
        ("sz", ct.c_size_t),
        ("data_in", ct.c_void_p),
        ("data_out", ct.c_void_p),
        ("data_size_in", ct.c_uint32),
        ("data_size_out", ct.c_uint32),
        ("ctx_in", ct.c_void_p),
        ("ctx_out", ct.c_void_p),
        ("ctx_size_in", ct.c_uint32),
        ("ctx_size_out", ct.c_uint32),
        ("retval", ct.c_uint32),
        ("repeat", ct.c_int),
        ("duration", ct.c_uint32),
        ("flags", ct.c_uint32),
        ("cpu", ct.c_uint32),
        ("batch_size", ct.c_uint32),
    ]


class XdpQueryOpts(ct.Structure):
    _fields_ = [
        ("sz", ct.c_size_t),
        ("prog_id", ct.c_uint32),
        ("drv_prog_id", ct.c_uint32),
        ("hw_prog_id", ct.c_uint32),
        ("skb_prog_id", ct.c_uint32),
        ("attach_mode", ct.c_uint8),
    ]


_FD, _U32, _U64, _PTR, _BYTES = ct.c_int, ct.c_uint32, ct.c_uint64, ct.c_void_p, ct.c_char_p
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "bpf_map_create": (_U32, _BYTES, _U32, _U32, _U32, _PTR),
    "bpf_map_update_elem": (_FD, _BYTES, _BYTES, _U64),
    "bpf_map_lookup_elem": (_FD, _BYTES, _PTR),
    "bpf_map_delete_elem": (_FD, _BYTES),
    "bpf_map_get_next_key": (_FD, _BYTES, _PTR),
    "bpf_map_lookup_batch": (_FD, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR),
    "bpf_map_update_batch": (_FD, _BYTES, _BYTES, _PTR, _PTR),
    "bpf_prog_load": (_U32, _BYTES, _BYTES, _PTR, ct.c_size_t, _PTR),
    "bpf_obj_pin": (_FD, _BYTES),
    "bpf_obj_get": (_BYTES,),
    "bpf_obj_get_info_by_fd": (_FD, _PTR, _PTR),
    "bpf_link_create": (_FD, _FD, _U32, _PTR),
    "bpf_link_update": (_FD, _FD, _PTR),
    "bpf_link_detach": (_FD,),
    "bpf_link_get_next_id": (_U32, _PTR),
    "bpf_link_get_fd_by_id": (_U32,),
    "bpf_prog_get_next_id": (_U32, _PTR),
    "bpf_prog_get_fd_by_id": (_U32,),
    "bpf_prog_test_run_opts": (_FD, _PTR),
    "bpf_xdp_query": (_FD, ct.c_int, _PTR),
    "bpf_xdp_detach": (_FD, _U32, _PTR),
}


@functools.cache
def libbpf() -> ct.CDLL:
    """libbpf, with its messages silenced. Raises UnsupportedHost when it is not installed."""
    try:
        library = ct.CDLL("libbpf.so.1")
    except OSError as cause:
        raise UnsupportedHost(
            "libbpf.so.1 (libbpf 1.0 or newer) is not installed: "
            "install the package libbpf1 (Debian, Ubuntu) or libbpf (Fedora)"
        ) from cause
    library.libbpf_set_print.argtypes = (_PTR,)
    library.libbpf_set_print.restype = _PTR
    library.libbpf_set_print(None)
    return library


@functools.cache
def function(name: str) -> Callable[..., int]:
    function = libbpf()[name]
    function.argtypes = _SIGNATURES[name]
    function.restype = ct.c_int
    return function


def checked(action: str, name: str, *arguments: object) -> int:
    """Call; libbpf 1.0 returns -errno itself, so thread-local errno is not needed."""
    result = function(name)(*arguments)
    if result < 0:
        raise BpfError(-result, action, hint(-result))
    return result


def hint(code: int) -> str:
    if code == errno.EPERM:
        return "needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run it as root"
    return ""
