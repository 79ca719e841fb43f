# SPDX-License-Identifier: Apache-2.0
"""Every frame of the corpus, cut at every length."""

from __future__ import annotations

import collections

from tests.bpf.corpus import CASES
from tests.bpf.corpus.case import Case
from tests.bpf.corpus.world import World
from tests.support.frames import ETH_HEADER, TAG_TYPES, l3_offset
from tests.support.ipv6_frames import HEADER, IPV6
from tests.support.program import PASS, VERDICTS

pytest_plugins = ("tests.support.worlds",)


def why_passed(frame: bytes, family: int) -> str | None:
    """The counter of a frame that is cut off before its IP packet ends; None: it is whole."""
    at = l3_offset(frame)
    kind = int.from_bytes(frame[at - 2 : at], "big")
    if len(frame) < at or (kind in TAG_TYPES and at < ETH_HEADER + 8 and len(frame) < at + 4):
        return "pass_malformed"
    if kind == IPV6 and family == 6:
        length = int.from_bytes(frame[at + 4 : at + 6], "big")
        return "pass_malformed" if len(frame) < at + HEADER + length else None
    if kind != 0x0800:
        return "pass_no_ipv6" if kind == IPV6 else "pass_not_ip"
    total = int.from_bytes(frame[at + 2 : at + 4], "big")
    return "pass_malformed" if len(frame) < at + max(20, total) else None


def _one_case_a_frame(family: int) -> list[Case]:
    cases = [case for case in CASES if family in case.families]
    # The first one: those that tables and stages are changed for come later.
    return list({(case.frame, case.at): case for case in reversed(cases)}.values())


def test_a_cut_frame_passes_untouched(world: World) -> None:
    """Cut before the end of its IP packet, a frame passes, is counted, and changes nothing."""
    for case in _one_case_a_frame(world.family):
        case.prepare(world)
        world.program.changes()
        ingress, expected = world.ingress(case.at), collections.Counter[str]()
        whole = world.native(case.frame)
        for length in range(ETH_HEADER, len(whole)):
            cut = whole[:length]
            counter = why_passed(cut, world.family)
            if counter is None:
                continue
            expected[counter] += 1
            verdict, out, _ = world.program.run_only(cut, ingress)
            assert (VERDICTS[verdict], out) == (VERDICTS[PASS], cut), f"{case.name}: {length} bytes"
        counters, records = world.program.changes()
        assert counters == dict(expected), case.name
        assert records == [], case.name


def test_a_frame_without_its_padding_is_the_same_packet(world: World) -> None:
    """Of a padded frame any length of padding gives the same verdict, packet and counters."""
    tried = 0
    for case in CASES:
        if world.family not in case.families or "tunneled" in case.counters:
            continue  # an outer header says how long it is
        whole = world.native(case.frame)
        cuts = [
            n for n in range(ETH_HEADER, len(whole)) if why_passed(whole[:n], world.family) is None
        ]
        if not cuts or case.event is not None:  # an event carries the frame as it is
            continue
        for length in cuts:
            case.prepare(world)
            outcome = world.run_native(whole[:length], case.at)
            wanted = whole if case.out is None else world.native(case.out)
            if len(wanted) == len(whole):  # else a RST, which has a length of its own
                wanted = wanted[:length]
            assert outcome.verdict == case.verdict, f"{case.name}: {length} bytes"
            assert outcome.frame == wanted, f"{case.name}: {length} bytes"
            assert outcome.counters == dict(case.counters), f"{case.name}: {length} bytes"
            tried += 1
    assert tried > 20
