# SPDX-License-Identifier: Apache-2.0
"""How large the maps of a configuration are."""

from __future__ import annotations

from collections.abc import Sequence

from xdp_router.adapters.map_specs import Sizes
from xdp_router.core.config import RouterConfig
from xdp_router.core.config_direct import speaks_ipv6
from xdp_router.core.config_wide import exceptions_of
from xdp_router.core.model import Backend


def sizes_of(
    config: RouterConfig,
    interfaces: int,
    retired: Sequence[Backend] = (),
    *,
    others: int = 0,
    ipv6_flows: bool = False,
) -> Sizes:
    """``retired``: backends that only flows have; ``others``: how many there are beside these.

    ``ipv6_flows``: whether flows of IPv6 are there, whatever is configured.
    """
    settings = config.settings
    return Sizes(
        max_flows=settings.max_flows,
        pending=settings.pending_flows,
        flood=settings.pending_flows,
        services=len(config.services),
        left_out=exceptions_of(config.services),
        backends=sum(len(each.backends) for each in config.services) + len(retired) + others,
        interfaces=interfaces,
        ipv6=speaks_ipv6(config.services, retired) or ipv6_flows,
    )
