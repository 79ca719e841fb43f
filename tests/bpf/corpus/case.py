# SPDX-License-Identifier: Apache-2.0
"""A case of the corpus, and how it is judged: verdict, whole frame, counters, event, tables."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support import frames
from tests.support.icmp_frames import checksum_errors, length_errors, rebuilt
from tests.support.program import PASS, REDIRECT, TX, VERDICTS, Outcome
from tests.support.tunnels import inner_frame
from tests.support.udp_frames import datagram_errors, is_whole_datagram
from xdp_router.core import abi
from xdp_router.core.events import XdpDecided
from xdp_router.core.model import Compared

from . import flows
from .world import CLIENT, WEB, Given, WithoutStage, World, flow_key

NOW = "now"
"""Expected of a time: between the start and the end of the run."""

RECENT = "recent"
"""Not longer ago than the case began: by the coarse clock, or by the daemon's heartbeat."""

TICK_NS = 10_000_000
"""The coarse clock lags behind by no more than this (HZ = 100)."""

Then = Callable[[World, int], None]
"""A look at the tables afterwards; it also gets the instant at which the run began."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """In a world brought into state by ``given``, ``frame`` has exactly these effects.

    ``out`` None: the frame comes out as it went in. ``counters``: these rise and no others.
    ``event``: the only one; fields not named are zero. ``marked``: run as the daemon runs a
    held frame; ``egress`` is then what the program has to write ("client", "backend", "kernel",
    None).
    """

    name: str
    frame: bytes
    verdict: int
    out: bytes | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    given: tuple[Given, ...] = ()
    event: Mapping[str, Any] | None = None
    at: str = "client"
    mark: int | None = None
    egress: str | None = None
    program: str = "xdp_router"
    then: tuple[Then, ...] = ()
    families: tuple[int, ...] = (4, 6)
    """Address families that it holds for. All is said in IPv4, see ``World.native``."""

    def prepare(self, world: World) -> None:
        """Bring a world into the state that the case begins with."""
        world.reset(self.missing)
        for step in self.given:
            step(world)

    @property
    def missing(self) -> frozenset[abi.Stage]:
        """Stages that are not there."""
        return frozenset(each.stage for each in self.given if isinstance(each, WithoutStage))

    def run(self, world: World) -> Outcome:
        """Run the frame in a prepared world."""
        meta = b"" if self.mark is None else abi.pack_reinject_meta(self.mark)
        return world.run(self.frame, self.at, meta, self.program)


def forwarded(name: str, frame: bytes, out: bytes, **rest: Any) -> Case:
    """A case whose frame is rewritten and redirected."""
    return Case(name=name, frame=frame, verdict=REDIRECT, out=out, **rest)


def answered(name: str, frame: bytes, out: bytes, **rest: Any) -> Case:
    """A case whose frame goes back where it came from as a RST."""
    return Case(name=name, frame=frame, verdict=TX, out=out, **rest)


def passed(name: str, frame: bytes, counter: str, **rest: Any) -> Case:
    """A case whose frame is left to the kernel as it is."""
    return Case(name=name, frame=frame, verdict=PASS, counters={counter: 1}, **rest)


def only(family: int, cases: Iterable[Case]) -> list[Case]:
    """Cases of something that only one address family has."""
    return [dataclasses.replace(case, families=(family,)) for case in cases]


def judge(case: Case, world: World) -> None:
    """Run a case and fail with everything that is not as it should be."""
    case.prepare(world)
    # A packet may come between the stages of a frame that is run again, or the other way round.
    others = world.program.scratch.read((case.mark is None).to_bytes(4, sys.byteorder))
    started_ns = time.monotonic_ns()
    outcome = case.run(world)
    ended_ns = time.monotonic_ns()
    assert world.program.scratch.read((case.mark is None).to_bytes(4, sys.byteorder)) == others
    wrong = _wrong(case, world, outcome, (started_ns, ended_ns))
    assert not wrong, "\n".join([case.name, frames.summary(case.frame), *wrong])
    for look in case.then:
        look(world, started_ns)


def _wrong(case: Case, world: World, outcome: Outcome, span: tuple[int, int]) -> list[str]:
    wrong = []
    if outcome.verdict != case.verdict:
        wrong.append(f"verdict {VERDICTS[outcome.verdict]}, wanted {VERDICTS[case.verdict]}")
    wanted = world.native(case.frame if case.out is None else case.out)
    if outcome.frame != wanted:
        wrong.append(frames.difference(outcome.frame, wanted))
    if outcome.counters != dict(case.counters):
        wrong.append(f"counters {outcome.counters}, wanted {dict(case.counters)}")
    judged = outcome.verdict in (REDIRECT, TX) or case.out is not None
    frame = inner_frame(outcome.frame) if judged else b""
    if judged and is_whole_datagram(frame):
        wrong += datagram_errors(frame) if outcome.verdict == REDIRECT else []
    elif judged:
        wrong += length_errors(frame)
        if errors := checksum_errors(frame):
            wrong.append(f"wrong checksums: {errors}")
        if rebuilt(frame) != frame:
            wrong.append(frames.difference(frame, rebuilt(frame)))
    if case.mark is not None:
        egress = abi.unpack_reinject_meta(outcome.meta)[1]
        if case.egress is None or case.egress == "kernel":
            index = abi.EGRESS_KERNEL if case.egress else 0
        else:
            index = getattr(world.wires, case.egress)
        if egress != index:
            wrong.append(f"egress interface {egress}, wanted {index} ({case.egress})")
    wanted_records = 0 if case.event is None else 1
    if len(outcome.records) != wanted_records:
        wrong.append(f"{len(outcome.records)} events, wanted {wanted_records}")
    elif case.event is not None:
        wrong += _wrong_event(case, world, outcome.records[0], span)
    return wrong


def _wrong_event(case: Case, world: World, record: bytes, span: tuple[int, int]) -> list[str]:
    wanted = dict(case.event or {})
    compared: Callable[[tuple[Compared, ...]], bool] | None = wanted.pop("compared", None)
    if compared is not None:
        decoded = abi.decode_event(record)
        assert isinstance(decoded, XdpDecided)
        if not compared(decoded.compared):
            return [f"what was compared is {decoded.compared}"]
        wanted["frame_len"] = abi.COMPARED_SIZE
    frame = world.native(wanted.pop("frame", b""))
    got = dataclasses.asdict(abi.unpack_event_header(record))
    fields: dict[str, Any] = dict.fromkeys(got, 0) | {
        "key": flow_key(WEB, CLIENT),
        "frame_len": len(frame),
    }
    fields |= {"time_ns": NOW} | wanted
    if fields["type"] == abi.EventType.PROBE_REPLY:
        fields["seq"] = world.native_probe(fields["seq"], fields["key"])
    fields["key"] = world.native_key(fields["key"])
    wrong = []
    for name, value in fields.items():
        have = abi.unpack_event_header(record).key if name == "key" else got[name]
        if not _fits(have, value, world, span):
            wrong.append(f"event.{name} is {have}, wanted {value}")
    size = abi.EVENT_SIZE + (abi.COMPARED_SIZE if compared is not None else 0)
    if frame:
        size = abi.RECORD_SMALL if len(frame) <= abi.FRAME_SMALL else abi.RECORD_LARGE
        held = record[abi.EVENT_SIZE : abi.EVENT_SIZE + len(frame)]
        if held != frame:
            wrong.append(frames.difference(held, frame))
    if len(record) != size:
        wrong.append(f"record of {len(record)} bytes, wanted {size}")
    return wrong


def _fits(have: object, wanted: object, world: World, span: tuple[int, int]) -> bool:
    if callable(wanted):
        wanted = wanted(world)
    if wanted == NOW:
        assert isinstance(have, int)
        return span[0] <= have <= span[1]
    if wanted == RECENT:
        assert isinstance(have, int)
        return world.now_ns - TICK_NS <= have <= span[1]
    if isinstance(wanted, range):
        return have in wanted
    return have == wanted


# --- looks at the tables ------------------------------------------------------------------


def check(entry: object, what: str, world: World, started_ns: int, wanted: dict[str, Any]) -> None:
    assert entry is not None, f"no {what}"
    span = (started_ns, time.monotonic_ns())
    wrong = [
        f"{what}.{name} is {getattr(entry, name)}, wanted {value}"
        for name, value in wanted.items()
        if not _fits(getattr(entry, name), value, world, span)
    ]
    assert not wrong, "\n".join(wrong)


def has_pending(what: str, key: bytes, **wanted: Any) -> Then:
    """An entry of ``pending_flows``, or else ``flood_flows``, is there and has these values."""

    def look(world: World, started_ns: int) -> None:
        check(flows.read_pending(world, key), what, world, started_ns, wanted)

    return look


def pending_is(what: str, key: bytes, make: Callable[[World], abi.PendingValue]) -> Then:
    """An entry of ``pending_flows`` is this one, in every field."""

    def look(world: World, started_ns: int) -> None:
        wanted = dataclasses.asdict(make(world))
        check(flows.read_pending(world, key), what, world, started_ns, wanted)

    return look


def has_flow(direction: str, **wanted: Any) -> Then:
    """The flow's entry of that direction ("there", "back") has these values."""

    def look(world: World, started_ns: int) -> None:
        key = flows.flow_keys()[("there", "back").index(direction)]
        check(flows.read_flow(world, key), direction, world, started_ns, wanted)

    return look


def flow_untouched(direction: str, **but: Any) -> Then:
    """The flow's entry of that direction is as ``flows.established`` puts it, but for these."""

    def look(world: World, started_ns: int) -> None:
        key = flows.flow_keys()[("there", "back").index(direction)]
        make = flows.forward_entry if direction == "there" else flows.reply_entry
        wanted = dataclasses.asdict(make(world)) | but
        if direction == "there":
            wanted["open"] = flows.is_open(wanted["state"])
        check(flows.read_flow(world, key), direction, world, started_ns, wanted)

    return look


def tables_hold(pending: int, flow_entries: int, flood: int = 0) -> Then:
    """So many entries are in ``pending_flows``, ``flow_table`` and ``flood_flows``, no more.

    Of flows that were moved there (``world.flooded``) those of the first and the last are one.
    """

    def look(world: World, started_ns: int) -> None:
        tables = (world.program.pending, world.program.flows, world.program.flood)
        counts = [len(list(t.each_key())) for t in tables]
        if world.flooded:
            counts = [counts[0] + counts[2], counts[1], flood]
        assert counts == [pending, flow_entries, flood]

    return look
