# SPDX-License-Identifier: Apache-2.0
"""FIN and RST count only inside the tracked window; closing is a hint that new data revokes."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, Segment
from xdp_router.core import abi

from .case import Case, forwarded, has_flow, tables_hold
from .flows import established
from .world import from_backend, to_backend, to_client, to_service

WINDOW = 64_000
CLOSING, ESTABLISHED = abi.TcpState.CLOSING, abi.TcpState.ESTABLISHED
BOTH_FIN = {"flags": abi.FLOW_FIN, "state": CLOSING}
MASK = 0xFFFFFFFF

# Where the receiver stands: somewhere, and so that the window goes over the end of the numbers.
BASES = (("", 1_000_001), (" (numbers go round)", MASK - 100))


def _case(
    name: str,
    side: str,
    segment: Segment,
    base: int,
    *,
    sender: dict[str, Any] | None = None,
    receiver: dict[str, Any] | None = None,
    counters: dict[str, int] | None = None,
    sender_after: dict[str, Any],
    receiver_after: dict[str, Any],
) -> Case:
    """``side`` sends; the other side has acknowledged ``base`` and takes WINDOW bytes more."""
    sending = {"seq_next": base, "ack": 5000} | (sender or {})
    receiving = {"seq_next": 5000, "ack": base, "window": WINDOW} | (receiver or {})
    segment = segment.but(ack=5000 if segment.flags & ACK else 0)
    to, far, entries, looks = (
        (to_service, to_backend, (sending, receiving), ("there", "back"))
        if side == "client"
        else (from_backend, to_client, (receiving, sending), ("back", "there"))
    )
    return forwarded(
        f"{name}, {side}",
        to(segment),
        far(segment),
        given=(established(*entries),),
        at=side,
        counters=counters or {},
        then=(
            has_flow(looks[0], **sender_after),
            has_flow(looks[1], **receiver_after),
            tables_hold(0, 2),
        ),
    )


def _window_cases(side: str, what: str, base: int) -> list[Case]:
    open_ = {"state": ESTABLISHED, "flags": 0}
    half = {"state": ESTABLISHED, "flags": abi.FLOW_FIN}
    cases = []
    fins = (
        # offset of the sequence number from what is acknowledged, payload, inside?
        ("at its lower edge", 0, b"", True),
        ("of which only the FIN itself is new", -1, b"", True),
        ("that was acknowledged already", -2, b"", False),
        ("with data that reaches into the window", -10, b"0123456789", True),
        ("with data of which the FIN alone reaches in", -10, b"012345678", True),
        ("with data that does not reach in", -10, b"01234567", False),
        ("at its upper edge", WINDOW, b"", True),
        ("just beyond its upper edge", WINDOW + 1, b"", False),
        ("half way round the numbers", 1 << 31, b"", False),
        ("a quarter before", -(1 << 30), b"", False),
    )
    for where, offset, payload, inside in fins:
        segment = Segment(flags=FIN | ACK, seq=base + offset, payload=payload)
        cases.append(
            _case(
                f"FIN {where}{what}",
                side,
                segment,
                base,
                counters={} if inside else {"fin_outside_window": 1},
                sender_after=half if inside else open_ | {"seq_next": base},
                receiver_after=open_,
            )
        )
    under_way = 700  # bytes that this side has sent and the other has not acknowledged
    rsts = (
        ("at the lower edge", 0, True),
        ("behind its data under way", under_way, True),
        ("within its data under way", under_way - 1, False),
        ("at the upper edge", WINDOW, False),
        ("in the middle", WINDOW // 2, False),
        ("just below", -1, False),
        ("just above", WINDOW + 1, False),
        ("half way round the numbers", 1 << 31, False),
    )
    for where, offset, inside in rsts:
        for flags in (RST, RST | ACK):
            name = "RST" if flags == RST else "RST with ACK"
            cases.append(
                _case(
                    f"{name} {where}{what}",
                    side,
                    Segment(flags=flags, seq=base + offset),
                    base,
                    sender={"seq_next": base + under_way & MASK},
                    counters={} if inside else {"rst_inexact": 1},
                    sender_after={
                        "state": CLOSING if inside else ESTABLISHED,
                        "flags": abi.FLOW_RST if inside else 0,
                        "seq_next": base + under_way & MASK,
                    },
                    receiver_after={"state": CLOSING if inside else ESTABLISHED, "flags": 0},
                )
            )
    return cases


def _life_cases(side: str, what: str, base: int) -> list[Case]:
    data = b"more data"
    end = (base + len(data)) & MASK
    new = Segment(flags=PSH | ACK, seq=base, payload=data)
    closed = {"sender": BOTH_FIN, "receiver": BOTH_FIN}
    still = {"state": CLOSING, "flags": abi.FLOW_FIN}
    again = {"state": ESTABLISHED, "flags": 0}
    fin = Segment(flags=FIN | ACK, seq=base)
    return [
        _case(f"FIN after the other side's FIN{what}", side, fin, base,
              receiver={"flags": abi.FLOW_FIN},
              sender_after={"state": CLOSING, "flags": abi.FLOW_FIN, "seq_next": (base + 1) & MASK},
              receiver_after={"state": CLOSING, "flags": abi.FLOW_FIN}),
        _case(f"FIN sent again{what}", side, fin, base,
              sender={"flags": abi.FLOW_FIN, "seq_next": base + 1 & MASK},
              sender_after={"state": ESTABLISHED, "flags": abi.FLOW_FIN,
                            "seq_next": (base + 1) & MASK},
              receiver_after=again),
        _case(f"FIN with data counts the data{what}", side, fin.but(payload=data), base,
              sender_after={"flags": abi.FLOW_FIN, "seq_next": (end + 1) & MASK},
              receiver_after=again),
        _case(f"RST with FIN is a RST{what}", side, fin.but(flags=FIN | RST | ACK), base,
              sender_after={"state": CLOSING, "flags": abi.FLOW_RST, "seq_next": base},
              receiver_after={"state": CLOSING, "flags": 0}),
        _case(f"new data after the end revokes it{what}", side, new, base, **closed,
              counters={"closing_revoked": 1},
              sender_after=again | {"seq_next": end}, receiver_after=again),
        _case(f"new data after a RST revokes it{what}", side, new, base,
              sender={"state": CLOSING}, receiver={"state": CLOSING, "flags": abi.FLOW_RST},
              counters={"closing_revoked": 1},
              sender_after=again | {"seq_next": end}, receiver_after=again),
        _case(f"data sent again after the end revokes nothing{what}", side,
              new.but(seq=base - len(data)), base, **closed,
              sender_after=still, receiver_after=still),
        _case(f"the last ACK revokes nothing{what}", side, new.but(payload=b""), base, **closed,
              sender_after=still, receiver_after=still),
        _case(f"data beyond the window revokes nothing{what}", side,
              new.but(seq=base + WINDOW + 1), base, **closed,
              sender_after=still, receiver_after=still),
        _case(f"data while one side has closed goes on{what}", side, new, base,
              receiver={"flags": abi.FLOW_FIN},
              sender_after=again | {"seq_next": end},
              receiver_after={"state": ESTABLISHED, "flags": abi.FLOW_FIN}),
    ]  # fmt: skip


def _alone(side: str) -> Case:
    """Half of a flow is gone, or its tuple belongs to another: nothing is concluded."""
    fin = Segment(flags=FIN | ACK, seq=1, ack=1)
    shop = {"new_saddr": 1}
    entries = ({}, shop) if side == "client" else (shop, {})
    frame, out = (
        (to_service(fin), to_backend(fin))
        if side == "client"
        else (from_backend(fin), to_client(fin))
    )
    look = "there" if side == "client" else "back"
    return forwarded(
        f"FIN where the other direction belongs to another flow, {side}",
        frame,
        out,
        given=(established(*entries),),
        at=side,
        then=(has_flow(look, state=ESTABLISHED, flags=0),),
    )


CASES = [
    *(
        case
        for side in ("client", "backend")
        for what, base in BASES
        for make in (_window_cases, _life_cases)
        for case in make(side, what, base)
    ),
    _alone("client"),
    _alone("backend"),
]
