# SPDX-License-Identifier: Apache-2.0
"""Runs a held first packet through the XDP program again (BPF_PROG_TEST_RUN).

The metadata in front of the frame carries the secret mark in and the egress interface out.
Calls must be made in the network namespace of the ingress interface.
"""

from __future__ import annotations

import ctypes as ct
import errno
import struct

from xdp_router.core import abi

from .bpf_ctypes import BpfError
from .bpf_syscall import BPF_F_TEST_XDP_LIVE_FRAMES, BpfMap, TestRun

XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT = range(5)

_META = abi.REINJECT_META_SIZE
_MARK = struct.Struct("=QQ")
_EGRESS = struct.Struct("=8xI4x")
# The kernel wants frame, metadata, headroom and its own tail in one page.
_FRAME_MAX = 2048
_ETH_HEADER = 14
_FIRST, _NONE = bytes(4), bytes(8)  # slot and value of `leaving`


class _XdpMd(ct.Structure):
    """``struct xdp_md`` as the context of a test run.

    On the way in ``data_meta`` must be 0 and ``data`` is the length of the metadata: a
    multiple of 4, at most 32; ``data_end`` is the length of all that is given.
    """

    _fields_ = [
        ("data", ct.c_uint32),
        ("data_end", ct.c_uint32),
        ("data_meta", ct.c_uint32),
        ("ingress_ifindex", ct.c_uint32),
        ("rx_queue_index", ct.c_uint32),
        ("egress_ifindex", ct.c_uint32),
    ]


class Reinjector:
    """Runs frames through one program. Its buffers are reused: not for two threads."""

    __slots__ = (
        "_ctx_in",
        "_ctx_out",
        "_in",
        "_leaving",
        "_live",
        "_mark",
        "_out",
        "_run",
        "_view_in",
    )

    def __init__(self, prog_fd: int, mark: int, leaving_fd: int | None = None) -> None:
        """``mark``: the ``reinject_mark`` of the ``control`` map; ``leaving_fd``: the map."""
        self._leaving = BpfMap(leaving_fd) if leaving_fd is not None else None
        self._in = ct.create_string_buffer(_META + _FRAME_MAX)
        self._out = ct.create_string_buffer(_META + 2 * _FRAME_MAX)
        self._view_in = memoryview(self._in).cast("B")
        self._mark = _MARK.pack(mark, 0)
        self._ctx_in = _XdpMd(data=_META)
        self._ctx_out = _XdpMd()
        self._run = TestRun(prog_fd, self._in, self._ctx_in, self._out, self._ctx_out)
        self._live = TestRun(prog_fd, self._in, self._ctx_in, flags=BPF_F_TEST_XDP_LIVE_FRAMES)
        self._live.opts.batch_size = 1

    def run(self, frame: bytes, ifindex: int) -> tuple[int, int, bytes]:
        """Run ``frame`` as if it had arrived on ``ifindex``.

        Returns the verdict (``XDP_*``), the egress interface index that the program wrote
        (0: none) and the frame as the program left it. Nothing is sent. Raises BpfError: ENODEV
        when the interface is not in this namespace, EINVAL for a frame of a wrong length.
        """
        length = self._load(frame, ifindex)
        opts, out = self._run.opts, self._out
        opts.data_size_in = length
        opts.data_size_out = len(out)
        opts.ctx_size_out = ct.sizeof(_XdpMd)
        code = self._run.run()
        if code:
            raise _failed(code, ifindex, len(frame))
        # data_out starts at the metadata; a program may have changed its length, or dropped it.
        start = self._ctx_out.data
        raw = ct.string_at(out, opts.data_size_out)
        egress = _EGRESS.unpack_from(raw)[0] if start >= _META else 0
        return opts.retval, egress, raw[start:]

    def left(self) -> None:
        """Say that the datagram of the last run has been sent, or will not be.

        Until then XDP lets no later one of a flow overtake it. Raises BpfError.
        """
        if self._leaving is not None:
            self._leaving.write(_FIRST, _NONE)

    def run_live(self, frame: bytes, ifindex: int) -> None:
        """Run ``frame`` as a live frame: the kernel carries out the verdict itself.

        Success proves nothing: only the program's own counters tell what became of it. Needs
        Linux 5.18, native mode, and a target that takes XDP frames. Raises BpfError as ``run``.
        """
        self._live.opts.data_size_in = self._load(frame, ifindex)
        code = self._live.run()
        if code:
            raise _failed(code, ifindex, len(frame))

    def _load(self, frame: bytes, ifindex: int) -> int:
        if len(frame) > _FRAME_MAX:
            raise _failed(errno.EINVAL, ifindex, len(frame))
        end = _META + len(frame)
        view = self._view_in
        view[:_META] = self._mark
        view[_META:end] = frame
        self._ctx_in.data_end = end
        self._ctx_in.ingress_ifindex = ifindex
        return end


def _failed(code: int, ifindex: int, length: int) -> BpfError:
    action = f"run a frame of {length} bytes through the program on interface index {ifindex}"
    if code == errno.ENODEV:
        return BpfError(code, action, "the interface is not in this network namespace")
    if code == errno.EINVAL and not _ETH_HEADER <= length <= _FRAME_MAX:
        return BpfError(code, action, f"expected {_ETH_HEADER} to {_FRAME_MAX} bytes")
    return BpfError(code, action)
