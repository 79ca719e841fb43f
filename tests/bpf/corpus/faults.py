# SPDX-License-Identifier: Apache-2.0
"""What no frame may bring about, whatever it is and whatever state it meets."""

from __future__ import annotations

import dataclasses

from tests.support.frames import l3_offset
from tests.support.icmp_frames import checksum_errors, is_icmp, length_errors
from tests.support.ipv6_frames import EXTENSIONS, FRAGMENT, HEADER, is_ipv6, payload_of
from tests.support.program import DROP, PASS, REDIRECT, TX, VERDICTS, Outcome
from tests.support.tunnels import inner_frame
from tests.support.udp_frames import is_datagram, is_part

MADE_BY_US = {
    "killed_reset",
    "orphan_reset",
    "refused_no_backend",
    "refused_by_daemon",
    "probe_synack",
    "flow_limit_reached",
    "nat_reply_unknown",
}
"""What is counted when a RST of our own goes out: all of its sums are ours.

A datagram is refused by an ICMP error instead, which quotes it as it came, wrong sums and all.
"""

OUR_ERRORS = {"icmp_time_exceeded", "icmp_too_big", "unreachable_sent"}

MACS, PORTS, TCP_SUM, UDP_SUM = (0, 12), (0, 4), (16, 18), (6, 8)
"""Places that rewriting may change: in the frame, in the TCP or UDP header."""

FOLLOWED = {"fragment_first", "fragment_followed"}

TTL = {4: 8, 6: 7}
ADDRESSES = {4: (10, 20), 6: (8, 40)}
"""In the IP header of each family; with IPv4 its sum is before the addresses."""


def _family(frame: bytes) -> int:
    return 6 if is_ipv6(frame) else 4


def _behind(packet: bytes) -> int:
    """Where what an IP packet carries begins."""
    return payload_of(packet)[1] if packet[0] >> 4 == 6 else (packet[0] & 15) * 4


def _quotes_a_datagram(frame: bytes) -> bool:
    """Whether an ICMP error embeds UDP."""
    packet = frame[l3_offset(frame) :]
    quote = packet[_behind(packet) + 8 :]
    at = 6 if is_ipv6(frame) else 9
    return quote[at : at + 1] == b"\x11"


def _id_span(frame: bytes) -> tuple[int, int]:
    """Where a fragment has its ID, which is another one with fullnat."""
    at = l3_offset(frame)
    if not is_ipv6(frame):
        return at + 4, at + 6
    kind, here = frame[at + 6], at + HEADER
    while kind in EXTENSIONS and kind != FRAGMENT and len(frame) >= here + 8:
        kind, here = frame[here], here + 8 + frame[here + 1] * 8
    return here + 4, here + 8


def _but_id(frame: bytes) -> bytes:
    """A fragment without its ID, and without the sum over it."""
    made, (begin, end) = bytearray(frame), _id_span(frame)
    made[begin:end] = bytes(end - begin)
    if not is_ipv6(frame):
        made[begin + 6 : begin + 8] = bytes(2)
    return bytes(made)


def faults(frame: bytes, outcome: Outcome) -> list[str]:
    """What is wrong with a run by itself: a verdict, a reason, lengths, sums, other bytes."""
    found = []
    if outcome.verdict not in (PASS, DROP, TX, REDIRECT):
        return [f"verdict {outcome.verdict}"]
    if "tunneled" in outcome.counters:  # the outer header is compared byte by byte elsewhere
        outcome = dataclasses.replace(outcome, frame=inner_frame(outcome.frame))
    handed = "handed_to_kernel" in outcome.counters
    if handed != (outcome.verdict == PASS and outcome.frame != frame):
        found.append("handed to the kernel as it was, or something else rewritten")
    if outcome.verdict in (PASS, DROP) and not handed:
        unsent = bool(MADE_BY_US & outcome.counters.keys()) and "no_path" in outcome.counters
        # what does not fit into a tunnel, or with a tag more, is found out when it is rewritten
        unsent |= "too_big_dropped" in outcome.counters
        if FOLLOWED & outcome.counters.keys():
            unsent |= _but_id(outcome.frame) == _but_id(frame)
        if outcome.frame != frame and not unsent:
            found.append(f"changed and then {VERDICTS[outcome.verdict]}")
        if not outcome.counters:
            found.append(f"{VERDICTS[outcome.verdict]} without a reason counted")
        return found
    if is_datagram(outcome.frame) and (handed or outcome.verdict == REDIRECT):
        # Its sums and lengths are judged case by case: nobody looks at them here.
        if "vlan_changed" in outcome.counters:
            frame = _with_tags_of(frame, outcome.frame)
        return found + _wrongly_changed(frame, outcome.frame, 0 if handed else 1, UDP_SUM)
    found += length_errors(outcome.frame)
    if found:
        return found
    if "echo_answered" in outcome.counters:
        return _wrongly_answered(frame, outcome.frame)
    if "vlan_changed" in outcome.counters:
        frame = _with_tags_of(frame, outcome.frame)
    if OUR_ERRORS & outcome.counters.keys():
        wrong = checksum_errors(outcome.frame) & {"ip", "icmp"}
        return [f"our ICMP error: {name} checksum" for name in wrong]
    if MADE_BY_US & outcome.counters.keys():
        return [f"our RST: {name} checksum" for name in checksum_errors(outcome.frame)]
    if "icmp_translated" in outcome.counters and _quotes_a_datagram(frame):
        return found  # judged case by case
    found += [
        f"{name} checksum was right"
        for name in checksum_errors(outcome.frame) - checksum_errors(frame)
    ]
    return found + _wrongly_changed(frame, outcome.frame, 0 if handed else 1)


