# SPDX-License-Identifier: Apache-2.0
"""Frames run through a program: metadata in and out, verdict, rewritten bytes, live frames."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import compile_object, trivial_program
from tests.support.fresh_netns import in_fresh_netns, make_wire
from tests.support.netns import wait_for
from tests.support.privileges import require_kernel, require_root
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.reinject import XDP_DROP, XDP_PASS, XDP_REDIRECT, Reinjector

MARK = 0x1122334455667788
LOOPBACK = 1

# Stands in for the router: believes the mark, writes an egress, changes and grows the frame.
_SOURCE = """
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"
char _license[] SEC("license") = "GPL";

static __always_inline struct reinject_meta *marked(struct xdp_md *ctx)
{
	struct reinject_meta *meta = (void *)(long)ctx->data_meta;

	if ((void *)(meta + 1) > (void *)(long)ctx->data || meta->mark != 0x1122334455667788ULL)
		return 0;
	return meta;
}

SEC("xdp") int echo(struct xdp_md *ctx)
{
	struct reinject_meta *meta = marked(ctx);
	__u8 *data = (void *)(long)ctx->data;

	if (!meta)
		return XDP_DROP;
	if (data + 14 > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	meta->egress_ifindex = ctx->ingress_ifindex + 100;
	data[0] = 0xab;
	return XDP_REDIRECT;
}

SEC("xdp") int grow(struct xdp_md *ctx)
{
	if (!marked(ctx) || bpf_xdp_adjust_tail(ctx, 20))
		return XDP_DROP;
	return XDP_PASS;
}

SEC("xdp") int strip(struct xdp_md *ctx)
{
	if (!marked(ctx) || bpf_xdp_adjust_meta(ctx, sizeof(struct reinject_meta)))
		return XDP_DROP;
	return XDP_PASS;
}

SEC("xdp") int send(struct xdp_md *ctx)
{
	return marked(ctx) ? bpf_redirect(ctx->ingress_ifindex, 0) : XDP_DROP;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The stand-in's programs by name."""
    require_root()
    program = ObjectLoader(compile_object(_SOURCE, tmp_path_factory.mktemp("run"))).open()
    fds = program.load({})
    program.close()
    yield fds
    for fd in fds.values():
        os.close(fd)


@pytest.mark.parametrize("length", [14, 60, 1514, 1520])
def test_mark_goes_in_and_egress_comes_out(length: int, programs: dict[str, int]) -> None:
    """The program sees the mark and the ingress; verdict, egress and changed frame come back."""
    frame = bytes(i & 0xFF for i in range(length))
    result = Reinjector(programs["echo"], MARK).run(frame, LOOPBACK)
    assert result == (XDP_REDIRECT, LOOPBACK + 100, b"\xab" + frame[1:])


def test_buffers_do_not_leak_between_frames(programs: dict[str, int]) -> None:
    """Frames of changing length come back whole, and an old egress is not given again."""
    runner = Reinjector(programs["echo"], MARK)
    runner.run(bytes([7]) * 1514, LOOPBACK)
    assert runner.run(bytes(60), LOOPBACK) == (XDP_REDIRECT, 101, b"\xab" + bytes(59))
    assert len(runner.run(bytes(1514), LOOPBACK)[2]) == 1514
    unmarked = Reinjector(programs["echo"], MARK + 1)
    assert unmarked.run(bytes(60), LOOPBACK) == (XDP_DROP, 0, bytes(60))


def test_a_program_may_change_the_lengths(programs: dict[str, int]) -> None:
    """A grown frame comes back grown; stripped metadata is no egress and no part of the frame."""
    frame = bytes(range(60))
    verdict, egress, grown = Reinjector(programs["grow"], MARK).run(frame, LOOPBACK)
    assert (verdict, egress, grown) == (XDP_PASS, 0, frame + bytes(20))
    assert Reinjector(programs["strip"], MARK).run(frame, LOOPBACK) == (XDP_PASS, 0, frame)


@pytest.mark.parametrize(
    ("length", "ifindex", "code", "words"),
    [
        (60, 999_999, errno.ENODEV, "not in this network namespace"),
        (13, LOOPBACK, errno.EINVAL, "expected 14 to 2048 bytes"),
        (5000, LOOPBACK, errno.EINVAL, "expected 14 to 2048 bytes"),
    ],
)
def test_what_cannot_be_run(
    length: int, ifindex: int, code: int, words: str, programs: dict[str, int]
) -> None:
    """An unknown interface and a frame of a wrong length are errors that say so."""
    with pytest.raises(BpfError, match=words) as caught:
        Reinjector(programs["echo"], MARK).run(bytes(length), ifindex)
    assert caught.value.errno == code


@in_fresh_netns
def test_live_frames_are_sent_by_the_kernel(programs: dict[str, int]) -> None:
    """A live frame that is redirected arrives at the other end of the wire, without metadata."""
    require_kernel(5, 18, "live frames")
    from xdp_router.adapters.xdp_link import AttachMode, attach

    with IPRoute() as ipr:
        wire = make_wire(ipr, "live0", None, None)
    passes = trivial_program("passes")
    link = attach(passes, "live0", wire.near, AttachMode.NATIVE)
    far: list[socket.socket] = []

    def prepare(ipr: IPRoute) -> None:
        far.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)))
        far[0].setblocking(False)
        # Frames that are redirected into a veth need NAPI at its other end.
        far_link = attach(passes, "live0p", wire.far, AttachMode.NATIVE)
        links.append(far_link)

    links = [link]
    wire.at_far(prepare)
    frame = b"\xff" * 6 + b"\x02\0\0\0\0\1" + b"\x88\xb5" + bytes(range(46))
    runner = Reinjector(programs["send"], MARK)
    runner.run_live(frame, wire.near)

    def received() -> bytes:
        try:
            return far[0].recv(2048)
        except BlockingIOError:
            return b""

    assert wait_for(received, 2, "the live frame arrives") == frame
    far[0].close()
    for each in links:
        each.close()
    os.close(passes)
    os.close(wire.far_ns)


def test_cost_of_a_run(
    programs: dict[str, int], record_property: Callable[[str, object], None]
) -> None:
    """Running a SYN costs microseconds; the figures are reported, the bound is loose."""
    frame = bytes(74)
    runner = Reinjector(programs["echo"], MARK)
    count = 2000
    start = time.perf_counter_ns()
    for _ in range(count):
        runner.run(frame, LOOPBACK)
    run_us = (time.perf_counter_ns() - start) / count / 1e3
    dropping = Reinjector(programs["echo"], MARK + 1)
    start = time.perf_counter_ns()
    for _ in range(count):
        dropping.run_live(frame, LOOPBACK)
    live_us = (time.perf_counter_ns() - start) / count / 1e3
    record_property("run_us", run_us)
    record_property("live_us", live_us)
    print(f"test run: {run_us:.1f} us, live frame: {live_us:.1f} us")
    assert run_us < 500
