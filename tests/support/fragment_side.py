# SPDX-License-Identifier: Apache-2.0
"""The real program beside ``fragment_model``: frames, notes and the flow's account."""

from __future__ import annotations

from tests.bpf.corpus.bound import BACK, THERE
from tests.bpf.corpus.degrade import rst_to_client
from tests.bpf.corpus.flows import established, flow_keys, read_flow
from tests.bpf.corpus.fragments import cut
from tests.bpf.corpus.vlan import backend_vlan
from tests.bpf.corpus.world import (
    B1,
    CLIENT,
    SECOND,
    WEB,
    World,
    to_backend,
    to_client,
    to_service,
)
from tests.support.fragment_model import FragmentModel, Outcome, Side, Tagging, Tags
from tests.support.frames import RST, End, Segment
from tests.support.program import DROP, PASS, REDIRECT, TX
from xdp_router.core import abi

BODY = bytes(range(200))
PIECES = ("first", "middle", "last")
VERDICT_OF = {"on": REDIRECT, "drop": DROP, "pass": PASS, "rst": TX}


def cut_out(frame: bytes, piece: str) -> bytes:
    """One fragment of a packet."""
    first, middle = cut(frame, 64, 128)
    return {"first": first, "middle": middle, "last": cut(frame, 128)[1]}[piece]


def packed(tagging: Tagging | None) -> int:
    """As a backend or a flow has it; 0: tags stay."""
    if tagging is None:
        return 0
    if not tagging.number:
        return abi.VLAN_NONE
    flags = abi.VLAN_SERVICE * tagging.service | abi.VLAN_PUSH * tagging.push
    return abi.VLAN_TAG | flags | tagging.number


class FragmentSide:
    """A world with one flow or none."""

    def __init__(self, world: World, model: FragmentModel) -> None:
        self.world = world
        world.reset()
        world.program.clear_fragments()
        self._base: dict[Side, int] = {}
        self.put(model)

    def put(self, model: FragmentModel) -> None:
        """The flow begins, by what its sides' tags are, or is gone."""
        self.world.touch()
        self.world.program.clear_flows()
        model.packets.clear()
        backend_vlan(packed(model.tagging["client"]))(self.world)
        if model.there:
            back = {"vlan": packed(model.tagging["backend"]), "flags": abi.FLOW_STAGE}
            established(server_side=back)(self.world)
        self._base = self._packets()

    def _packets(self) -> dict[Side, int]:
        entries = zip(("client", "backend"), flow_keys(), strict=True)
        values = {side: read_flow(self.world, key) for side, key in entries}
        return {side: value.packets for side, value in values.items() if value}

    def packets(self) -> dict[Side, int]:
        """Of either direction since the flow began."""
        return {side: count - self._base[side] for side, count in self._packets().items()}

    def noted(self) -> int:
        """Of how many datagrams something is noted."""
        return len(list(self.world.program.fragments.each_key()))

    def grow_older(self, seconds: float) -> None:
        """What is noted is older by so much."""
        table = self.world.program.fragments
        for key in list(table.each_key()):
            seen_ns, *rest = abi.unpack_fragment(table.read(key) or b"")
            table.write(key, abi.pack_fragment(seen_ns - int(seconds * SECOND), *rest))

    def segment(self, side: Side, ident: int, tags: Tags, ttl: int = 64) -> Segment:
        """What is cut."""
        whole = THERE if side == "client" else BACK
        return whole.but(payload=BODY, fragment=0, ident=ident, tags=tags, ttl=ttl)

    def came(self, side: Side, segment: Segment, piece: str, foreign: bool = False) -> bytes:
        """A fragment as its sender sends it; ``foreign``: of another port of the same host."""
        if side == "client":
            return cut_out(to_service(segment, End(WEB.addr, 4321) if foreign else WEB), piece)
        sender = End(B1.end.addr, 4321) if foreign else B1.end
        return cut_out(segment.frame(sender, CLIENT, B1.hop.back), piece)

    def made_of(self, side: Side, segment: Segment, piece: str, outcome: Outcome) -> bytes | None:
        """What it must become; None: it stays as it came."""
        if outcome.what == "rst":
            return rst_to_client(segment.ack, 0, RST, outcome.tags)
        if outcome.what != "on":
            return None
        after = segment.but(tags=outcome.tags)
        return cut_out(to_backend(after) if side == "client" else to_client(after), piece)
