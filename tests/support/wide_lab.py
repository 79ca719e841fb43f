# SPDX-License-Identifier: Apache-2.0
"""A lab in one line, for any family, method and protocol, with its router or without.

with wide_lab(family=6, method="dsr", backends=3) as wide:
    ask_by_udp(wide.client, wide.service, b"...")

with routed_wide_lab(private_mounts, family=6, method="dsr", backends=3) as wide:
    wide.router.json("flows")
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.netns import running_lab
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import BackendSpec, Lab, LabSpec, Namespace
from xdp_router.lab.spec import Family, Kind, LabAddresses, Method, Topology

Address = tuple[str, int]

_DIRECT: tuple[Method, ...] = ("fullnat", "dsr", "ipip")
"""What works, or shows what it is for, with everybody on one segment."""


@dataclass(frozen=True)
class WideLab:
    """A lab as one family sees it. ``router`` can't be used where there is none."""

    lab: Lab
    family: Family
    protocol: str
    _router: Router | None = None

    @property
    def router(self) -> Router:
        """The router that is attached."""
        assert self._router is not None, "this lab has no router: use routed_wide_lab"
        return self._router

    @property
    def addresses(self) -> LabAddresses:
        """All addresses of the family."""
        return self.lab.addresses_of(self.family)

    @property
    def service(self) -> Address:
        """Where clients go."""
        return self.addresses.service

    @property
    def client(self) -> Namespace:
        """Where clients are."""
        return self.lab.client


def wide_spec(
    *,
    method: Method = "nat",
    backends: int = 1,
    kind: Kind = "hash",
    topology: Topology | None = None,
    vlan: int | None = None,
    client_vlan: int | None = None,
    delays_ms: tuple[int, ...] = (),
    weights: tuple[int, ...] = (),
    **options: Any,
) -> LabSpec:
    """The specification: backends ``b1``, ``b2``, ...; all on one segment where that is the point.

    ``delays_ms`` lengthens the round trips of the first backends, ``weights`` are theirs;
    ``options`` are of ``LabSpec``.
    """
    topology = topology or ("segment" if method in _DIRECT else "routed")
    port = 80 if method in ("dsr", "ipip") else 8080
    delays = (*delays_ms, *[0] * (backends - len(delays_ms)))
    shares = (*weights, *[1] * (backends - len(weights)))
    servers = tuple(
        BackendSpec(
            f"b{i}", kind=kind, port=port, vlan=vlan, delay_ns=ms * 1_000_000, weight=weight
        )
        for i, (ms, weight) in enumerate(zip(delays, shares, strict=True), 1)
    )
    return LabSpec(servers, method=method, topology=topology, client_vlan=client_vlan, **options)


@contextlib.contextmanager
def wide_lab(*, family: Family = 4, protocol: str = "udp", **spec: Any) -> Iterator[WideLab]:
    """A lab without an XDP router; keywords as for ``wide_spec``."""
    with running_lab(wide_spec(**spec)) as lab:
        yield WideLab(lab, family, protocol)


@contextlib.contextmanager
def routed_wide_lab(
    private_mounts: Path,
    *,
    family: Family = 4,
    protocol: str = "udp",
    settings: str = "",
    service: str = "",
    mode: str = "race",
    attach: tuple[str, ...] = (),
    fallback: bool = True,
    **spec: Any,
) -> Iterator[WideLab]:
    """A lab whose router is attached to all its interfaces.

    ``settings`` is text of the [router] table, ``service`` further lines of the [[service]],
    ``attach`` options of that command; without ``fallback`` what is not raced is hashed; other
    keywords as for ``wide_spec``.
    """
    plan = wide_spec(**spec)
    config = calm_config(plan, settings, mode=mode, family=family, protocol=protocol)
    config = config.replace("[[service]]\n", f"[[service]]\n{service}\n", 1)
    if not fallback:
        config = "".join(line for line in config.splitlines(True) if "fallback =" not in line)
    with running_lab(plan) as lab, router_in(lab, private_mounts) as router:
        router.start(config, *attach)
        yield WideLab(lab, family, protocol, router)
