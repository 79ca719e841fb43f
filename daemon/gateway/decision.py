# SPDX-License-Identifier: Apache-2.0
"""From a request's head, and its prompt if there is one, to a race that can begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdp_router.core.listeners import Listener
from xdp_router.core.model import Mode
from xdp_router.gateway.chooser import Order
from xdp_router.gateway.http_head import RequestHead
from xdp_router.gateway.prompt import Prompt, check_model
from xdp_router.gateway.race_commands import BROKEN, BUSY, RaceSettings
from xdp_router.gateway.tenants import Tenant

from .record import Record

if TYPE_CHECKING:
    from .client import Client
    from .front import Front


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
    traits = head.traits
    assert traits is not None  # its reader has made them
    headers = traits.headers
    if prompt is not None:
        model: str | None = prompt.model
    else:
        model = headers.get("x-model-name")
        if model:
            check_model(model)
    record.model = model or ""
    record.is_inference = prompt is not None
    record.route, found = front.routes.find(traits.host, traits.path, headers, model or None)
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
        listener.mode is Mode.RACE and not order.control and (prompt is not None or traits.may_race)
    )
    record.mode = "control" if order.control else front.mode
    named = ((b"X-Request-ID", record.id.encode()),) if not traits.given_id else ()
    request = traits.frame.filled(client.peer_host, named)
    replayable = prompt is not None or traits.is_idempotent
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
