# SPDX-License-Identifier: Apache-2.0
"""What every backend's flows have carried, those that are over included, by what the ager meets.

A sweep adds up the entries that it meets to what had been carried by flows that were over when it
began. So nothing is counted twice; of flows that end during a sweep one direction may be missing
until the next one. Totals never go back: what is lower than before for that reason is not told.
A daemon's first sweep does not know what its predecessor has told, and must not miss any: nothing
is aged in it, and what XDP takes out meanwhile is counted twice rather than not at all, until
the totals have grown by as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdp_router.adapters.traffic import NO_TRAFFIC, Traffic
from xdp_router.core import abi
from xdp_router.core.abi_values import TrafficValue
from xdp_router.core.model import NO_BACKEND, Backend


class TrafficKeeper:
    """Of all backends together. ``totals`` is of the newest sweep, ``live`` its flows' number."""

    def __init__(self, traffic: Traffic | None = None, backends: Iterable[Backend] = ()) -> None:
        """``traffic`` None: nothing is kept."""
        self._traffic = traffic
        self._known = {each.id: each.endpoint for each in backends}
        self._anew: set[int] = set()  # what this sweep knows of them is another one's
        self._over: dict[int, TrafficValue] = {}
        self._met: dict[int, list[int]] = {}
        self.totals: dict[int, TrafficValue] = {}
        """By backend id."""
        self._at_start: int | None = None
        self.live: dict[int, int] = {}
        """Established flows, by backend id."""

    def begin(self) -> Iterator[None]:
        """A sweep begins: what is over is read, in pieces."""
        self._met = {}
        self._anew.clear()
        yield from self._read_over()

    def settle(self) -> Iterator[None]:
        """All flows were met; of the first sweep it is read once more what is over, in pieces."""
        if self.is_first:
            yield from self._read_over()

    def _read_over(self) -> Iterator[None]:
        self._over = {}
        if self._traffic is None:
            return
        for batch in self._traffic.batches():
            for backend, value in batch:
                self._over[backend] = self._over.get(backend, NO_TRAFFIC).plus(value)
            yield

    def flows(self, values: bytes, family: int) -> None:
        """A batch of ``flow_table`` entries was met."""
        if self._traffic is None:
            return
        met = self._met
        for packets, octets, direction, backend in abi.iter_flow_traffic(values, family):
            row = met.get(backend)
            if row is None:
                row = met[backend] = [0, 0, 0, 0, 0]
            if direction:
                row[3] += packets
                row[4] += octets
            else:
                row[0] += 1
                row[1] += packets
                row[2] += octets

    def aged(self, entry: abi.FlowEntryValue) -> None:
        """The daemon has taken out an entry of a flow; the last that was seen of it."""
        if self._traffic is not None:
            self._traffic.age(entry.backend, carried(entry))

    def pending(self, key: bytes, entry: abi.PendingValue) -> None:
        """The daemon has aged out an entry of a flow that may never have been established."""
        kind = abi.key_kind(key)
        if self._traffic is None or entry.flags & abi.PENDING_PROMOTED or not entry.packets:
            return
        if kind is abi.Kind.FORWARD and entry.backend != NO_BACKEND:
            carried = TrafficValue(0, entry.packets, entry.octets, 0, 0)
        elif kind is abi.Kind.REPLY:
            carried = TrafficValue(0, 0, 0, entry.packets, entry.octets)
        else:
            return
        self._traffic.age(entry.backend, carried)

    def end(self) -> None:
        """The sweep is over."""
        totals, live = {}, {}
        for backend in (self._over.keys() | self._met.keys()) - self._anew:
            met = self._met.get(backend)
            value = self._over.get(backend, NO_TRAFFIC)
            if met is not None:
                value = value.plus(TrafficValue(*met))
                live[backend] = met[0]
            known = self.totals.get(backend)
            totals[backend] = value if known is None else known.at_least(value)
        self.totals, self.live = totals, live
        if self._at_start is None:
            self._at_start = self._octets()

    @property
    def is_first(self) -> bool:
        """Whether this sweep, or the next one, is the first; False where nothing is kept."""
        return self._traffic is not None and not self.known

    @property
    def known(self) -> bool:
        """Whether a sweep is over: before, the totals are not nothing, but not known."""
        return self._at_start is not None

    @property
    def octets_since_start(self) -> int:
        """Bytes of both directions of all backends that the first sweep had not met yet."""
        return max(self._octets() - (self._at_start or 0), 0)

    def _octets(self) -> int:
        return sum(each.octets + each.reply_octets for each in self.totals.values())

    def change(self, backends: Iterable[Backend]) -> None:
        """These are the backends from now on; a number that is another one's begins anew."""
        before, self._known = self._known, {each.id: each.endpoint for each in backends}
        for backend, endpoint in self._known.items():
            if before.get(backend) == endpoint:
                continue
            self.totals.pop(backend, None)
            self._anew.add(backend)
            if self._traffic is not None:
                self._traffic.reset(backend)


def carried(entry: abi.FlowEntryValue) -> TrafficValue:
    """What one entry says that its flow has carried that way."""
    if entry.direction is abi.Direction.FORWARD:
        return TrafficValue(1, entry.packets, entry.octets, 0, 0)
    return TrafficValue(0, 0, 0, entry.packets, entry.octets)
