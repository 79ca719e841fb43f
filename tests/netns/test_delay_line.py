# SPDX-License-Identifier: Apache-2.0
"""The delay line: how exact it is, what it changes at run time, and that it loses nothing."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import pytest

from tests.netns.test_lab import echo
from tests.support.netns import LabFactory, wait_for
from xdp_router.lab import BackendSpec, Lab, LabError, LabSpec, Stall

pytest_plugins = ("tests.support.netns",)

MS = 1_000_000
SAMPLES = 100
LINE = LabSpec((BackendSpec("b1", delay_line=True),))


def round_trips(lab: Lab, backend: int, count: int = SAMPLES, gap: float = 0.002) -> list[float]:
    """Sorted TCP connect times in milliseconds."""
    address = lab.addresses.backends[backend]
    times = []
    for _ in range(count):
        with lab.client.socket() as peer:
            peer.settimeout(5)
            started = time.perf_counter_ns()
            peer.connect(address)
            times.append((time.perf_counter_ns() - started) / MS)
        time.sleep(gap)
    return sorted(times)


@pytest.mark.parametrize("delay_ms", [1, 5, 20])
def test_delay_is_exact(
    make_lab: LabFactory, delay_ms: int, record_property: Callable[[str, object], None]
) -> None:
    """The median round trip over a line is the nominal delay within 0.3 ms."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_ns=delay_ms * MS),)))
    round_trips(lab, 0, 20)  # ARP, and the line learns its own cost
    for _attempt in range(3):
        times = round_trips(lab, 0)
        p50, p99 = times[SAMPLES // 2], times[SAMPLES * 99 // 100]
        record_property("rtt_ms", {"samples": SAMPLES, "p50": p50, "p99": p99})
        if abs(p50 - delay_ms) < 0.3:
            break
    print(f"{delay_ms} ms line, {SAMPLES} connects: p50 {p50:.3f} p99 {p99:.3f} ms")
    assert abs(p50 - delay_ms) < 0.3
    assert lab.delay_counts(0)["lost"] == 0


def test_delay_can_be_changed(make_lab: LabFactory) -> None:
    """set_delay holds for frames from then on, up and down."""
    lab = make_lab(LINE)
    round_trips(lab, 0, 20)
    assert round_trips(lab, 0, 11)[5] < 1
    lab.set_delay(0, 0.030)
    assert 29 < round_trips(lab, 0, 5)[2] < 35
    lab.set_delay("b1", 0)
    time.sleep(0.05)
    assert round_trips(lab, 0, 11)[5] < 1


def test_stall_slows_its_share_of_time(make_lab: LabFactory) -> None:
    """With 20 ms for 50 of each 100 ms about half of the connects are slow, and none when over."""
    lab = make_lab(LINE)
    lab.set_stall(0, Stall(extra_ns=20 * MS, window_ns=50 * MS, period_ns=100 * MS))
    started = time.monotonic()
    slow = 0.0
    while time.monotonic() - started < 1.5:
        slow += sum(rtt for rtt in round_trips(lab, 0, 10, gap=0.005) if rtt > 5)
    share = slow / 1000 / (time.monotonic() - started)
    assert 0.2 < share < 0.9
    lab.set_stall(0, None)
    time.sleep(0.05)
    assert round_trips(lab, 0, 30)[28] < 10


def test_frames_stay_in_order(make_lab: LabFactory) -> None:
    """Frames leave in the order in which they came, also when the delay shrinks meanwhile."""
    lab = make_lab(LINE)
    ethertype = 0x88B5
    head = bytes.fromhex("0258520101020258520101" + "01") + struct.pack("!H", ethertype)
    with (
        lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender,
        lab.backends[0].socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ethertype)
        ) as receiver,
    ):
        sender.bind(("be1", 0))
        receiver.settimeout(3)
        receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 20)  # SO_RCVBUFFORCE: all 300 at once
        lab.set_delay(0, 0.050)
        for number in range(300):
            if number == 150:
                # Let the line read the first half with the old delay.
                wait_for(lambda: lab.delay_counts(0)["queued"] == 150, message="150 are queued")
                lab.set_delay(0, 0)
            sender.send(head + struct.pack("!I", number) + bytes(50))
        arrived = [struct.unpack_from("!I", receiver.recv(2000), 14)[0] for _ in range(300)]
    assert arrived == list(range(300))


def test_ten_megabytes_through_a_line(make_lab: LabFactory) -> None:
    """A 10 MB echo through a delayed line takes seconds, and no byte is lost."""
    lab = make_lab(LabSpec((BackendSpec("b1", delay_ns=2 * MS),)))
    payload = bytes(range(250)) * 40_000
    with lab.client.connect(lab.addresses.backends[0], timeout=30) as peer:
        started = time.monotonic()
        assert echo(peer, payload) == payload
    took = time.monotonic() - started
    print(f"10 MB echo over a 2 ms line: {took:.2f} s, {lab.delay_counts(0)}")
    assert took < 20


def test_directly_wired_backend_has_no_delay(make_lab: LabFactory) -> None:
    """Setting a delay where there is no line names the mend."""
    lab = make_lab(LabSpec((BackendSpec("b1"),)))
    assert lab.delays == (None,)
    with pytest.raises(LabError, match="delay_line=True"):
        lab.set_delay(0, 0.001)
    with pytest.raises(LabError, match="must not be negative"):
        lab.set_delay(0, -1)
