# SPDX-License-Identifier: Apache-2.0
"""From a request's head, and its prompt if there is one, to a race that can begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdp_router.core.listeners import Listener
from xdp_router.core.model import Mode
from xdp_router.gateway.chooser import Order
from xdp_router.gateway.http_forward import request_to_backend
from xdp_router.gateway.http_head import Framing, RequestHead, ResponseHead
from xdp_router.gateway.prompt import Prompt, check_model
from xdp_router.gateway.race_commands import BROKEN, BUSY, RaceSettings, Win
from xdp_router.gateway.tenants import Tenant
from xdp_router.gateway.ttft_race import TtftRace

from .record import Record

if TYPE_CHECKING:
    from .client import Client
    from .front import Front

SAFE = frozenset((b"GET", b"HEAD", b"OPTIONS", b"TRACE"))
IDEMPOTENT = SAFE | {b"PUT", b"DELETE"}
"""RFC 9110, 9.2: asking twice does no harm."""


@dataclass(slots=True)
class Decision:
    """``order``: of backends. ``request``: the head as it goes to each. ``blocks``: of the
    prompt."""

    order: Order
    settings: RaceSettings
    request: bytes
    tenant: Tenant
    blocks: tuple[int, ...]
    prompt_bytes: int


def decide(
    front: Front, client: Client, head: RequestHead, prompt: Prompt | None, record: Record
) -> Decision:
    """Who may have the request, in which order, and how they are asked; told to ``record``.

    Raises MessageError: no route fits, nobody has the model, or the tenant has had enough. The
    tenant has one stream more, which the caller gives back.
    """
    listener = front.listener
    headers = front.headers_of(head)
    if prompt is not None:
        model: str | None = prompt.model
    else:
        model = headers.get("x-model-name")
        check_model(model or "")
    record.model = model or ""
    record.is_inference = prompt is not None
    record.route, found = front.routes.find(
        head.server_name, head.path.decode("latin-1"), headers, model or None
    )
    tenant = front.tenants.admit(headers.get("x-tenant-id", ""), front.world.clock())
    record.tenant = tenant.name
    blocks: tuple[int, ...] = ()
    if prompt is not None and front.cache is not None:
        blocks = front.cache.blocks_of(prompt.text)
    urgency = front.tenants.urgency(tenant, headers.get("x-tenant-priority", ""))
    order = record.order = front.chooser.order(
        found, front.sight, blocks, urgency, front.world.draws()
    )
    raced = (
        listener.mode is Mode.RACE
        and not order.control
        and head.upgrade is None
        and (prompt is not None or (head.method in SAFE and head.framing is Framing.NONE))
    )
    record.mode = "control" if order.control else listener.mode.name.lower()
    request = request_to_backend(
        head,
        host=None,
        forwarded_for=client.peer_host,
        proto=b"https" if client.is_tls else b"http",
        extra=() if head.get(b"x-request-id") else ((b"X-Request-ID", record.id.encode()),),
        drop=(b"expect",),
    )
    replayable = prompt is not None or head.method in IDEMPOTENT
    if prompt is not None:
        record.uncached = round(len(prompt.text) * (1 - order.cached))
        record.streams = prompt.stream
    hedge_ns = front.hedge_ns(record) if raced else 0
    settings = front.race_settings(raced, prompt is not None, replayable, hedge_ns)
    prompt_bytes = len(prompt.text) if prompt is not None else 0
    return Decision(order, settings, request, tenant, blocks, prompt_bytes)


def may_have_rival(front: Front, decision: Decision, candidate: int) -> bool:
    """Whether a candidate may be asked beside another one; if so, backend and tenant pay for it."""
    now_ns, tenant = front.world.clock(), decision.tenant
    # Who cannot pay spends nothing of the backends', which is everybody's.
    return (
        front.tenants.has_extra_leg(tenant, now_ns)
        and front.may_have_leg(decision.order[candidate], now_ns)
        and front.tenants.extra_leg(tenant, now_ns)
    )


def race_settings(
    listener: Listener, *, raced: bool, inference: bool, replayable: bool, hedge_ns: int
) -> RaceSettings:
    """How a request of a listener is asked for. ``inference``: it is one for tokens."""
    return RaceSettings(
        width=listener.race.candidates if raced else 1,
        hedge_ns=hedge_ns,
        retries=listener.race.retries,
        first_token_ns=listener.first_byte_timeout_ns,
        connect_ns=listener.connect_timeout_ns,
        # What an engine cannot do now another one may; else only who says so has not begun.
        refusals=BUSY | BROKEN if inference else BUSY - {429},
        on_head=not inference,
        replayable=replayable,
    )


def headers_beside(head: ResponseHead, request: str, win: Win) -> list[tuple[bytes, bytes]]:
    """What an answer is given beside its own headers: the request's name, and when to come again
    if everybody refused and this one does not say it."""
    extra = []
    if head.get(b"x-request-id") is None:
        extra.append((b"X-Request-ID", request.encode()))
    if win.retry_after_ns is not None and head.get(b"retry-after") is None:
        extra.append((b"Retry-After", b"%d" % max(1, -(-win.retry_after_ns // 1_000_000_000))))
    return extra


def why(race: TtftRace, win: Win) -> str:
    """In a few words, why the winner of a race has won."""
    if win.refused:
        return "all refused"
    if len(race.legs) == 1:
        return "first choice"
    if race.hedges:
        return "hedge won" if race.legs[win.leg].hedge else "won against a hedge"
    return "retry"
