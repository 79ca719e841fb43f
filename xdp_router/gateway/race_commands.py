# SPDX-License-Identifier: Apache-2.0
"""What a race of legs asks for, why, and what is set for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from xdp_router.core.plain_enum import PlainEnum

NS_PER_S = 1_000_000_000

# Whoever says one of these has not begun with the request (RFC 9110 15.6.4, RFC 6585 4).
BUSY = frozenset({429, 503})
# Among engines the broken one is the fastest: its error must not win against an answer.
BROKEN = frozenset({500, 502, 504})


class Reason(PlainEnum):
    """Why a leg did not win, or a race had no winner."""

    LOST = "another one was first"
    CLIENT_GONE = "the client is gone"
    DEADLINE = "no first token in time"
    REFUSED = "refused by its status"
    ERROR = "an error object instead of a token"
    BAD_ANSWER = "an answer that cannot be read"
    CONNECT = "cannot be connected to"
    CONNECT_TIMEOUT = "not connected in time"
    CRASH = "the connection broke"
    STALE = "a kept connection was closed by then"
    EMPTY = "ended without a token"
    NO_CANDIDATE = "nobody to ask"


@dataclass(slots=True)  # of each request: to make a frozen one takes three times as long
class StartLeg:
    """Ask ``candidate`` (index into the candidates), as ``leg``.

    ``fresh``: by a connection of its own, not by a kept one. ``hedge``: beside one that is asked
    already, not in the place of one that has failed.
    """

    leg: int
    candidate: int
    fresh: bool = False
    hedge: bool = False


@dataclass(frozen=True, slots=True)
class CancelLeg:
    """Close ``leg``'s connection (or reset its stream) now."""

    leg: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class HoldOff:
    """``candidate`` asked for it: it is not to be asked before ``until_ns``, by nobody."""

    candidate: int
    until_ns: int


@dataclass(slots=True)  # as StartLeg
class Win:
    """``leg``'s answer goes to the client, from its head on.

    ``refused``: it is a refusal, passed on since nobody has anything better; ``retry_after_ns``
    is then what the client is to be told, the least that anybody said (None: nobody said).
    """

    leg: int
    refused: bool = False
    retry_after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody has an answer: tell the client ``status``; ``retry_after_ns`` None: not when."""

    status: int
    reason: Reason
    retry_after_ns: int | None = None


@dataclass(frozen=True, slots=True)
class BreakOff:
    """The winner broke after its first byte: end the client's answer as one that is not whole."""

    leg: int
    reason: Reason


Command: TypeAlias = StartLeg | CancelLeg | HoldOff | Win | GiveUp | BreakOff


@dataclass(frozen=True, slots=True)
class RaceSettings:
    """``width``: legs at a time. ``hedge_ns``: after so long without a token another one is asked
    beside; 0: all at once. ``retries``: legs in the place of failed ones. ``first_token_ns``: from
    the start, or from the last piece of the request's body. ``connect_ns``: for each leg.
    ``refusals``: statuses that another candidate may do better than. ``on_head``: the head decides.
    ``replayable``: asking twice does no harm; else a failure after the connection is retried only
    when the backend says that it has not begun. ``hold_off_max_ns``: no Retry-After keeps a backend
    away for longer.
    Raise ValueError for what cannot be.
    """

    width: int = 2
    hedge_ns: int = 0
    retries: int = 2
    first_token_ns: int = 60 * NS_PER_S
    connect_ns: int = NS_PER_S
    refusals: frozenset[int] = BUSY | BROKEN
    on_head: bool = False
    replayable: bool = True
    hold_off_max_ns: int = 60 * NS_PER_S

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"width: expected 1 or more, found {self.width}")
        for name in ("hedge_ns", "retries", "hold_off_max_ns"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected 0 or more, found {getattr(self, name)}")
        for name in ("first_token_ns", "connect_ns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, found {getattr(self, name)}")
