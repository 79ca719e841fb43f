# SPDX-License-Identifier: Apache-2.0
"""Budgets of events, and the depth of the ring: what is beyond them is decided by XDP, by hash."""

from __future__ import annotations

from tests.support.program import DROP
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.model import Reason

from .case import Case, Then, tables_hold
from .degrade import HOUR, SYN_FRAME, decides, full_ring
from .first import first_event
from .flows import AGE_NS
from .world import B2, CLIENT, MS, SECOND, Given, World

PREFIX = CLIENT.number & ~0xFF
OTHER_PREFIX = PREFIX + 0x100


def spend(slot: int, interval_ns: int = HOUR, left_ns: int = 0) -> Given:
    """Configure a budget of one event an interval, of which ``left_ns`` of credit is left."""

    def write(world: World) -> None:
        limits = {"event_interval_ns": interval_ns, "event_burst_ns": 2 * interval_ns}
        if slot >= abi.TOKENS_SERVICE:
            world.change_service(**limits)
        else:
            world.limit(**limits)
        world.maps.tokens.fill(slot, left_ns, world.now_ns)

    return write


def _key(world: World, addr: int) -> bytes:
    """Key of a /24's bucket; of the /56 that stands for it in IPv6."""
    number = world.native_addr(addr)
    return abi.pack_prefix_key(number & ~(0xFF if world.family == 4 else (1 << 72) - 1))


def prefix_of(world: World, addr: int = PREFIX) -> tuple[int, int, int] | None:
    """A prefix's bucket."""
    raw = bpf.BpfMap(world.program.plane.maps["prefix_tokens"]).read(_key(world, addr))
    return abi.unpack_token_bucket(raw) if raw is not None else None


def prefix(left_ns: int | None, interval_ns: int = HOUR, addr: int = PREFIX) -> Given:
    """Configure the prefixes' budget; None: this one has sent nothing yet."""

    def write(world: World) -> None:
        world.limit(prefix_interval_ns=interval_ns, prefix_burst_ns=2 * interval_ns)
        table = bpf.BpfMap(world.program.plane.maps["prefix_tokens"])
        for key in list(table.each_key()):
            table.delete(key)
        if left_ns is not None:
            table.write(_key(world, addr), abi.pack_token_bucket(left_ns, world.now_ns))

    return write


def share(scale: int) -> Given:
    """Set what an event costs on each CPU, in parts of abi.SHARE_ONE."""
    return lambda world: world.maps.event_shares.write([scale] * bpf.possible_cpus())


def deep(world: World) -> None:
    """The ring holds as much as may wait, and one byte more."""
    full_ring(world)
    world.limit(ring_deep=SIZE_DEEP)


SIZE_DEEP = 4096 - 2 * (abi.EVENT_SIZE + 8)
"""What is in a full ring of 4,096 bytes is more: no event of 64 bytes fits any more."""


def held(name: str, *given: Given, then: tuple[Then, ...] = ()) -> Case:
    """The SYN is handed to the daemon."""
    return Case(name=name, frame=SYN_FRAME, verdict=DROP, event=first_event(SYN_FRAME),
                counters={"first_packet": 1}, given=given, then=then)  # fmt: skip


def _refused(name: str, why: str, *given: Given, then: tuple[Then, ...] = ()) -> Case:
    """The SYN goes by hash: not to the fallback, which is up."""
    reason = Reason.BACKLOG if why == "ring_deep" else Reason.BUDGET
    return decides(name, why, reason, *given, server=B2, then=(tables_hold(0, 0, flood=2), *then))


def _credit_left(slot: int, below_ns: int) -> Then:
    """This CPU's bucket holds less than so much; the others' were not touched."""

    def look(world: World, started_ns: int) -> None:
        credits = [credit for credit, _, _ in world.buckets(slot)]
        assert min(credits) < below_ns
        assert sum(credit < below_ns for credit in credits) == 1

    return look


def _unspent(slot: int, credit_ns: int) -> Then:
    """Nobody's bucket holds less than so much."""

    def look(world: World, started_ns: int) -> None:
        assert min(credit for credit, _, _ in world.buckets(slot)) >= credit_ns

    return look


def _prefix_left(low_ns: int, high_ns: int) -> Then:
    """The client's prefix has a bucket, with so much credit."""

    def look(world: World, started_ns: int) -> None:
        bucket = prefix_of(world)
        assert bucket is not None
        assert low_ns <= bucket[0] <= high_ns

    return look


def _no_prefix(world: World, started_ns: int) -> None:
    assert prefix_of(world) is None


def _asked(world: World, started_ns: int) -> None:
    """One CPU has wanted a token, once."""
    asked = [number for _, _, number in world.buckets(abi.TOKENS_EVENTS)]
    assert sorted(asked)[-2:] == ([0, 1] if len(asked) > 1 else [1])


def _orphans_are_hashed(world: World, started_ns: int) -> None:
    """For about as long as the configuration says, from now on."""
    window_ns = world.control().pending_idle_ns
    ahead_ns = world.maps.pressure.stateless_until_ns(0) - started_ns
    assert window_ns * 9 // 8 <= ahead_ns < window_ns * 9 // 8 + SECOND


