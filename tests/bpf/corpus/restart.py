# SPDX-License-Identifier: Apache-2.0
"""A port used again while its old flow lingers: the backend's SYN-ACK, and nothing else, tells."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, RST, SYN
from xdp_router.core import abi

from .case import NOW, RECENT, Case, Then, flow_untouched, forwarded, has_flow, has_pending
from .flows import established, forward, forward_key, reply, reply_key
from .full import KNOWN, PROVEN
from .handshake import LAST_ACK, SYNACK, promotes
from .isn import OTHER_ISN
from .world import CLIENT_ISN, Given, from_backend, to_client

NEW_SERVER_ISN = 0x12345678
NEW = SYNACK.but(seq=NEW_SERVER_ISN, ack=OTHER_ISN + 1)
CLOSED: dict[str, Any] = {"flags": abi.FLOW_FIN, "packets": 900, "first_data_us": 5}
NOTED = established(CLOSED | {"later_syn": OTHER_ISN}, CLOSED | {"later_syn": 9})


def hears(name: str, segment: Any, *then: Then, given: tuple[Given, ...], **rest: Any) -> Case:
    """The backend's segment goes to the client."""
    return forwarded(f"restart: {name}", from_backend(segment), to_client(segment), given=given,
                     at="backend", then=then, **rest)  # fmt: skip


def _begun(there: dict[str, Any] | None = None, back: dict[str, Any] | None = None) -> Any:
    both = {"flags": 0, "state": abi.TcpState.ESTABLISHED, "seen_ns": NOW, "established_us": 0,
            "first_data_us": 0, "later_syn": 0, "synack_us": 0, "fppl_ns": 0}  # fmt: skip
    return (
        has_flow("there", isn=OTHER_ISN, packets=0, octets=0, last_seen_ns=NOW,
                 **both | {"seq_next": OTHER_ISN + 1, "ack": NEW_SERVER_ISN + 1, "wscale": 9,
                           "window": 0xFFFF} | (there or {})),
        has_flow("back", isn=NEW_SERVER_ISN, packets=1, last_seen_ns=RECENT,
                 **both | {"seq_next": NEW_SERVER_ISN + 1, "ack": OTHER_ISN + 1, "wscale": 8,
                           "window": SYNACK.window} | (back or {})),
    )  # fmt: skip


SEEN = {"packets": 901, "octets": 160}
ESTABLISHED = [
    hears("the backend takes the later SYN", NEW, *_begun(), given=(NOTED,),
          counters={"flow_restarted": 1}),
    hears("with the SYN's data", NEW.but(ack=OTHER_ISN + 101),
          *_begun({"seq_next": OTHER_ISN + 101}, {"ack": OTHER_ISN + 101}), given=(NOTED,),
          counters={"flow_restarted": 1}),
    hears("without scaling: neither side scales", NEW.but(options=()),
          *_begun({"wscale": 0}, {"wscale": 0}), given=(NOTED,), counters={"flow_restarted": 1}),
    *(hears(name, segment, flow_untouched("there", **CLOSED | {"later_syn": OTHER_ISN}),
            has_flow("back", flags=abi.FLOW_FIN, packets=901, later_syn=9), given=(NOTED,))
      for name, segment in (
        ("a stale SYN-ACK of the old connection says nothing", SYNACK),
        ("a SYN-ACK to a SYN that nobody sent says nothing", NEW.but(ack=OTHER_ISN + 0x10000)),
        ("one number too little", NEW.but(ack=OTHER_ISN)),
        ("a SYN without ACK says nothing", NEW.but(flags=SYN)),
        ("nor does one with RST", NEW.but(flags=SYN | ACK | RST)),
        ("nor one with FIN", NEW.but(flags=SYN | ACK | FIN)),
    )),
    hears("no other SYN was sent: a SYN-ACK says nothing", NEW, flow_untouched("there"),
          given=(established(),)),
    hears("after a restart the old connection's SYN-ACK says nothing", SYNACK,
          flow_untouched("there", isn=OTHER_ISN),
          given=(established({"isn": OTHER_ISN}, {"isn": NEW_SERVER_ISN}),)),
]  # fmt: skip


def _pending(flags: int = 0, back: dict[str, Any] | None = None) -> tuple[Given, ...]:
    return (
        forward(flags=flags, seq=OTHER_ISN, ack=5, syn_data=3),
        reply(**{"synack": True} | (back or {})),
    )


def _pending_begun(syn_data: int = 0) -> tuple[Then, ...]:
    return (
        has_pending("FORWARD", forward_key(), isn=OTHER_ISN, wscale=5, syn_data=syn_data, flags=0,
                    seen_ns=NOW, last_seen_ns=NOW, seq=0),
        has_pending("REPLY", reply_key(), isn=NEW_SERVER_ISN, wscale=8, window=SYNACK.window,
                    flags=abi.PENDING_SYNACK, last_seen_ns=NOW),
    )  # fmt: skip


PENDING = [
    *(hears(f"pending, {name}: the backend takes the later SYN", NEW, *_pending_begun(),
            given=_pending(flags, back), counters={"flow_restarted": 1})
      for name, flags, back in (
          ("unanswered", 0, {"synack": False}),
          ("answered", 0, {}),
          ("proven", PROVEN, {"flags": KNOWN}),
          ("proven, FIN seen", PROVEN | abi.PENDING_FIN, {"flags": KNOWN | abi.PENDING_FIN}),
    )),
    hears("pending: the backend takes its data, too", NEW.but(ack=OTHER_ISN + 21),
          *_pending_begun(20), given=_pending(), counters={"flow_restarted": 1}),
    hears("pending: a SYN-ACK to a SYN that nobody sent", NEW.but(ack=OTHER_ISN + 0x10000),
          has_pending("FORWARD", forward_key(), isn=CLIENT_ISN, seq=OTHER_ISN), given=_pending()),
    hears("pending: no other SYN was sent", NEW,
          has_pending("FORWARD", forward_key(), isn=CLIENT_ISN, seq=0),
          given=(forward(), reply(synack=True))),
    promotes("the ACK that follows on a restart",
             LAST_ACK.but(seq=OTHER_ISN + 1, ack=NEW_SERVER_ISN + 1),
             has_flow("there", isn=OTHER_ISN), has_flow("back", isn=NEW_SERVER_ISN),
             given=(forward(isn=OTHER_ISN), reply(synack=True, isn=NEW_SERVER_ISN))),
]  # fmt: skip

CASES = [*ESTABLISHED, *PENDING]
