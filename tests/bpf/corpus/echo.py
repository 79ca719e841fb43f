# SPDX-License-Identifier: Apache-2.0
"""Pings to the address of a service: answered if it says so, within the budget of ICMP."""

from __future__ import annotations

import time
from typing import Any

from scapy.layers.inet import ICMP, IP
from scapy.packet import Raw

from tests.support.frames import Hop, ethernet, with_ip_options
from tests.support.program import DROP, REDIRECT
from xdp_router.core import abi

from .case import Case, answered, only, passed, tables_hold
from .foreign import hop_to
from .orphans import bounced
from .world import CLIENT, IN, OTHER_MAC, SECOND, SHOP, WEB, Given, World

REQUEST, REPLY = 8, 0
ANSWERED = {"echo_answered": 1}


def echo(
    kind: int = REQUEST,
    source: str = CLIENT.addr,
    target: str = WEB.addr,
    hop: Hop = IN,
    payload: bytes = b"ping" * 14,
    *,
    tags: tuple[tuple[int, int], ...] = (),
    options: bytes = b"",
    pad: bytes = b"",
    code: int = 0,
    **ip: Any,
) -> bytes:
    """A ping, or its answer."""
    fields = {"ttl": 64, "id": 7, "ihl": 5 + len(options) // 4} | ip
    message = ICMP(type=kind, code=code, id=0x1234, seq=3) / Raw(payload)
    body = bytes(IP(src=source, dst=target, **fields) / message)
    if options:
        body = with_ip_options(body, options)
    return ethernet(hop, body, tags) + pad


def reply(**rest: Any) -> bytes:
    """The answer to ``echo`` with the same words."""
    return echo(REPLY, WEB.addr, CLIENT.addr, IN.back, **rest | {"ttl": 64})


def wants_pings(world: World) -> None:
    """The first service wants them answered, the other one does not."""
    world.maps.services.answer_echo({WEB.number: world.service()})
    world.change_control(flags=abi.CONTROL_ECHO)
    world.touch()


def _budget(credit_ns: int) -> Given:
    """So much credit in this CPU's bucket; a token costs a second."""

    def put(world: World) -> None:
        world.maps.tokens.fill(abi.TOKENS_ECHO, credit_ns, time.monotonic_ns())
        world.change_control(
            flags=abi.CONTROL_ECHO, icmp_interval_ns=SECOND, icmp_burst_ns=2 * SECOND
        )

    return put


ON = (wants_pings,)
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as ping sends it", {}),
    ("without payload", {"payload": b""}),
    ("one byte", {"payload": b"x"}),
    ("1,472 bytes", {"payload": bytes(range(256)) * 5 + bytes(192)}),
    ("TTL 1", {"ttl": 1}),
    ("TTL 255", {"ttl": 255}),
    ("TOS", {"tos": 0xB8}),
    ("don't fragment", {"flags": "DF"}),
    ("one tag with priority", {"tags": ((0x8100, 0xA064),)}),
    ("two tags", {"tags": ((0x88A8, 4), (0x8100, 5))}),
    ("padding", {"payload": b"", "pad": bytes(18)}),
)


def _left(name: str, frame: bytes, counter: str = "pass_other_protocol", **rest: Any) -> Case:
    return passed(f"echo: {name}", frame, counter, **{"given": ON} | rest)


CASES = [
    *(
        answered(f"echo: {name}", echo(**words), reply(**words), given=ON, counters=ANSWERED,
                 then=(tables_hold(0, 0),))
        for name, words in VARIANTS
    ),
    Case(name="echo: answered by redirect where that is needed", frame=echo(), verdict=REDIRECT,
         out=reply(), given=(*ON, bounced), counters=ANSWERED),
    answered("echo: the last token of the budget", echo(), reply(), counters=ANSWERED,
             given=(*ON, _budget(SECOND))),
    Case(name="echo: over budget", frame=echo(), verdict=DROP, counters={"icmp_over_budget": 1},
         given=(*ON, _budget(SECOND // 2))),
    _left("nobody wants it answered", echo(), given=()),
    _left("to a service that does not want it answered", echo(target=SHOP.addr)),
    _left("to another address", echo(target="198.18.9.9")),
    *only(4, [_left("from multicast", echo(source="224.0.0.1"))]),
    _left("another code", echo(code=1)),
    _left("a reply", echo(REPLY)),
    _left("a timestamp request", echo(13)),
    _left("with options, which ask for more", echo(options=bytes([7, 7, 4, 0, 0, 0, 0, 0]))),
    _left("first fragment", echo(flags="MF")),
    _left("later fragment", echo(frag=9), "fragment_unknown"),
    _left("for another MAC", echo(hop=hop_to(OTHER_MAC))),
    _left("half a header", ethernet(IN, bytes(IP(src=CLIENT.addr, dst=WEB.addr, proto=1)
                                              / Raw(b"\x08\0\0\0")))),
]  # fmt: skip
