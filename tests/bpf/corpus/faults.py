# SPDX-License-Identifier: Apache-2.0
"""What no frame may bring about, whatever it is and whatever state it meets."""

from __future__ import annotations

from tests.support.frames import l3_offset
from tests.support.icmp_frames import checksum_errors, is_icmp, length_errors
from tests.support.program import DROP, PASS, REDIRECT, TX, VERDICTS, Outcome

MADE_BY_US = {"orphan_reset", "refused_no_backend", "refused_by_daemon", "probe_synack"}
"""What is counted when a RST of our own goes out: all of its sums are ours."""

OUR_ERRORS = {"icmp_time_exceeded", "icmp_too_big"}

MACS, TTL, IP_SUM_TO_ADDRESSES, PORTS, TCP_SUM = (0, 12), (8, 9), (10, 20), (0, 4), (16, 18)
"""Places that rewriting may change: in the frame, the IP header, the TCP header."""


def faults(frame: bytes, outcome: Outcome) -> list[str]:
    """What is wrong with a run by itself: a verdict, a reason, lengths, sums, other bytes."""
    found = []
    if outcome.verdict not in (PASS, DROP, TX, REDIRECT):
        return [f"verdict {outcome.verdict}"]
    handed = "handed_to_kernel" in outcome.counters
    if handed != (outcome.verdict == PASS and outcome.frame != frame):
        found.append("handed to the kernel as it was, or something else rewritten")
    if outcome.verdict in (PASS, DROP) and not handed:
        unsent = MADE_BY_US & outcome.counters.keys() and "no_path" in outcome.counters
        if outcome.frame != frame and not unsent:
            found.append(f"changed and then {VERDICTS[outcome.verdict]}")
        if not outcome.counters:
            found.append(f"{VERDICTS[outcome.verdict]} without a reason counted")
        return found
    found += length_errors(outcome.frame)
    if found:
        return found
    if MADE_BY_US & outcome.counters.keys():
        return [f"our RST: {name} checksum" for name in checksum_errors(outcome.frame)]
    if OUR_ERRORS & outcome.counters.keys():
        wrong = checksum_errors(outcome.frame) & {"ip", "icmp"}
        return [f"our ICMP error: {name} checksum" for name in wrong]
    found += [
        f"{name} checksum was right"
        for name in checksum_errors(outcome.frame) - checksum_errors(frame)
    ]
    return found + _wrongly_changed(frame, outcome.frame, 0 if handed else 1)


def _wrongly_changed(frame: bytes, out: bytes, hops: int) -> list[str]:
    """Rewriting keeps every byte but addresses, ports and sums; the TTL falls by ``hops``."""
    if len(out) != len(frame):
        return [f"another length, {len(out)}"]
    if is_icmp(frame):
        return _wrongly_translated(frame, out, hops)
    at = l3_offset(frame)
    tcp = at + (frame[at] & 15) * 4
    spans = [MACS]
    spans += [(at + begin, at + end) for begin, end in (TTL, IP_SUM_TO_ADDRESSES)]
    spans += [(tcp + begin, tcp + end) for begin, end in (PORTS, TCP_SUM)]
    found = []
    before, after = bytearray(frame), bytearray(out)
    if after[at + 8] != before[at + 8] - hops or not after[at + 8]:
        found.append(f"TTL {before[at + 8]} became {after[at + 8]}")
    for begin, end in spans:
        before[begin:end] = after[begin:end] = bytes(end - begin)
    return found + [
        f"byte {index} changed" for index in range(len(frame)) if before[index] != after[index]
    ]


def _wrongly_translated(frame: bytes, out: bytes, hops: int) -> list[str]:
    """An error keeps all but outer and embedded addresses, ports and sums, and its TTL."""
    at = l3_offset(frame)
    message = at + (frame[at] & 15) * 4
    inner = message + 8
    tcp = inner + (frame[inner] & 15) * 4
    spans = [MACS, (message + 2, message + 4)]
    spans += [(at + begin, at + end) for begin, end in (TTL, IP_SUM_TO_ADDRESSES)]
    spans += [(inner + begin, inner + end) for begin, end in (IP_SUM_TO_ADDRESSES,)]
    spans += [(tcp + begin, tcp + end) for begin, end in (PORTS, TCP_SUM)]
    found = [] if out[at + 8] == frame[at + 8] - hops > 0 else [f"TTL became {out[at + 8]}"]
    return found + [
        f"byte {index} changed"
        for index in range(len(frame))
        if frame[index] != out[index] and not any(begin <= index < end for begin, end in spans)
    ]