def _with_tags_of(frame: bytes, out: bytes) -> bytes:
    """A frame whose tags are those of another one."""
    return frame[:12] + out[12 : l3_offset(out)] + frame[l3_offset(frame) :]


def _wrongly_answered(frame: bytes, out: bytes) -> list[str]:
    """The answer to a ping keeps all but MACs, addresses, TTL, type and sums, which stay right."""
    if len(out) != len(frame):
        return [f"another length, {len(out)}"]
    at, family = l3_offset(frame), _family(frame)
    message, ttl = at + _behind(frame[at:]), at + TTL[family]
    spans = [MACS, (ttl, ttl + 1), (message, message + 1), (message + 2, message + 4)]
    spans += [(at + begin, at + end) for begin, end in (ADDRESSES[family],)]
    found = [f"{name} checksum was right" for name in checksum_errors(out) - checksum_errors(frame)]
    found += [] if out[ttl] == 64 else [f"TTL {out[ttl]}"]
    return found + [
        f"byte {index} changed"
        for index in range(len(frame))
        if frame[index] != out[index] and not any(begin <= index < end for begin, end in spans)
    ]


def _wrongly_changed(
    frame: bytes, out: bytes, hops: int, checksum: tuple[int, int] = TCP_SUM
) -> list[str]:
    """Rewriting keeps every byte but addresses, ports and sums; the TTL falls by ``hops``."""
    if len(out) != len(frame):
        return [f"another length, {len(out)}"]
    if is_icmp(frame):
        return _wrongly_translated(frame, out, hops)
    at, family = l3_offset(frame), _family(frame)
    transport, ttl = at + _behind(frame[at:]), at + TTL[family]
    spans = [MACS, (ttl, ttl + 1)]
    spans += [(at + begin, at + end) for begin, end in (ADDRESSES[family],)]
    spans += [(transport + begin, transport + end) for begin, end in (PORTS, checksum)]
    spans += [_id_span(frame)] if is_part(frame) else []
    found = []
    before, after = bytearray(frame), bytearray(out)
    if after[ttl] != before[ttl] - hops or not after[ttl]:
        found.append(f"TTL {before[ttl]} became {after[ttl]}")
    for begin, end in spans:
        before[begin:end] = after[begin:end] = bytes(end - begin)
    return found + [
        f"byte {index} changed" for index in range(len(frame)) if before[index] != after[index]
    ]


def _wrongly_translated(frame: bytes, out: bytes, hops: int) -> list[str]:
    """An error keeps all but outer and embedded addresses, ports and sums, and its TTL."""
    at, family = l3_offset(frame), _family(frame)
    message, ttl = at + _behind(frame[at:]), at + TTL[family]
    inner = message + 8
    tcp = inner + _behind(frame[inner:])
    spans = [MACS, (message + 2, message + 4), (ttl, ttl + 1)]
    spans += [(at + begin, at + end) for begin, end in (ADDRESSES[family],)]
    spans += [(inner + begin, inner + end) for begin, end in (ADDRESSES[family],)]
    spans += [(tcp + begin, tcp + end) for begin, end in (PORTS, TCP_SUM)]
    found = [] if out[ttl] == frame[ttl] - hops > 0 else [f"TTL became {out[ttl]}"]
    return found + [
        f"byte {index} changed"
        for index in range(len(frame))
        if frame[index] != out[index] and not any(begin <= index < end for begin, end in spans)
    ]
