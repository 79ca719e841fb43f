# SPDX-License-Identifier: Apache-2.0
"""The table ``[listener.scrape]``: what a listener's backends say of themselves, and where.

Its keys are those of ``[service.scrape]`` (:mod:`.config_scrape`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

from .address import LOOPBACK_IPV6, is_ipv6
from .config_fields import Problems, Table, format_duration
from .config_scrape import AGE_INTERVALS, read_scrape
from .listeners import Listener, ListenerKind, SocketAddress
from .model import Backend, Endpoint, Mode, Scrape, Service


def read_told(table: Table, kind: ListenerKind) -> Scrape | None:
    """What is asked for; None: nothing is."""
    scrape = read_scrape(table)
    if scrape is not None and kind is ListenerKind.TLS:
        table.found("scrape", "it", 'type = "http" or "llm" beside it')
        return None
    return scrape


def check_told(listener: Listener, number: int, problems: Problems) -> None:
    """Note who could not be asked, or whose values would not last."""
    scrape = listener.scrape
    for index, backend in enumerate(listener.backends):
        at = ("listener", number, "backend", index, "scrape")
        if scrape is None and backend.scrape is not None:
            problems.found(
                at,
                "an address of metrics, and nothing that is read there",
                "[listener.scrape] beside it",
            )
        elif scrape is not None and backend.scrape is None and _endpoint(backend.address) is None:
            problems.found(
                at, f"none, and address {backend.address}", "where its metrics are, by another one"
            )
    if scrape is not None and listener.told_age_ns < AGE_INTERVALS * scrape.interval_ns:
        problems.found(
            ("listener", number, "scrape", "interval"),
            format_duration(scrape.interval_ns),
            f"at most a third of score.age ({format_duration(listener.told_age_ns)}), or "
            "values are forgotten before the next ones",
        )


def scraped_services(
    listeners: Iterable[Listener], ids: Mapping[tuple[str, str], int]
) -> Sequence[Service]:
    """The listeners with metrics, in the form in which :mod:`.scrape` knows who is asked.

    ``ids``: of the backends there, by names of listener and backend.
    """
    return [
        Service(
            number,
            each.name,
            Endpoint(0, 0),
            tuple(
                Backend(
                    ids[each.name, backend.name],
                    backend.name,
                    _endpoint(backend.address) or Endpoint(0, 0),
                    number,
                    scrape=backend.scrape,
                )
                for backend in each.backends
            ),
            # Which mode it has makes no difference: each one looks at what is told.
            Mode.SNAPSHOT,
            scrape=each.scrape,
        )
        for number, each in enumerate(listeners)
        if each.scrape is not None
    ]


def _endpoint(address: SocketAddress) -> Endpoint | None:
    """None: it has no number here (the addresses of ::/96 but the host's own)."""
    parsed = ipaddress.ip_address(address.host or "0.0.0.0")
    addr = int(parsed)
    if parsed.version == 6 and not is_ipv6(addr):
        return Endpoint(LOOPBACK_IPV6, address.port) if parsed.is_loopback else None
    return Endpoint(addr, address.port)
