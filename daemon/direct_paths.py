# SPDX-License-Identifier: Apache-2.0
"""What the way to a backend must be like where packets keep the service's address.

Such a packet is of no use to anybody but its backend: a gateway would send it back to us, by the
address that it bears, and so would our own kernel. So ``dsr`` needs its backend on the link, and
neither it nor ``ipip`` is handed to the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from xdp_router.adapters.netlink import BackendRouteError, Path, Resolution
from xdp_router.core.address import format_addr
from xdp_router.core.model import ONE_SIDED, Backend, Forwarding

Known = tuple[tuple[Path | None, str], bool]
"""Path and why it is unusable; whether packets are left to the kernel."""


def usable(backend: Backend, known: Known, name: Callable[[int], str]) -> Known:
    """What is known of a backend's address, as that backend can use it.

    ``name`` gives an interface's.
    """
    if backend.forwarding not in ONE_SIDED:
        return known
    (path, reason), by_kernel = known
    method = backend.forwarding.name.lower()
    if path is None:
        return (path, reason), False
    if backend.forwarding is Forwarding.DSR and path.gateway:
        return (None, _behind(path.gateway)), False
    if by_kernel:
        why = f"{name(path.ifindex)} takes no XDP frames, which '{method}' cannot do without"
        return (None, why), False
    return (path, reason), False


def require_on_link(backends: Iterable[Backend], resolutions: Mapping[int, Resolution]) -> None:
    """Raise BackendRouteError if a ``dsr`` backend is behind a gateway."""
    faults = []
    for backend in backends:
        found = resolutions.get(backend.endpoint.addr)
        if backend.forwarding is not Forwarding.DSR or found is None or not found.next_hop:
            continue
        if found.next_hop != backend.endpoint.addr:
            addr = format_addr(backend.endpoint.addr)
            faults.append(f"backend {backend.name} ({addr}): {_behind(found.next_hop)}")
    if faults:
        raise BackendRouteError(
            f"{'; '.join(faults)}: use forwarding 'ipip', or put it on a link of this host"
        )


def _behind(gateway: int) -> str:
    return (
        f"its route goes by gateway {format_addr(gateway)}, which would send packets of "
        "forwarding 'dsr' back to us"
    )
