# SPDX-License-Identifier: Apache-2.0
"""The flood's own programs: who they pretend to be, what they answer, whom they leave alone."""

from __future__ import annotations

import ctypes as ct
import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bench import programs
from bench.forged import COUNTERS, FORGED, config_value, first_packet
from bench.frames import PROTO_TCP, PROTO_UDP, SYN
from bench.traffic import Traffic
from tests.support.bench_frames import is_right, segment_of
from tests.support.program import DROP, PASS, REDIRECT
from xdp_router.adapters import bpf_syscall as bpf

ROUTER, SENDER = bytes.fromhex("025852030001"), bytes.fromhex("025852030002")
SYN_ACK = 0x12


@dataclass(frozen=True)
class Flood:
    """The loaded programs of one family and the service that they flood."""

    family: int
    loaded: programs.Programs

    @property
    def target(self) -> tuple[int, int]:
        """The service."""
        service = Traffic(self.family).service
        return service.addr, service.port

    def run(self, program: str, frame: bytes) -> tuple[int, bytes]:
        """One run's verdict, and the frame as it is then."""
        data = ct.create_string_buffer(frame, len(frame))
        out = ct.create_string_buffer(len(frame))
        run = bpf.TestRun(self.loaded.programs[program], data, data_out=out)
        assert run.run() == 0
        return run.opts.retval, out.raw

    def forge(self, proto: int, random: int) -> bytes:
        """The first packet of somebody who is not there."""
        frame = first_packet(ROUTER, SENDER, self.target, proto)
        config = bpf.BpfMap(self.loaded.maps["flood_config"])
        config.write(bytes(programs.U32), config_value(random, frame, proto))
        verdict, forged = self.run("forge", bytes(len(frame)))
        assert verdict == REDIRECT
        return forged

    def counted(self) -> list[int]:
        """Each counter, over all CPUs."""
        counts = bpf.BpfMap(self.loaded.maps["flood_counts"])
        return [
            sum(memoryview(counts.read(number.to_bytes(4, "little")) or b"").cast("Q"))
            for number in range(len(COUNTERS))
        ]


@pytest.fixture(scope="module", params=[4, 6], ids=["ipv4", "ipv6"])
def flood(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
          ) -> Iterator[Flood]:  # fmt: skip
    """Compiled and loaded as the benchmark does it."""
    loaded = programs.load(
        "flood",
        tmp_path_factory.mktemp("flood"),
        entries={"flood_counts": len(COUNTERS)},
        family=request.param,
    )
    yield Flood(request.param, loaded)
    loaded.close()


def source_of(frame: bytes) -> tuple[int, int, bytes]:
    """Address, port and ISN (of UDP: what stands there)."""
    addresses, segment, _ = segment_of(frame)
    addr = int.from_bytes(addresses[: len(addresses) // 2], "big")
    return addr, int.from_bytes(segment[:2], "big"), segment[4:8]


@pytest.mark.parametrize("proto", [PROTO_TCP, PROTO_UDP], ids=["tcp", "udp"])
def test_each_forged_packet_is_right_and_from_somebody_else(flood: Flood, proto: int) -> None:
    """Checksums and service are right; sources are of the forged range, in 64 prefixes."""
    frames = [flood.forge(proto, number * 0x9E3779B97F4A7C15 % 2**64) for number in range(1, 300)]
    assert all(is_right(frame) for frame in frames)
    sources = [source_of(frame) for frame in frames]
    assert len(set(sources)) == len(frames)
    prefix = ipaddress.ip_network(FORGED[flood.family][0])
    addresses = [ipaddress.ip_address(addr) for addr, _, _ in sources]
    assert all(addr in prefix for addr in addresses)
    bits = {4: 24, 6: 56}[flood.family]
    budgets = {ipaddress.ip_network((addr, bits), strict=False) for addr in addresses}
    assert 32 < len(budgets) <= 64
    for frame in frames:
        there, segment, told = segment_of(frame)
        assert told == proto
        assert frame[:12] == ROUTER + SENDER
        assert there[len(there) // 2 :] == flood.target[0].to_bytes(len(there) // 2, "big")
        assert struct.unpack_from("!H", segment, 2)[0] == flood.target[1]
        if proto == PROTO_TCP:
            assert segment[13] == SYN


@pytest.mark.parametrize("proto", [PROTO_TCP, PROTO_UDP], ids=["tcp", "udp"])
def test_a_backend_answers_what_is_forged(flood: Flood, proto: int) -> None:
    """As a stack would: ends swapped, a SYN acknowledged, sums right; the far end drops it."""
    before = flood.counted()
    frame = flood.forge(proto, 12345)
    verdict, answer = flood.run("answer_forged", frame)
    assert verdict == REDIRECT
    assert is_right(answer)
    assert answer[:12] == SENDER + ROUTER
    there, asked, _ = segment_of(frame)
    back, said, _ = segment_of(answer)
    width = len(there) // 2
    assert back == there[width:] + there[:width]
    assert said[:4] == asked[2:4] + asked[:2]
    if proto == PROTO_TCP:
        assert said[13] == SYN_ACK
        isn = int.from_bytes(asked[4:8], "big")
        assert int.from_bytes(said[8:12], "big") == (isn + 1) % 2**32
    assert flood.run("drop_answers", answer)[0] == DROP
    assert [now - was for now, was in zip(flood.counted(), before, strict=True)] == [1, 1]


@pytest.mark.parametrize("proto", [PROTO_TCP, PROTO_UDP], ids=["tcp", "udp"])
def test_who_is_honest_reaches_the_stack(flood: Flood, proto: int) -> None:
    """Backends and senders leave alone what is not forged, and do not count it."""
    before = flood.counted()
    frame = Traffic(flood.family, proto=proto).frame(ROUTER, SENDER, first=True)
    for program in ("answer_forged", "drop_answers"):
        assert flood.run(program, frame) == (PASS, frame)
    other = Traffic(10 - flood.family, proto=proto).frame(ROUTER, SENDER, first=True)
    for program in ("answer_forged", "drop_answers"):
        assert flood.run(program, other) == (PASS, other)
    assert flood.counted() == before


def test_what_is_not_a_syn_of_a_forged_client_is_dropped(flood: Flood) -> None:
    """The router's RST to a probed backend is none of the stack's; nothing answers it."""
    frame = bytearray(flood.forge(PROTO_TCP, 99))
    frame[-20 + 13] = 0x04
    assert flood.run("answer_forged", bytes(frame))[0] == DROP