def _soon_ns(world: World) -> int:
    window_ns = world.control().pending_idle_ns
    return world.now_ns + window_ns + window_ns // 16


def _until_soon(world: World) -> None:
    """They are hashed already, for nearly the whole window."""
    spend(abi.TOKENS_SERVICE)(world)
    world.write_pressure(stateless_ns=_soon_ns(world))


def _until_kept(world: World, started_ns: int) -> None:
    """What all CPUs read was not written."""
    assert world.maps.pressure.stateless_until_ns(0) == _soon_ns(world)


ALL, WEB_ONLY = abi.TOKENS_EVENTS, abi.TOKENS_SERVICE

RATES = [
    _refused("budget of the service spent", "budget_service", spend(WEB_ONLY),
             then=(_orphans_are_hashed,)),
    _refused("budget spent, orphans are hashed already", "budget_service", _until_soon,
             then=(_until_kept,)),
    _refused("budget of all services spent", "budget_global", spend(ALL), then=(_asked,)),
    _refused("what all services have no room for costs the service nothing", "budget_global",
             spend(WEB_ONLY, left_ns=HOUR), spend(ALL), then=(_unspent(WEB_ONLY, HOUR),)),
    _refused("credit just below the price of an event", "budget_service",
             spend(WEB_ONLY, left_ns=HOUR - 60 * SECOND)),
    *(
        held(f"credit for one event of {whose}, which takes it", spend(slot, left_ns=HOUR),
             then=(_credit_left(slot, 60 * SECOND),))
        for slot, whose in ((ALL, "all services"), (WEB_ONLY, "the service"))
    ),
    held("a burst of exactly one event",
         lambda world: world.limit(event_interval_ns=MS, event_burst_ns=MS),
         lambda world: world.maps.tokens.fill(ALL, 0, world.now_ns - AGE_NS)),
    held("credit that time has brought", spend(ALL, 2 * MS),
         lambda world: world.maps.tokens.fill(ALL, 0, world.now_ns - AGE_NS)),
    held("a burst is one event at least",
         lambda world: world.limit(event_interval_ns=2 * MS, event_burst_ns=MS),
         lambda world: world.maps.tokens.fill(ALL, 0, world.now_ns - AGE_NS)),
    held("a burst is all that an idle bucket saves", spend(ALL, MS),
         lambda world: world.maps.tokens.fill(ALL, 5 * MS, world.now_ns - AGE_NS),
         then=(_credit_left(ALL, MS + 1),)),
]  # fmt: skip

SHARES = [
    _refused("a CPU with half of the rate pays double", "budget_global",
             share(2 * abi.SHARE_ONE), spend(ALL, left_ns=2 * HOUR - 60 * SECOND)),
    held("and has it with credit for two", share(2 * abi.SHARE_ONE), spend(ALL, left_ns=2 * HOUR),
         then=(_credit_left(ALL, 60 * SECOND),)),
    _refused("of a service's rate, too", "budget_service",
             share(2 * abi.SHARE_ONE), spend(WEB_ONLY, left_ns=2 * HOUR - 60 * SECOND)),
    held("a share that was never set is the whole", share(0), spend(ALL, left_ns=HOUR)),
]  # fmt: skip

PREFIXES = [
    _refused("budget of the source prefix spent", "budget_prefix", prefix(0)),
    _refused("what the prefix has no credit for costs nobody else anything", "budget_prefix",
             prefix(0), spend(WEB_ONLY, left_ns=HOUR),
             lambda world: world.limit(event_interval_ns=HOUR, event_burst_ns=2 * HOUR),
             lambda world: world.maps.tokens.fill(ALL, HOUR, world.now_ns),
             then=(_unspent(WEB_ONLY, HOUR), _unspent(ALL, HOUR))),
    held("a prefix that sent nothing yet has its burst", prefix(None),
         then=(_prefix_left(HOUR, HOUR),)),
    held("a prefix with credit for one event, which takes it", prefix(HOUR),
         then=(_prefix_left(0, 60 * SECOND),)),
    held("another prefix's budget is not this one's", prefix(0, addr=OTHER_PREFIX)),
    held("no budget of prefixes", prefix(0), lambda world: world.limit(prefix_interval_ns=0),
         then=(_prefix_left(0, 0),)),
    held("a bucket that another CPU looked at a moment later",
         prefix(HOUR), lambda world: bpf.BpfMap(world.program.plane.maps["prefix_tokens"]).write(
             _key(world, PREFIX), abi.pack_token_bucket(HOUR, world.now_ns + HOUR)),
         then=(_prefix_left(0, 0),)),
    _refused("what is refused before makes no entry of a prefix", "budget_global",
             prefix(None), spend(ALL), then=(_no_prefix,)),
]  # fmt: skip

DEPTH = [
    _refused("too much waits in the ring", "ring_deep", deep, spend(WEB_ONLY, left_ns=HOUR),
             then=(_unspent(WEB_ONLY, HOUR),)),
    held("nothing waits in the ring", lambda world: world.limit(ring_deep=0)),
]  # fmt: skip

CASES = [*RATES, *SHARES, *PREFIXES, *DEPTH]
